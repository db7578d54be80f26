"""Bytes by key, changed in atomic commits: what a store of rows needs of a database.

An engine keeps values by key for one task. Each commit has a cut, a number that only rises, and
goes on from the cut before it, its base.

Laws, for every engine, and after a kill or a power cut at any step:
1. `commit` is durable when it returns, and atomic: the cut and all of its puts and deletes are
   there, or none of them.
2. `commit` raises StaleCut, and changes nothing, unless `base` is the engine's cut and below the
   new one. A commit without a base begins anew: it need only be newer, and what was there goes.
3. `get` and `scan` give values as they were put last, or raise Damaged: never other bytes.
4. What fails raises a PenstockError that shows no secret. After Unavailable, nobody knows whether a
   commit is there: `cut` tells, once the engine answers again.

One thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

from penstock.errors import BadRequest, TooLarge
from penstock.limits import KIB, MIB, POSITION_MAX
from penstock.state.stores.api import StaleCut

#: The cut of an engine that has nothing: no marker has this LSN.
NOTHING: Final = 0
ROW_KEY_BYTES_MAX: Final = 64 * KIB
#: One value; and all keys and values of one commit.
ROW_VALUE_BYTES_MAX: Final = 256 * MIB
COMMIT_BYTES_MAX: Final = 1024 * MIB


class Engine(Protocol):
    """Keys are not empty."""

    def cut(self) -> int:
        """Of the last commit; NOTHING if there was none."""

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        """Deletes of keys that are not there are nothing."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin so, with their values, in no order. No commit until it is done."""

    def close(self) -> None:
        """Idempotent."""


def check_cut(have: int, base: int | None, cut: int, shown: str) -> None:
    """Law 2: raises StaleCut."""
    if have >= cut or (base is not None and base != have):
        after = "anything" if base is None else base
        raise StaleCut(
            f"{shown} is at cut {have}: a commit from {after} to {cut} does not go on from there",
            have or None,
        )


def check_commit(
    puts: Mapping[bytes, bytes], deletes: Collection[bytes], base: int | None, cut: int
) -> None:
    """Raises BadRequest or TooLarge for what no engine takes."""
    if not 0 < cut < POSITION_MAX or not (base is None or 0 <= base < cut):
        raise BadRequest(f"a commit from {base} to {cut}")
    if base is None and deletes:
        raise BadRequest("a commit that begins anew has nothing to delete")
    if any(key in puts for key in deletes):
        raise BadRequest("a commit that puts and deletes one key")
    sizes = [*map(len, puts), *map(len, deletes)]
    longest = max(map(len, puts.values()), default=0)
    total = sum(sizes) + sum(map(len, puts.values()))
    if sizes and not 0 < min(sizes) <= max(sizes) <= ROW_KEY_BYTES_MAX:
        raise TooLarge(f"keys have 1 to {ROW_KEY_BYTES_MAX} bytes, one has {max(sizes)}")
    if longest > ROW_VALUE_BYTES_MAX or total > COMMIT_BYTES_MAX:
        raise TooLarge(
            f"a value of {longest} bytes in a commit of {total}: the limits are "
            f"{ROW_VALUE_BYTES_MAX} and {COMMIT_BYTES_MAX}"
        )
