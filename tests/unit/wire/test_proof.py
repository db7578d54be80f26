"""Proofs of the token: one connection, one side, one hello each."""

from __future__ import annotations

import hashlib
import hmac
from itertools import pairwise

import pytest

from penstock.errors import BadFormat
from penstock.wire.proof import NONCE_BYTES, Nonces, is_proof, prove_client, prove_server

TOKEN = "0123456789abcdef" * 4
ONE, TWO = b"1" * NONCE_BYTES, b"2" * NONCE_BYTES


def test_a_proof_is_the_one_that_the_formats_describe() -> None:
    server = hmac.new(TOKEN.encode(), b"penstock server\0" + ONE + TWO, hashlib.sha256)
    client = hmac.new(TOKEN.encode(), b"penstock client\0" + ONE + TWO + b"\x01head", "sha256")

    assert prove_server(TOKEN, Nonces(ONE, TWO)) == server.digest()
    assert prove_client(TOKEN, Nonces(ONE, TWO), 1, b"head") == client.digest()


def test_whatever_differs_makes_another_proof() -> None:
    nonces = Nonces(ONE, TWO)
    proofs = [
        prove_server(TOKEN, nonces),
        prove_server(TOKEN[:-1], nonces),
        prove_server(TOKEN, Nonces(TWO, ONE)),
        prove_server(TOKEN, Nonces(ONE, ONE)),
        prove_client(TOKEN, nonces, 1, b""),
        prove_client(TOKEN, nonces, 64, b""),
        prove_client(TOKEN, nonces, 1, b"hello"),
        prove_client(TOKEN + "0", nonces, 1, b"hello"),
        prove_client(TOKEN, Nonces(TWO, ONE), 1, b"hello"),
    ]
    assert len(set(proofs)) == len(proofs)
    for one, other in pairwise(proofs):
        assert is_proof(one, one) and not is_proof(one, other)


@pytest.mark.parametrize("size", [0, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_nonces_have_one_length(size: int) -> None:
    with pytest.raises(BadFormat, match="32 bytes"):
        Nonces(bytes(size), ONE)
    with pytest.raises(BadFormat, match="32 bytes"):
        Nonces(ONE, bytes(size))


def test_no_part_of_a_token_is_in_a_proof() -> None:
    proof = prove_server(TOKEN, Nonces(ONE, TWO))
    assert TOKEN.encode()[:8] not in proof and bytes.fromhex(TOKEN)[:8] not in proof
