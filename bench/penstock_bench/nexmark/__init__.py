"""NEXMark, an auction site as a benchmark: its events from nothing but their ids, its queries, and
their latency, throughput, cost and correctness under a paced load.

model.py        what the events look like, and the words they are made of
draws.py        random numbers without a sequence: slot k of event n
pools.py        the strings, made once from the seed, picked by draws
layout.py       columns of a kind as Arrow arrays, dense or with gaps
generator.py    event ids -> persons, auctions, bids, or the mixed stream, as Arrow batches
pace.py         which event is due when, and whether that was held
queries/        q0 ... q22 and three of Rhino, one plain PySpark function each
producers.py    generator processes that append on schedule
timed.py        the queries with the moment from which the latency of a row counts
run.py          one run, and a bench that does many over one log and one Spark
driver.py       Spark in a process of its own: starts the queries, answers for batch Spark
visible.py      one tail of a result: when its bytes could be read
processes.py    CPU and memory of everything that takes part
figures.py      percentiles, lag, slope, and whether a rate was held
result.py       the result object of a run
multiset.py     whether two results hold the same rows
oracle.py       batch Spark over the same events
saturate.py     the search for the highest rate that is held
protocols.py    commit protocols side by side
keep.py         result objects as files
peers.py        other systems, as programs that are told what to run
peer_run.py     one measured run of a peer
compare.py      Penstock and its peers in one run, and the bars between them
recovery.py     a query fails and recovers, with checkpoints and without
report_runs.py  results read back, and what of them each chart shows
report_page.py  one HTML page of them
charts.py       its charts
"""
