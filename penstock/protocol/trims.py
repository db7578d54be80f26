"""What whoever trims consumed rows says before it does: up to where. Pure.

A trim is no append, so it cannot stand guard over what it was computed from. Therefore it is told
in the log first, and then looks once more at who needs what. Who needs older rows from now on says
so in an append that asks that no further trim was told (a guard on the key). Whichever of the two
comes first, the other one sees it.

Owns the JSON under `trim` (docs/formats.md). Law: it only grows. Law: decode(encode(x)) equals x;
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
        raise BadFormat("a trim was told in bytes that cannot be read") from error
    return Lsn(lsn)
