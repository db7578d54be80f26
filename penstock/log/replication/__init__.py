"""What decides in a cluster; no I/O, no clock, no threads.

manifest.py          what the cluster knows of a log: owner, segments, ensembles; its bytes
node_api.py          a storage node as proxies see it
node_core.py         what a storage node decides: blocks, fences, negative answers
block_ranges.py      sets of blocks: what belongs to a node, what it lacks
quorum.py            write sets, and how many answers are enough
segment_writer.py    write a segment's blocks, acknowledge in order, replace nodes
segment_recovery.py  fence a segment, find its end, make its tail durable
placement.py         which nodes: regions, racks, load; the decommission check
read_order.py        which replica to ask, and when to ask the next
read_ahead.py        how much to ask for: catching up or tailing
routing.py           which proxy: consistent hashing, cached owners
repair.py            what is under-replicated, and what to copy where
"""
