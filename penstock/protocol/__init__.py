"""Exactly once: what a marker says, what counts, and where a task goes on. Pure.

names.py         queries, tasks, and the tags and keys under which the log knows them
pulses.py        what a coordinator's pulses say of a query: its newest report, if it runs
markers.py       the progress marker: content and bytes
committed.py     the committed reader: which entries of a stream count, where, in which order
reservations.py  the metadata that keeps staged entries from being trimmed
shared_time.py   the time of a source that several tasks share
resume.py        which change entries of a task count
images.py        what the log knows of the image of a changing result
deliveries.py    what the log knows of a delivery, and what of the log it needs
trims.py         up to where what was consumed is trimmed, told before it is done
shards.py        which shard of a delivery has which virtual node, from where on
batch_commit.py  whether a micro-batch of Spark's own engine is new, done before, or another's
"""
