"""The reservation: metadata that says from where on a writer has staged entries without a marker.

Trimming spares them while it is there (runtime/trim.py). Pure.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Value


def encode_reservation(entries: int, token: str) -> bytes:
    """Of a writer that sets it in one group with its first staged entries, right after them.

    The token makes no two alike.
    """
    return json.dumps({"entries": entries, "token": token}).encode()


def reserved_from(reservation: Value) -> Lsn:
    """The first staged entry that the writer may have."""
    try:
        fields: Any = json.loads(reservation.data)
        entries = int(fields["entries"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no reservation: {error}") from error
    return Lsn(reservation.lsn - entries)
