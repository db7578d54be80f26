"""What whoever trims consumed rows says before it does: up to where. Pure.

A trim is no append, so it cannot stand guard over what it was computed from. Therefore it is told
in the log first, and then looks once more at who needs what. Who needs older rows from now on says
so in an append that asks that no further trim was told (a guard on the key). Whichever of the two
comes first, the other one sees it.

Owns the JSON under `trim` (docs/formats.md). Law: it only grows; but nobody trims beyond the end of
the log, so who told of that made a mistake, and is passed over. Law: decode(encode(x)) equals x;
anything else raises BadFormat.
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.core.owners import TRIM_KEY as TRIM_KEY

FORMAT: Final = 1


def encode_trim(lsn: Lsn) -> bytes:
    return json.dumps({"format": FORMAT, "lsn": lsn}).encode()


def decode_trim(data: bytes | None) -> Lsn:
    """Up to where was told; None, nothing was, is the beginning."""
    if data is None:
        return Lsn(0)
    try:
        values: Any = json.loads(data)
        if values["format"] != FORMAT:
            raise BadFormat("a trim was told by a newer program: use that one")
        lsn: Any = values["lsn"]
        if type(lsn) is not int or lsn < 0:
            raise ValueError("no LSN")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFormat(
            f"metadata key {TRIM_KEY}, up to where is trimmed, has bytes that cannot be read: "
            "remove it, the next trim sets it again"
        ) from error
    return Lsn(lsn)


def told_trim(data: bytes | None, tail: Lsn) -> Lsn:
    """The same, if it can be so in a log that ended at `tail` after it was read."""
    lsn = decode_trim(data)
    return lsn if lsn <= tail else Lsn(0)
