"""Benchmarks: what we claim, measured.

report.py   one form for every bench: checks, percentiles, commit, machine class; table and JSON
measure.py  percentiles, raw disk, memory of a process
log.py      the shared log on one machine
ops.py      the operators on one core, beside batch Spark
"""
