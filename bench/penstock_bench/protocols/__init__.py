"""Commit protocols that exist to be measured beside markers: rivals of what Penstock ships.

choosing.py             protocols by name, and settings for them
unsafe.py               data alone, and nothing survives a failure
transactions.py         Kafka Streams' transactions: two phases, a coordinator and its stream
transaction_records.py  what that coordinator notes, and under which tags
aligned.py              Flink's aligned checkpoints: the protocol, and a task's side of it
alignment.py            barriers in a task's input, and what waits behind them
aligned_conductor.py    the coordinator's side: barriers to the sources, one commit for all
aligned_core.py         when a checkpoint is complete
shared.py               what they have in common
"""
