"""Where checkpoints are kept: one interface, several stores.

api.py             what every store does, and the laws
open.py            a store by its URI
bytes_api.py       bytes by key: what a store of rows needs of a database
rows.py            a store of checkpoints that has the rows themselves
row_stores.py      such stores by their URI
row_bytes.py       rows as bytes
redis_engine.py    bytes by key in Redis
rocksdb_engine.py  bytes by key in RocksDB
indexed.py         bytes by key in append-only files, with an index in memory
segments.py        what of these is on disk, read back after a crash
collecting.py      what of them is garbage
entry_index.py     from keys to the newest entry of each
commit_format.py   the bytes of commits and of indexes
"""
