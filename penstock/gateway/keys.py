"""Idempotency-Key: `<producer>:<seq>`, as the log knows them. Pure.

The log takes the append at a seq of a producer once, whoever sends it and however often (decision
0034). A key that says neither could only be remembered for a while, so there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest

SEQ_MAX: Final = 2**62
_KEY: Final = re.compile(r'"?(?P<producer>[!#-~]{1,128}):(?P<seq>[0-9]{1,19})"?')


@dataclass(frozen=True, slots=True)
class Key:
    """Which append of which producer a request is."""

    producer: str
    seq: int

    def __str__(self) -> str:
        return f"{self.producer}:{self.seq}"


def parse_key(text: str) -> Key:
    """Raises BadRequest for anything else."""
    found = _KEY.fullmatch(text)
    if found is None or int(found["seq"]) > SEQ_MAX or text.startswith('"') != text.endswith('"'):
        raise BadRequest(
            f"Idempotency-Key {text[:80]!r}: give the name of a producer and the seq of this "
            "append, like sensor-17:0; begin at 0, then use `next` of each answer"
        )
    return Key(found["producer"], int(found["seq"]))
