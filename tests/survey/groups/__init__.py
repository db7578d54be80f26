"""The 400 constructs, by what they are about.

expressions.py  functions of one row: text, numbers, times, conditions, nested values, JSON and kin
frames.py       the DataFrame API, and output modes
aggregates.py   aggregate functions, and groups
windows.py      windows of event time, and SQL's windows
relations.py    joins, set operations, duplicates, subqueries
syntax.py       SQL around the expressions
python.py       functions in Python
habits.py       what is done around a query
"""

from __future__ import annotations

from typing import Final

from survey.construct import Group
from survey.groups import (
    aggregates,
    expressions,
    frames,
    habits,
    python,
    relations,
    syntax,
    windows,
)

GROUPS: Final[dict[str, Group]] = {
    "Columns and generators": frames.COLUMNS,
    "Rows": frames.ROWS,
    "Strings": expressions.STRINGS,
    "Numbers": expressions.NUMBERS,
    "Dates and times": expressions.TIMES,
    "Conditions and nulls": expressions.CONDITIONS,
    "Arrays, maps and structs": expressions.NESTED,
    "JSON, CSV, XML and variants": expressions.TEXT_FORMATS,
    "What surrounds a query": expressions.SURROUNDINGS,
    "Aggregate functions": aggregates.FUNCTIONS,
    "Groups": aggregates.GROUPS,
    "Event time": windows.EVENT_TIME,
    "SQL windows": windows.SQL_WINDOWS,
    "Joins": relations.JOINS,
    "Set operations": relations.SETS,
    "Duplicates": relations.DUPLICATES,
    "Subqueries": relations.SUBQUERIES,
    "SQL syntax": syntax.SYNTAX,
    "Python": python.PYTHON,
    "Output modes": frames.MODES,
    "Sources, sinks and habits": habits.HABITS,
}
