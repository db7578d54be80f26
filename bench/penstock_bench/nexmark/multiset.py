"""Whether two results hold the same rows, each as often; the order says nothing.

Pure. Rows of a result that takes rows back carry a weight; they are added up. Law: `difference` is
None exactly if every row is there as often on both sides.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: A column beside those of the rows; no query has one of this name.
_COUNT: Final = "__count"
_SHOWN: Final = 3


def difference(actual: pa.Table, expected: pa.Table, weights: pa.Array | None = None) -> str | None:
    """What tells them apart, with the first rows that do; `weights` are of the actual rows."""
    if actual.column_names != expected.column_names:
        return f"columns {actual.column_names}, expected {expected.column_names}"
    counted = _counted(actual, pa.scalar(1, pa.int64()) if weights is None else weights)
    wanted = _counted(expected.cast(actual.schema), pa.scalar(-1, pa.int64()))
    balance = (
        pa.concat_tables([counted, wanted])
        .group_by(expected.column_names)
        .aggregate([(_COUNT, "sum")])
    )
    off = balance.column(f"{_COUNT}_sum")
    wrong = balance.filter(pc.not_equal(off, 0))
    if not wrong.num_rows:
        return None
    return _tell(wrong)


def _counted(rows: pa.Table, count: Any) -> pa.Table:
    if isinstance(count, pa.Scalar):
        count = pa.repeat(count, rows.num_rows)
    return rows.append_column(_COUNT, count.cast(pa.int64()))


def _tell(wrong: pa.Table) -> str:
    off = wrong.column(f"{_COUNT}_sum")
    parts = []
    for name, is_side in (("missing", pc.less(off, 0)), ("too many", pc.greater(off, 0))):
        rows = wrong.filter(is_side)
        if rows.num_rows:
            shown = [str(tuple(row.values())[:-1]) for row in rows.slice(0, _SHOWN).to_pylist()]
            parts.append(f"{rows.num_rows:,} rows {name}, first {'; '.join(shown)}")
    return ", ".join(parts)
