"""parse_url: the parts of a URL as java.net.URI has them.

The grammar is RFC 2396 with Java's deviations: non-ASCII characters are allowed wherever escapes
are, an authority that names no host is taken as it stands, IPv6 addresses stand in brackets.
"""

from __future__ import annotations

import ipaddress
import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.ops.functions.failures import fail
from penstock.ops.functions.java_patterns import PatternRefused, compiled
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.plan.exprs import Call, Literal

_ALPHANUM: Final = frozenset(string.ascii_letters + string.digits)
_UNRESERVED: Final = _ALPHANUM | set("-_.!~*'()")
_URIC: Final = _UNRESERVED | set(";/?:@&=+$,[]")
_PATH: Final = _UNRESERVED | set(":@&=+$,;/")
_REGISTRY: Final = _UNRESERVED | set("$,;:@&=+")
_USER: Final = _UNRESERVED | set(";:&=+$,")
_SERVER: Final = _USER | set(".:@[]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_ESCAPE: Final = re.compile(r"%[0-9a-fA-F]{2}")
_IPV4: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_SCOPE: Final = re.compile(r"[A-Za-z0-9_.]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_PORT_MAX: Final = 2**31 - 1


class _NotAUrl(ValueError):
    """What java.net.URI does not take."""


@dataclass(frozen=True, slots=True)
class Url:
    """The parts, undecoded; None for those that are missing."""

    scheme: str | None = None
    authority: str | None = None
    user: str | None = None
    host: str | None = None
    path: str | None = None
    query: str | None = None
    fragment: str | None = None

    @property
    def file(self) -> str | None:
        return self.path if self.query is None else f"{self.path}?{self.query}"


_PARTS: Final[dict[str, Callable[[Url], str | None]]] = {
    "HOST": lambda url: url.host,
    "PATH": lambda url: url.path,
    "QUERY": lambda url: url.query,
    "REF": lambda url: url.fragment,
    "PROTOCOL": lambda url: url.scheme,
    "FILE": lambda url: url.file,
    "AUTHORITY": lambda url: url.authority,
    "USERINFO": lambda url: url.user,
}


def _judge(call: Call) -> str | None:
    target = str(call.option("target"))
    if not target.startswith("ParseUrlEvaluator("):
        return f"no function for {target.partition('(')[0]}"
    for arg in call.args[1:]:
        if not isinstance(arg, Literal) or not arg.value.is_valid:
            return "parse_url with a part or key that is not constant"
    try:
        _key_pattern(call)
    except PatternRefused as error:
        return f"parse_url with a key that is a regular expression: {error}"
    return None


def _key_pattern(call: Call) -> re.Pattern[str] | None:
    """Java takes the key for a regular expression."""
    if len(call.args) < 3:
        return None
    key = call.args[2]
    assert isinstance(key, Literal)
    return compiled(f"(&|^){key.value.as_py()}=([^&]*)")


def _must_succeed(call: Call) -> bool:
    return str(call.option("target")).endswith(",true)")


@function("Invoke.evaluate", sql="parse_url try_parse_url", raises=_must_succeed, accepts=_judge)
def parse_url(call: Call, url: Datum, part: Datum, *key: Datum) -> Datum:
    """A part of a URL, or the value of a key in its query; null if it is missing."""
    pattern, must_succeed = _key_pattern(call), _must_succeed(call)

    def extract(text: str, part: str, *key: str) -> str | None:
        if pattern is not None and part != "QUERY":
            return None
        try:
            text_of_part = _PARTS.get(part, _no_part)(parse(text))
        except _NotAUrl:
            if must_succeed:
                fail("INVALID_URL", text)
            return None
        if pattern is None or text_of_part is None:
            return text_of_part
        value = pattern.search(text_of_part)
        return None if value is None else value[2]

    return each(call.type, extract, url, part, *key)


def _no_part(url: Url) -> str | None:
    """What URLs do not have."""
    return None


# -- the grammar


@lru_cache(maxsize=1024)
def parse(text: str) -> Url:
    """Raises _NotAUrl."""
    before, has_fragment, fragment = text.partition("#")
    _check(fragment, _URIC)
    last = fragment if has_fragment else None
    head = re.match(r"[^/?]*?:", before)
    if head is None:
        return _hierarchical(None, before, last)
    scheme, rest = before[: head.end() - 1], before[head.end() :]
    if _SCHEME.fullmatch(scheme) is None:
        raise _NotAUrl(text)
    if rest.startswith("/"):
        return _hierarchical(scheme, rest, last)
    if not rest:
        raise _NotAUrl(text)
    _check(rest, _URIC)
    return Url(scheme, fragment=last)


def _hierarchical(scheme: str | None, text: str, fragment: str | None) -> Url:
    authority = user = host = None
    if text.startswith("//"):
        end = re.search(r"[/?]|$", text[2:])
        assert end is not None
        authority, text = text[2 : 2 + end.start()] or None, text[2 + end.start() :]
        if authority is not None:
            user, host = _read_authority(authority)
        elif not text and fragment is None:
            raise _NotAUrl("no authority")
    path, has_query, query = text.partition("?")
    _check(path, _PATH)
    _check(query, _URIC)
    return Url(scheme, authority, user, host, path, query if has_query else None, fragment)


def _check(text: str, allowed: frozenset[str]) -> None:
    if _scan(text, allowed) < len(text):
        raise _NotAUrl(text)


def _scan(text: str, allowed: frozenset[str]) -> int:
    """How far the text consists of these characters, escapes, and characters beyond ASCII."""
    place = 0
    while place < len(text):
        letter = text[place]
        if letter in allowed:
            place += 1
        elif letter == "%":
            if _ESCAPE.match(text, place) is None:
                raise _NotAUrl(text)
            place += 3
        elif letter > "\x80" and unicodedata.category(letter) not in ("Zs", "Zl", "Zp", "Cc"):
            place += 1
        else:
            break
    return place


def _read_authority(text: str) -> tuple[str | None, str | None]:
    """User and host, both None if the authority is a mere name."""
    of_server = _SERVER | {"%"} if text.find("]") > 0 else _SERVER
    is_server = _scan(text, of_server) == len(text)
    is_name = _scan(text, _REGISTRY) == len(text)
    if is_server:
        try:
            return _read_server(text)
        except _NotAUrl:
            if not is_name:
                raise
    if not is_name:
        raise _NotAUrl(text)
    return None, None


def _read_server(text: str) -> tuple[str | None, str]:
    user, has_user, rest = text.partition("@")
    if has_user:
        _check(user, _USER)
    else:
        rest = text
    host = _read_address(rest) if rest.startswith("[") else _read_host(rest)
    port = rest[len(host) :]
    if port and not re.fullmatch(r":[0-9]*", port):
        raise _NotAUrl(text)
    if len(port) > 1 and int(port[1:]) > _PORT_MAX:
        raise _NotAUrl(text)
    return user if has_user else None, host


def _read_address(text: str) -> str:
    inside, bracket, _ = text[1:].partition("]")
    address, has_scope, scope = inside.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError as error:
        raise _NotAUrl(text) from error
    if not bracket or (has_scope and _SCOPE.fullmatch(scope) is None):
        raise _NotAUrl(text)
    return f"[{inside}]"


def _read_host(text: str) -> str:
    host = text.partition(":")[0]
    if _IPV4.fullmatch(host) and all(int(number) < 256 for number in host.split(".")):
        return host
    labels = host.removesuffix(".").split(".")
    if any(_LABEL.fullmatch(label) is None for label in labels):
        raise _NotAUrl(text)
    if len(labels) > 1 and labels[-1][0].isdigit():
        raise _NotAUrl(text)
    return host
