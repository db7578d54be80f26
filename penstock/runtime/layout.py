"""Which task has which virtual nodes: a fact of the log that is numbered, not arithmetic. Pure.

Owns the JSON under `layout/<query>` (docs/formats.md, "Layouts"). A query has the layout of its
registration, version 0, until it is rescaled; each rescaling makes the next one. A task belongs to
layouts, not to a number of workers: one whose virtual nodes change is retired, its successors have
indexes that no task had before, and begin with the state of all that it ran (succession.py).

Law (I13): in every layout each virtual node of a stage belongs to one task, whatever came before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import VIRTUAL_NODES_MAX

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Share:
    """A task of a stage, and its virtual nodes. Of a source, it has the lanes of these numbers."""

    index: int
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Retired:
    """A task that has successors."""

    stage: int
    index: int
    #: Its last marker, and how many rows it gave out.
    lsn: Lsn
    rows_out: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The tasks of all stages; of none for a stage that runs in those of its reader."""

    version: int
    stages: tuple[tuple[Share, ...], ...]
    #: By stage, how many tasks it ever had: the next has this index.
    made: tuple[int, ...]
    #: Those of layouts before this one whose markers may still stand in the log.
    retired: tuple[Retired, ...] = ()
    #: Whether a retired task that gave results is not among these any more.
    is_result_cut: bool = False

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(map(len, self.stages))

    def share(self, stage: int, index: int) -> Share:
        return next(share for share in self.stages[stage] if share.index == index)

    def rank(self, stage: int, index: int) -> int:
        """Which of its stage's tasks it is, from 0 on."""
        return [share.index for share in self.stages[stage]].index(index)

    def has(self, stage: int, index: int) -> bool:
        return any(share.index == index for share in self.stages[stage])

    def share_anew(self, stage: int, nodes: Sequence[frozenset[int]]) -> tuple[Share, ...]:
        """As many tasks as before, with these virtual nodes; one that keeps its own stays."""
        shares, made = list[Share](), self.made[stage]
        for share, own in zip(self.stages[stage], nodes, strict=True):
            is_new = own != share.nodes
            shares.append(Share(made, own) if is_new else share)
            made += is_new
        return tuple(shares)

    def next(self, shares: Shares, retired: Sequence[Retired], trimmed: Lsn) -> Layout:
        """The layout after this one: stages that are named get these tasks, the others stay.

        Retired tasks of which nothing stands in the log, below `trimmed`, are forgotten.
        """
        stages, made = list(self.stages), list(self.made)
        for stage, own in shares.items():
            stages[stage] = own
            made[stage] = max([made[stage], *(share.index + 1 for share in own)])
        known = (*self.retired, *retired)
        gone = [one for one in known if one.lsn < trimmed and one.stage == len(stages) - 1]
        return Layout(
            version=self.version + 1,
            stages=tuple(stages),
            made=tuple(made),
            retired=tuple(one for one in known if one.lsn >= trimmed),
            is_result_cut=self.is_result_cut or any(one.rows_out for one in gone),
        )


#: By stage that gets other tasks, all that it has then.
Shares = Mapping[int, tuple[Share, ...]]


def cut_payload(version: int) -> bytes:
    """Of the entry at which the tasks of this layout end, for the next one."""
    return f"cut {version}".encode()


def first_layout(tasks: Sequence[int]) -> Layout:
    """That of a query when it is registered."""
    return _first(tuple(tasks))


@lru_cache(maxsize=64)  # every batch asks for it
def _first(tasks: tuple[int, ...]) -> Layout:
    return Layout(0, tuple(evenly(count, 0) for count in tasks), tasks)


def evenly(count: int, first: int) -> tuple[Share, ...]:
    """So many tasks, whose indexes begin there."""
    nodes = [frozenset(range(rank, VIRTUAL_NODES_MAX, count)) for rank in range(count)]
    return tuple(Share(first + rank, own) for rank, own in enumerate(nodes))


def encode_layout(layout: Layout, query_version: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "query_version": query_version,
        "version": layout.version,
        "stages": [[[s.index, sorted(s.nodes)] for s in shares] for shares in layout.stages],
        "made": list(layout.made),
        "retired": [[one.stage, one.index, one.lsn, one.rows_out] for one in layout.retired],
        "is_result_cut": layout.is_result_cut,
    }


def layout_bytes(layout: Layout, query_version: int) -> bytes:
    return json.dumps(encode_layout(layout, query_version), separators=(",", ":")).encode()


def decode_layout(values: Any, query_version: int) -> Layout | None:
    """None if it is of another version of the query: this one has that of its registration."""
    try:
        if values["format"] != FORMAT:
            raise BadFormat("a layout of a newer program: use that one")
        if values["query_version"] != query_version:
            return None
        layout = Layout(
            version=_count(values["version"]),
            stages=tuple(
                tuple(Share(_count(index), frozenset(map(_count, ns))) for index, ns in shares)
                for shares in values["stages"]
            ),
            made=tuple(map(_count, values["made"])),
            retired=tuple(
                Retired(_count(stage), _count(index), Lsn(_count(lsn)), _count(rows))
                for stage, index, lsn, rows in values["retired"]
            ),
            is_result_cut=bool(values["is_result_cut"]),
        )
        _check(layout)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadFormat(f"not a layout: {error}") from error
    return layout


def read_layout(data: bytes, query_version: int) -> Layout | None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFormat(f"not a layout: {error}") from error
    return decode_layout(values, query_version)


def _check(layout: Layout) -> None:
    """The law, over what somebody wrote."""
    for shares, made in zip(layout.stages, layout.made, strict=True):
        owned = sorted(node for share in shares for node in share.nodes)
        if shares and owned != list(range(VIRTUAL_NODES_MAX)):
            raise ValueError("a virtual node has no owner, or two")
        indexes = {share.index for share in shares}
        if len(indexes) != len(shares) or any(index >= made for index in indexes):
            raise ValueError("two tasks have one name")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
