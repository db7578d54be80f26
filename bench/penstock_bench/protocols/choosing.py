"""Commit protocols by name, and the settings of a query that uses one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, get_args

from penstock.runtime.commit_protocol import MARKERS
from penstock.runtime.spec import Settings
from penstock_bench.protocols.aligned import Aligned
from penstock_bench.protocols.transactions import Transactions
from penstock_bench.protocols.unsafe import Unsafe

ProtocolName = Literal["marker", "transaction", "aligned", "unsafe"]
PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)


def with_protocol(name: ProtocolName, settings: Settings) -> Settings:
    """The settings with another protocol. With `aligned`, the interval between two commits of a
    task becomes that between two checkpoints: tasks append as often as they can meanwhile.
    """
    match name:
        case "marker":
            return replace(settings, protocol=MARKERS)
        case "transaction":
            return replace(settings, protocol=Transactions())
        case "aligned":
            aligned = Aligned(settings.commit_interval_ms)
            return replace(settings, protocol=aligned, commit_interval_ms=0)
        case "unsafe":
            return replace(settings, protocol=Unsafe())
