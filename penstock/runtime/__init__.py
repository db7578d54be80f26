"""A query at work on the log. What decides is pure (spec to coordinator_core), the rest are shells.

spec.py              what runs: stages, tasks, sources, settings
layout.py            which task has which virtual nodes
succession.py        from one layout to the next: where successors begin
inheritance.py       the state of a successor, from its predecessors'
inputs.py            rows that a task took in
row_merge.py         rows of a shared source, put in order
outputs.py           rows to entries, by who reads them
dead_letters.py      rows that fail, set aside
task_core.py         one task: entries in, one commit out
checkpoints.py       which checkpoints markers name, and when the next is due
checkpoint_counts.py  what became of them, for reports
committed_state.py   what a query keeps, as it was committed, for people
checkpointer.py      writes them beside the task: increments of what changed
trail.py             the changes since the last one, as far as they are held
commit.py            what a task captured, and how one append commits it
commit_protocol.py   how a commit becomes durable and visible: the seam, and markers
control.py           what coordinator and workers say to each other
assignment.py        which worker runs which task
replication.py       which workers keep copies of which tasks' states
coordinator_core.py  who is alive, who runs what, when to give up
meter.py             where a task's time goes
taken.py             what a task has done and taken in, for its reports
task_report.py       what a worker reports of a task, as it is taken in
report_size.py       a report that fits into an entry of the log
node_rates.py        rows a second by virtual node, from two reports
balancing.py         when virtual nodes should go to other tasks, and which
task_rates.py        shares of time and rows a second, from two reports
graph.py             a query as a graph of streams, stages and its sink
edges.py             how its nodes and edges stand
time_text.py         times as reports write them
histogram.py         latencies that add up
run_facts.py         what only the coordinator knows of a run
run_errors.py        why a run could not begin, or ended
progress.py          how a query stands, as Spark would say it
registry.py          what the log knows of a query
writers.py           which queries write a stream
host.py              what the shells below ask of their process and machine
standby.py           a copy of a task's state, restored or kept up to date
successor.py         what a task of the next layout begins with, made ready before
task.py              the shell of a task: resume, read, append, checkpoint
worker.py            a long-lived Spark task that runs tasks
lag.py               how far behind
trim_rule.py         what a task may still read, by its last marker
static_tables.py     tables that must be read again as they were
trials.py            which rows fail where state is kept
trim.py              what of the log nobody needs
flushing.py          what a coordinator puts among the input of tasks: flushes and cuts
coordinator.py       the shell of the coordinator
coordinator_thread.py  the driver's thread that it runs on
images.py            keeps the image of a changing result near the end of the log
results.py           a result, read back
"""
