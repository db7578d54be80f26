"""Operators: nodes of the IR at work on Arrow batches. Pure: rows and time come in, rows go out.

api.py              what an operator is: deltas in, deltas out, watermarks told
expressions.py      IR expressions to functions over batches
functions/          what expressions call, with Spark's semantics
catalogue.py        the functions that queries may use, as documentation
judges.py           what can be done, for the translation to ask
build.py            from a node to its operator
pipeline.py         one stage at work in one task
kept_in_memory.py   what of their state stays in memory although state_memory is given
chain.py            several stages at work in one task
bad_rows.py         which rows make a step fail
payloads.py         deltas as bytes between stages
driver.py           a whole query in one process, from lists of batches
stateless.py        project, filter, expand, union
narrow.py           fields of structs, taken out before rows are left out
generate.py         explode and its kin
watermarks.py       event time: watermarks, late rows, what may be forgotten
aggregates/         aggregate functions
aggregate_calls.py  a node's aggregate calls over its batches
aggregate_results.py what an aggregate shows of its buffers, and what changed
aggregate.py        keyed aggregation
partial.py          aggregation in two steps, around an exchange
regroup.py          keep all rows of a key, compute its result anew
mended.py           aggregates that compute a key anew only when an extreme was taken back
sessions.py         session windows: intervals that overlap or touch become one
join.py             stream-stream and stream-static joins
static_rows.py      static rows in a union, and in a join that keeps them
deduplicate.py      the first row of each key
python_eval.py      Python, pandas and Arrow functions over rows
map_batches.py      mapInArrow and mapInPandas
table_functions.py  Python UDTFs: a row becomes what a class yields for it
python_groups.py    Python functions over groups and frames, by pyspark's worker
whole_groups.py     functions of all rows of a group, and what they last gave
group_state.py      applyInPandasWithState: a function of new rows and what it keeps
java_values.py      what Spark's JVM makes of a pickled Python value
with_state.py       transformWithState: a StatefulProcessor at work
processor_handle.py the handle, state variables and timers that it is given
processor_state.py  what it keeps, as tables
ordering.py         the order of rows, as Spark has it
frames.py           partitions, peers and frames of sorted rows
range_frames.py     frames by distance from a row's own value
window_calls.py     window functions over sorted rows
windows.py          window functions as operators
top_n.py            window functions and top-n that are shown as they change
sink.py             what a reader sees, by output mode
finishing.py        sort and limit a whole result
"""
