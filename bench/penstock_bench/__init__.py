"""Benchmarks: what we claim, measured.

report.py        one form for every bench: checks, percentiles, commit, machine class; table, JSON
measure.py       the clock, percentiles, raw disk, memory of a process
log.py           the shared log on one machine
log_load.py      appends and reads, timed, and the server of one machine
ops.py           the operators on one core, beside batch Spark
group_functions.py  what a group of applyInPandas costs, beside Spark
start.py         how long people wait for a command, and for a first result
group_functions.py  what a group of applyInPandas costs, beside batch Spark
small.py         what an event costs in small batches
realtime.py      latency in real time beside Spark's micro-batches: variants, phases, bars
load.py          bids at a fixed rate, from a process of its own
queries.py       the DataFrames that both engines run, and what their rows must add up to
arrivals.py      one tail of a result stream: when rows became visible
child.py         a process of ours that is told what to do
driver_process.py  a Spark driver in a process of its own; what sessions have in common
result.py        what a result costs after a long history
checkpoints.py   stores of checkpoints, beside a file per key
checkpoints_charts.py  pictures of their figures
checkpoints_recovery.py  how soon a query goes on without its store
checkpoints_peers.py  a file per key, and a Redis of our own
scale.py         what more tasks on one source bring
handover.py      how long a large state pauses when it moves, is lost, or is rescaled
handover_charts.py  the picture of it
state.py         what checkpoints cost a task with very many keys
state_memory.py  state larger than memory: lookups beside RocksDB, a large fill
reports.py       what it costs that queries tell how they stand
recovery.py      how soon a query goes on: checkpoints beside none, after kills
connector.py     format("penstock") beside Spark's own sources and sinks: phases, the bar
connector_queries.py  its queries, and what of their progress counts
cluster.py       the replicated log beside one machine's: a slow node, tails, many logs, failover
cluster_load.py  its clients and readers, and what nodes count
deliver.py       delivery to many targets: its parts
deliver_hosts.py   targets in other processes: from dispatch to receipt
deliver_kafka.py   beside transactions of Kafka's
deliver_others.py  a delivery beside a target that is dead, or comes back
deliver_load.py    targets that note when batches come, and who sends them
fetch.py         programs of others, by Maven
gateway.py       requests over HTTP, and the decoder of their JSON
gateway_kafka.py  Kafka's protocol beside a broker of Kafka's
ui.py            what open pages and scrapes cost a query
protocols/       commit protocols to measure beside markers
nexmark/         the NEXMark benchmark: harness, oracle, peers, report
cli/             the commands `penstock bench` and `penstock nexmark`
"""
