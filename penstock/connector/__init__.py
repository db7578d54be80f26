"""Spark's own engine on the log: `format("penstock")`, for micro-batches and batches.

options.py        what a user may say, checked, with the allowed values in every refusal
connections.py    one connection for each Python process that Spark keeps
causes.py         errors without the way to them
classic.py        Spark Connect, refused in words
registering.py    a session that knows the format, workers that know Penstock
data_source.py    what Spark finds: schema, readers, writers
arrow.py          the stream's columns as Spark wants them, metadata columns
items.py          what counts in a stream, and cutting it into triggers
partitions.py     what one Spark task reads: a batch, cut into partitions
follower.py       the source's driver side: what counts, known ahead of the triggers
stream_reader.py  the streaming source
batch_reader.py   spark.read
read_partition.py a partition, read by a task
sinks.py          what all sinks do first: the stream, and whether rows fit it
staging.py        rows to staged entries, by a task
commit.py         the driver's commit: one marker, one append
stream_writer.py  the streaming sink
batch_writer.py   df.write
foreach_batch.py  update and complete mode, several streams with one commit
tuned.py          settings of Spark for small micro-batches
"""
