"""Commands that `penstock` has where this package is installed.

bench.py         bench: each benchmark, its table or JSON
output.py        options, progress and reports, as all commands have them
nexmark.py       the group of the benchmark's commands
nexmark_generate.py  nexmark generate: the events alone, on schedule
nexmark_run.py   nexmark run, saturate: a query measured, and the highest rate it holds
nexmark_report.py  nexmark report, recovery: figures as a page; after a failure
nexmark_protocols.py  nexmark protocols: commit protocols side by side
nexmark_peers.py  nexmark peers, compare: other systems beside Penstock
"""
