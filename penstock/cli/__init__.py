"""The command `penstock`: noun, verb, options; text for people, `--json` for tools.

main.py          the root: knows the commands, turns errors into one line and an exit code
groups.py        groups of commands that are loaded when they run
output.py        exit codes, tables, numbers and times as text
target.py        --dir, --connect and the rest of what says which log is meant
log.py           the group of its commands
state.py         state show: what queries keep
log_serve.py     log serve
log_status.py    log status
log_verify.py    log verify
log_trim.py      log trim, forget
cluster.py       the group of its commands
cluster_status.py  cluster status
cluster_target.py  which cluster is meant, and a connection to it
cluster_facts.py   what a cluster's metadata, nodes and proxies say of it
cluster_up.py    cluster up: a whole cluster on this machine
cluster_node.py, cluster_proxy.py  one process of a cluster
cluster_process.py  what both of them share
cluster_decommission.py  cluster decommission: empty a storage node
cluster_verify.py  cluster verify: every copy of every block
target_host.py   target serve: targets in a process of their own
stream_target.py the same, with its streams
stream.py        the group of its commands
stream_list.py   stream list
stream_create.py stream create, describe
stream_append.py stream append
stream_read.py   stream read, tail
stream_lag.py    stream lag
rescaling.py     how far a query is on its way to another number of workers
query_facts.py   what the log knows of its queries
query_asks.py    what anybody may ask of a query
query.py         query list, status, stop, remove
positions.py     positions in a stream, as options
serving_options.py  options of what serves a log to others
gateway.py       gateway: a log over HTTP
ui.py            ui: the page of a log
deliver.py       deliver: run a delivery in the foreground
delivery_view.py a running delivery as one line
metrics_port.py  GET /metrics of a process that is no server
delivery_facts.py  what the log knows of its deliveries
delivery.py      delivery list, status, remove
token.py         token make, narrow, show, revoke
live.py          a query's progress as one line; lines that are kept up to date
plan.py          plan explain: how a query would run
explain.py       explain: what one entry is
explain_entry.py what the log knows of it: who wrote it, what came before and after
explain_delivery.py  which targets have applied an entry
explain_task.py  markers, and whether an entry of a task counts
demo.py          demo: see it work
demo_run.py      a query on Spark in real time, two kills, its result checked
demo_bids.py     its bids and its query
demo_page.py     the page of its log
demo_view.py     what the demo shows while it runs
"""
