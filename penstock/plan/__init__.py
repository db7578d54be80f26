"""From Spark's optimized plan to stages. Pure: starts at a neutral tree, ends at values.

tree.py              the neutral tree that spark/walker.py makes of Spark's plan
types.py             Spark's types to Arrow's
exprs.py             expressions of the IR
nodes.py             nodes of the IR: what a query computes
translation/         plan nodes and expressions to the IR, refusing what cannot run
supply.py            append times and scalar subqueries, brought to where they are used
time_bounds.py       how long a join must remember its rows
open_times.py        times that a join without bounds hands on late
closing.py           keys that are made of event time, and when they close
refusals.py          reasons, gathered and told at once
rewrites/            rules from IR to IR
changes.py           which streams only grow, and which take rows back
finish.py            sorting and limits: what only a whole result can show
checks.py            what cannot bear rows that are taken back
modes.py             what append, update and complete ask of a plan
sharing.py           what is computed more than once
row_order.py         whose result depends on the order of rows
stages.py            cut where rows must move to the owner of their key
result_key.py        by which columns rows of a result replace each other
explain.py           a query in plain text
"""
