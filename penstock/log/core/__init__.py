"""What decides; no I/O, no clock, no threads.

owners.py     whose a tag, metadata key or producer is
producers.py  the producer table, as the bytes of a snapshot
revocations.py  which tokens were revoked, for who only reads a log
rights.py     what a token allows: one question, asked of every request
sequencer.py  order groups, guard, fence, deduplicate, group commit
sessions.py   which connection speaks for a client
state.py      metadata and producers as a fold over the log; snapshot bytes
tag_index.py  which entries carry a tag, where groups lie; index file bytes
tails.py      many readers: positions, credits, progress
"""
