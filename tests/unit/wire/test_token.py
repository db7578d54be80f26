"""Narrowed tokens: their text, and what can be done to one without the root token."""

from __future__ import annotations

import hmac
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.wire import token as t
from penstock.wire.token import (
    CAVEATS_MAX,
    Chain,
    is_narrowed,
    is_token,
    make_token,
    narrow_token,
    parse_chain,
    proof_key,
    split_token,
    token_id,
)

ROOT = "0f" * 32
ID = "0123456789abcdef"
CAVEATS = ["log=orders", "until=1767225600000", "allow=append:bids read:bids*"]


def test_the_text_of_a_token_is_that_of_the_format() -> None:
    token = make_token(ROOT, ID, CAVEATS[:1])
    first = hmac.digest(ROOT.encode(), b"penstock token\0" + ID.encode(), "sha256")
    mac = hmac.digest(first, b"penstock caveat\0log=orders", "sha256")

    assert token == f"pt1.{ID}.bG9nPW9yZGVycw.{mac.hex()}"
    assert is_narrowed(token) and not is_narrowed(ROOT)
    assert token_id(token) == ID and token_id(ROOT) is None
    assert proof_key(token) == mac.hex() and proof_key(ROOT) == ROOT


@given(st.lists(st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=40)))
def test_narrowing_offline_gives_what_the_server_computes(caveats: list[str]) -> None:
    caveats = caveats[:CAVEATS_MAX]
    token = make_token(ROOT, ID, [])
    for caveat in caveats:
        token = narrow_token(token, [caveat])

    chain, mac = split_token(token)
    assert chain == Chain(ID, tuple(caveats)) == parse_chain(chain.text)
    assert mac == chain.mac(ROOT) and is_token(token, ROOT)
    assert not is_token(token, "1" + ROOT[1:])


def check_caveats_stay() -> None:
    token = make_token(ROOT, ID, CAVEATS)
    _, mac = split_token(token)
    others = [
        chain
        for count in range(len(CAVEATS) + 1)
        for chain in itertools.permutations(CAVEATS, count)
        if list(chain) != CAVEATS
    ]
    assert len(others) > 10

    for caveats in others:
        assert not is_token(f"{Chain(ID, caveats).text}.{mac.hex()}", ROOT), caveats
    for changed in ("pt1.fedcba9876543210", f"pt1.{ID}"):
        assert not is_token(f"{changed}.{mac.hex()}", ROOT)
    wider = (*CAVEATS[:2], "allow=append:bids read:bids* admin")
    assert not is_token(f"{Chain(ID, wider).text}.{mac.hex()}", ROOT)


def test_without_the_root_token_no_caveat_is_taken_away_moved_or_changed() -> None:
    check_caveats_stay()


def test_a_mac_that_does_not_hang_on_all_before_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def xor(mac: bytes, caveat: str) -> bytes:
        """As if all caveats were under one key: their order would not count."""
        more = hmac.digest(ROOT.encode(), caveat.encode(), "sha256")
        return bytes(left ^ right for left, right in zip(mac, more, strict=True))

    for wrong in (lambda mac, caveat: mac, xor):
        monkeypatch.setattr(t, "_add", wrong)
        with pytest.raises(AssertionError):
            check_caveats_stay()


def test_every_changed_letter_makes_another_token_or_none() -> None:
    token = make_token(ROOT, ID, CAVEATS[:1])

    for place in range(len(token)):
        for letter in "0aA.-_=":
            changed = token[:place] + letter + token[place + 1 :]
            assert changed == token or not is_token(changed, ROOT), changed
        assert not is_token(token[:place], ROOT)
    assert not is_token(token + "0", ROOT)


def test_what_is_compared_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[object, object]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac_compare(left, right)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr("penstock.wire.token.hmac.compare_digest", compare)
    token = make_token(ROOT, ID, CAVEATS)

    assert is_token(token, ROOT) and not is_token(token[:-1] + "0", ROOT + "x")
    assert len(compared) == 2


@pytest.mark.parametrize(
    "text",
    [
        *("", "pt1", "pt1.", "pt1.abc", f"pt2.{ID}", f"pt1.{ID}.!", f"pt1.{ID}.YR"),
        *(f"pt1.{ID}.YQ==", f"pt1.{ID}" + ".YQ" * (CAVEATS_MAX + 1), f"pt1.{ID}." + "YWFh" * 3000),
    ],
    ids=range(10),
)
def test_what_is_no_chain_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_chain(text)


def test_tokens_are_made_from_a_root_token_with_ids_and_caveats_that_can_be_read() -> None:
    narrowed = make_token(ROOT, ID, [])
    for root, id, caveats in [
        (narrowed, ID, []),
        (ROOT, "short", []),
        (ROOT, ID, ["a\nb"]),
        (ROOT, ID, [""]),
        (ROOT, ID, ["a"] * (CAVEATS_MAX + 1)),
        (ROOT, ID, ["a" * 2000] * 5),
    ]:
        with pytest.raises(BadRequest):
            make_token(root, id, caveats)
    with pytest.raises(BadRequest):
        narrow_token(ROOT, ["log=x"])
