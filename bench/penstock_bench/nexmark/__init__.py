"""NEXMark measured: latency, throughput, cost and correctness of a query under a paced load.

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
