"""What operators keep, by key and by virtual node.

api.py                what an operator may ask of a store; the laws
keys.py               the one partition hash, virtual nodes, keys as dictionary objects
equal_rows.py         which rows are equal, as grouping has it
event_time.py         event times as numbers
memory.py             the store in memory: name spaces, snapshots, changes
memory_table.py       one row per key
key_index.py          from keys to the places of their rows
int_index.py          the same for whole numbers, in arrays
memory_row_set.py     many rows per key
run.py                a run of such rows, found by the hash of their keys
kept_rows.py          the rows themselves: one matrix of words, or Arrow batches
changelog.py          changes as payloads of change entries
checkpoint_format.py  the bytes of a checkpoint file, found again by virtual node
checkpoint_store.py   checkpoint files on any file system: write, read, sweep
parts.py              what a part says of itself: kind, keys, what places it, event time
stores/               the interface of all stores of checkpoints
"""
