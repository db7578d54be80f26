"""Where PySpark meets Penstock.

walker.py     Spark's optimized plan, read through py4j into plan/tree.py's neutral tree
session.py    a small local Spark for planning and measuring
frontend.py   from a DataFrame to a query: plan it, translate, refuse, cut; and explain
start.py      penstock.start: what is decided before the first task runs
jobs.py       workers as Spark jobs, kept running
query.py      a running query, under StreamingQuery's names
"""
