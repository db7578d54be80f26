"""Operators: nodes of the IR at work on Arrow batches. Pure: rows and time come in, rows go out.

api.py              what an operator is: deltas in, deltas out, watermarks told
expressions.py      IR expressions to functions over batches
functions/          what expressions call, with Spark's semantics
judges.py           what can be done, for the translation to ask
build.py            from a node to its operator
pipeline.py         one stage at work in one task
payloads.py         deltas as bytes between stages
driver.py           a whole query in one process, from lists of batches
stateless.py        project, filter, expand, union
watermarks.py       event time: watermarks and late rows
aggregates/         aggregate functions
aggregate_calls.py  a node's aggregate calls over its batches
aggregate.py        keyed aggregation
partial.py          aggregation in two steps, around an exchange
regroup.py          keep all rows of a key, compute its result anew
join.py             stream-stream and stream-static joins
deduplicate.py      the first row of each key
"""
