"""Kafka's protocol at the gateway: a topic is a stream, a partition is one of its lanes.

listener.py     the second listener of the process
connection.py   one connection: frames, SASL/PLAIN with a token as password, requests in order
requests.py     which request does what
schemas.py      what requests and answers hold, by version
codec.py        their bytes
records.py      batches of records
compression.py  unfolds them
rows.py         records to rows of a stream and back
offsets.py      LSN and row as an offset
producing.py    appends, each batch of a producer once
sequences.py    which batch is new, purely
fetching.py     partitions followed for a client
groups.py       consumer groups, and how far they are
group.py        one group, purely
transactions.py records and offsets that take effect together
configs.py      what is told of configs
names.py        metadata keys of it all
errors.py       Kafka's codes
shared.py       what connections share
metrics.py      what is counted
"""
