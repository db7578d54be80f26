"""The command `penstock`: noun, verb, options; text for people, `--json` for tools.

main.py     the root: registers the commands, turns errors into one line and an exit code
output.py   exit codes, tables, numbers and times as text
target.py   --dir, --connect and the rest of what says which log is meant
log.py      log serve, status, verify, trim
stream.py   stream list, create, describe, append, read, tail
plan.py     plan explain: how a query would run
explain.py  what one entry is, who wrote it, what came before and after
demo.py     a two-minute read made into fifteen seconds to watch
bench.py    measurements
"""
