"""Tokens that say what they are good for: an HMAC chain under the root token (a macaroon). Pure.

    mac 0     HMAC(root token, "penstock token" NUL id)
    mac n     HMAC(mac n-1, "penstock caveat" NUL caveat n)
    text      pt1.<id>.<caveat 1>.….<last mac>          caveats in base64url, the mac in hex

Whoever has a token can add a caveat without asking anybody; nobody can take one away, change one or
put them in another order, since all macs but the last are forgotten. What caveats mean is
log/core/rights.py's business. On the wire goes the *chain*, the text without its mac: it is no
secret. Server and client then prove the mac to each other as they prove a root token (proof.py), so
nobody who listens learns a token. Law: two different chains never have the same bytes under HMAC.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest

#: Of every text of this form. No root token begins with it.
VERSION: Final = "pt1"
ID_LETTERS: Final = 16
CAVEATS_MAX: Final = 32
CAVEAT_BYTES_MAX: Final = 4096
#: Of a whole text: a chain fits into what a server reads before it knows anybody.
TEXT_MAX: Final = 8192
_MAC_BYTES: Final = 32
_ID: Final = re.compile(rf"[0-9a-f]{{{ID_LETTERS}}}")
_START: Final = b"penstock token\0"
_CAVEAT: Final = b"penstock caveat\0"


@dataclass(frozen=True, slots=True)
class Chain:
    """Who a token is for, as it may be shown to everybody."""

    id: str
    caveats: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return ".".join((VERSION, self.id, *map(_encode, self.caveats)))

    def mac(self, root: str) -> bytes:
        """What the token under this root token ends with."""
        mac = hmac.digest(root.encode(), _START + self.id.encode(), "sha256")
        for caveat in self.caveats:
            mac = _add(mac, caveat)
        return mac


def is_narrowed(token: str) -> bool:
    """Whether it is such a token; else it is a root token."""
    return token.startswith(f"{VERSION}.")


def make_token(root: str, id: str, caveats: Sequence[str]) -> str:
    """A token of its own, with an id that was drawn at random. Raises BadRequest."""
    if is_narrowed(root):
        raise BadRequest("this token is narrowed: others are made from a root token, or narrow it")
    if not _ID.fullmatch(id):
        raise BadRequest(f"{id!r} is no id of a token: {ID_LETTERS} hexadecimal digits")
    return _join(Chain(id), Chain(id).mac(root), caveats)


def narrow_token(token: str, caveats: Sequence[str]) -> str:
    """The token with more caveats: it allows what both allow. Raises BadRequest."""
    chain, mac = split_token(token)
    return _join(chain, mac, caveats)


def split_token(token: str) -> tuple[Chain, bytes]:
    """Its chain and its mac, which is not checked. Raises BadRequest."""
    text, _, mac = token.rpartition(".")
    if not re.fullmatch(rf"[0-9a-f]{{{2 * _MAC_BYTES}}}", mac):
        raise BadRequest("this is no narrowed token: it is cut, or was changed")
    return parse_chain(text), bytes.fromhex(mac)


def parse_chain(text: str) -> Chain:
    """Raises BadRequest for whatever `Chain.text` cannot have made."""
    version, *parts = text[: TEXT_MAX + 1].split(".")
    if version != VERSION or not parts or not _ID.fullmatch(parts[0]) or len(text) > TEXT_MAX:
        raise BadRequest("this is no narrowed token: it is cut, or of another version")
    if len(parts) > 1 + CAVEATS_MAX:
        raise BadRequest(f"a token has {CAVEATS_MAX} caveats at most")
    chain = Chain(parts[0], tuple(map(_decode, parts[1:])))
    if chain.text != text:  # base64 has other spellings of the same bytes
        raise BadRequest("this is no narrowed token: it was changed")
    return chain


def token_id(token: str) -> str | None:
    """None: of a root token, which has none."""
    return split_token(token)[0].id if is_narrowed(token) else None


def proof_key(token: str) -> str:
    """What proofs are made with: a root token itself, or the mac of a narrowed one."""
    return split_token(token)[1].hex() if is_narrowed(token) else token


def is_token(shown: str, root: str) -> bool:
    """Whether a narrowed token was made from this root token; in constant time."""
    try:
        chain, mac = split_token(shown)
    except BadRequest:
        return False
    return hmac.compare_digest(mac, chain.mac(root))


def _join(chain: Chain, mac: bytes, caveats: Sequence[str]) -> str:
    for caveat in caveats:
        if not caveat or not caveat.isprintable() or len(caveat.encode()) > CAVEAT_BYTES_MAX:
            raise BadRequest(f"caveat {caveat[:40]!r}: use 1 to {CAVEAT_BYTES_MAX} printable bytes")
        mac = _add(mac, caveat)
    chain = Chain(chain.id, (*chain.caveats, *caveats))
    text = f"{chain.text}.{mac.hex()}"
    if len(chain.caveats) > CAVEATS_MAX or len(text) > TEXT_MAX:
        raise BadRequest(f"a token has {CAVEATS_MAX} caveats and {TEXT_MAX} letters at most")
    return text


def _add(mac: bytes, caveat: str) -> bytes:
    return hmac.digest(mac, _CAVEAT + caveat.encode(), "sha256")


def _encode(caveat: str) -> str:
    return base64.urlsafe_b64encode(caveat.encode()).decode().rstrip("=")


def _decode(text: str) -> str:
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadRequest("this is no narrowed token: a caveat cannot be read") from None
