"""What a plan is rewritten for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.plan import nodes as n

#: The buffer columns of a call, or None if it cannot be folded in parts.
BufferColumns: TypeAlias = Callable[[n.AggregateCall], dict[str, pa.DataType] | None]


@dataclass(frozen=True, slots=True)
class Aim:
    """The output mode of the query, and which aggregate functions the operators fold in parts."""

    mode: n.Mode
    buffers: BufferColumns


def fold_nothing(call: n.AggregateCall) -> None:
    """The buffers of a plan against which there are reasons: its calls may make no sense."""
