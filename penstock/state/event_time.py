"""Event times as numbers: microseconds since 1970, of a window its end."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: The event time of rows that have none: no watermark passes it.
NEVER_US: Final = int(np.iinfo(np.int64).max)


def event_times(column: pa.Array) -> pa.Array:
    """The event times of a column of timestamps or windows, null where there is none."""
    if pa.types.is_struct(column.type):
        # Taking a field out of its struct forgets where the struct itself is null.
        column = pc.struct_field(column, "end") if column.null_count else column.field("end")
    return column.view(pa.int64())


def event_times_us(column: pa.Array) -> npt.NDArray[np.int64]:
    """The same as an array that may be read but not written, NEVER_US where there is none."""
    times = event_times(column)
    if times.null_count:
        times = times.fill_null(NEVER_US)
    numbers: npt.NDArray[np.int64] = times.to_numpy()
    return numbers
