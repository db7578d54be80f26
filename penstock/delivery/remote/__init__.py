"""Targets in other processes, beside their data: hosts of them, and how a player reaches them.

address.py         target://host:port/0 and grpc://host:port/0
hosts.py           from targets as users give them to hosts
row_parts.py       rows as they travel
shard_format.py    what a target is told of its shard, as it travels
frames_host.py     a host elsewhere, over frames, as the player sees it
grpc_host.py       the same over gRPC
seat.py            who may speak to a target
served_target.py   one target of a host: its thread, and what waits for it
host_config.py     settings of a host
target_metrics.py  what a host counts
frames_server.py   a host, over frames
grpc_server.py     a host, over gRPC
grpc_messages.py   the messages of delivery.proto
serve.py           serve_targets: a host as a user starts it
"""
