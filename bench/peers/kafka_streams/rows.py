"""What the reader wrote, as the harness wants it: one Arrow file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv


def hand_over(rows: Path, columns: tuple[str, ...], target: Path) -> dict[str, Any]:
    """Lines of when a row was visible and appended, its columns, and `lat_ts` in milliseconds.

    The columns stay text; nothing is taken back, so every weight is 1.
    """
    names = ["_visible_us", "_emitted_us", *columns, "_lat_ms"]
    types = {name: pa.int64() if name.startswith("_") else pa.string() for name in names}
    if rows.stat().st_size:
        read = csv.read_csv(
            rows,
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=types),
        )
    else:
        read = pa.schema(list(types.items())).empty_table()
    table = (
        read.drop_columns("_lat_ms")
        .append_column("_lat_us", pc.multiply(read.column("_lat_ms"), 1_000))
        .append_column("_weight", pa.repeat(pa.scalar(1, pa.int64()), read.num_rows))
    )
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return {"rows": str(target), "results": table.num_rows}
