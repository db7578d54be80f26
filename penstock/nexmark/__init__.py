"""NEXMark: an auction site as a benchmark. Its events from nothing but their ids, and its queries.

model.py      what the events look like, and the words they are made of
draws.py      random numbers without a sequence: slot k of event n
pools.py      the strings, made once from the seed, picked by draws
layout.py     columns of a kind as Arrow arrays, dense or with gaps
generator.py  event ids -> persons, auctions, bids, or the mixed stream, as Arrow batches
pace.py       which event is due when, and whether that was held
live.py       bids at the pace of the wall clock, and a query over them, for the demo
queries/      q0 ... q22 and three of Rhino, one plain PySpark function each
"""
