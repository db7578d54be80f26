"""Streams of typed rows over the log: what a schema is, and how rows become payloads and text.

ddl.py          Spark's DDL text <-> pyarrow.Schema, one spelling for each of Spark's types
schema.py       any Arrow schema -> Spark's own types; its registered bytes; differences in words
columns.py      Arrow columns -> a schema's columns, without loss; what a column may not hold
values.py       one Python value -> a schema's type, without loss; says what is wrong and where
batches.py      record batch <-> payload: Arrow IPC without schema, split to size, validated
rows.py         dicts, pandas, Arrow -> batches of the schema, or an error naming row and column
json_lines.py   rows <-> one line of JSON each, exact for every type
json_columns.py rows as JSON -> batches, by column where that is exact
registration.py how a stream stands in the log: its name, tag, metadata key and value
registry.py     the streams of a log: found, listed, made
lanes.py        the shares of a stream that tasks read side by side
metadata.py     columns that say where a row stands in the log
earliest.py     where what is left of a trimmed stream begins
last_rows.py    where its last rows count
times.py        moments as the log has them
positions.py    earliest, latest, an LSN or a time -> an LSN
groups.py       rows -> the groups of entries that an append makes of them
tail.py         a stream followed, batch by batch
showing.py      rows as text in a grid
producer.py     a named producer of a stream, whose batches may be sent again
stream.py       the stream itself: append, read, tail
session.py      connect; the log as a user holds it: its streams, status, trim
"""
