"""What operators keep, by key and by virtual node.

api.py                what an operator may ask of a store; the laws
keys.py               the one partition hash, virtual nodes, keys as dictionary objects
equal_rows.py         which rows are equal, as grouping has it
event_time.py         event times as numbers
memory.py             the store: name spaces, snapshots, changes
room.py               where its arrays are: in memory, or in mapped files
scratch.py            those mapped files, for state larger than memory
memory_table.py       one row per key
columns.py            the values of such rows, by slot
key_index.py          from keys to the places of their rows
int_index.py          the same for whole numbers, in arrays
memory_row_set.py     many rows per key
run.py                a run of such rows, found by the hash of their keys
kept_rows.py          the rows themselves: one matrix of words, or Arrow batches
changelog.py          changes as payloads of change entries
checkpoint_format.py  the bytes of increments and whole checkpoints, found again by node and key
checkpoint_store.py   checkpoints as files: written, read, swept
folders.py            folders on any file system, for files that are written once
manifest.py           which increments make the state at a marker
fold.py               the merge of changes
compaction.py         when increments are merged, and how
unread.py             rows of a table that are in files still, and how they are read
key_filter.py         which keys are surely not in a file
parts.py              what a part says of itself: kind, keys, what places it, event time
stores/               the interface of all stores of checkpoints
"""
