"""Proofs of the token: each side shows the other that it knows it, and neither shows it.

    client   Meet(nonce c)                                            ──►
             ◄──   Challenge(nonce s, HMAC(token, "server", c, s))         server
    client   a hello, with HMAC(token, "client", c, s, the hello)     ──►

HMAC-SHA256 under the token. Laws: a proof is good for one pair of nonces, one side and, of a
client, one hello: what was recorded proves nothing on another connection, and no side's proof can
be sent back as the other's. Nonces are of one length, so no two cases have the same bytes.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadFormat

NONCE_BYTES: Final = 32
_SERVER: Final = b"penstock server\0"
_CLIENT: Final = b"penstock client\0"


@dataclass(frozen=True, slots=True)
class Nonces:
    """What both sides of one connection drew at random. Raises BadFormat."""

    client: bytes
    server: bytes

    def __post_init__(self) -> None:
        if not len(self.client) == len(self.server) == NONCE_BYTES:
            raise BadFormat(f"a nonce has {NONCE_BYTES} bytes")


def prove_server(token: str, nonces: Nonces) -> bytes:
    return _prove(token, _SERVER, nonces, b"")


def prove_client(token: str, nonces: Nonces, kind: int, head: bytes) -> bytes:
    """For the hello of this kind with this head."""
    return _prove(token, _CLIENT, nonces, bytes((kind,)) + head)


def is_proof(shown: bytes | memoryview, wanted: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(shown, wanted)


def _prove(token: str, side: bytes, nonces: Nonces, said: bytes) -> bytes:
    return hmac.digest(token.encode(), side + nonces.client + nonces.server + said, "sha256")
