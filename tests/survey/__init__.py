"""A survey: which of 400 constructs that PySpark users reach for run here.

groups/         the constructs, as data
construct.py    what a construct is
rows.py         the rows that they run over
run.py          plan, run, compare with batch Spark
limits.py       what is refused and what to do instead: prints docs/limits.md
test_survey.py  what `make soak` asks of it

`make survey` is the command. A construct was chosen because people write it, never because it
runs: from Spark's guides and `pyspark.sql.functions`, and from what is asked about them.
"""
