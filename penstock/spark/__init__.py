"""Where PySpark meets Penstock.

walker.py     Spark's optimized plan, read through py4j into plan/tree.py's neutral tree
commands.py   Python functions out of the commands that pyspark made of them
present.py    current_timestamp() and its kin, kept out of the optimizer's hands
failures.py   the session's optimizer, and why it failed on a plan
session.py    a small local Spark for planning and measuring
frontend.py   from a DataFrame to a query: plan it, translate, refuse, cut; and explain
default_names.py  what a query and its result are called if nobody says it
start.py      penstock.start: what is decided before the first task runs
sizes.py      sizes as users give them
cores.py      what queries hold of Spark's cores, and what is left
jobs.py       workers as Spark jobs, kept running
loading.py    what a worker loads before it works
daemon.py     Spark's daemon of workers, with what they need loaded before
query.py      a running query, under StreamingQuery's names
notebook.py   a query where people type: its card in a notebook, the link to its page
queries.py    penstock.queries: those that run, and who listens to them
progress.py   a query's report, under StreamingQueryProgress's names
"""
