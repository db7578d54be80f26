"""What is told of a trim before it is done: its bytes."""

from __future__ import annotations

import pytest

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.protocol.trims import decode_trim, encode_trim, told_trim


def test_a_trim_is_read_as_it_was_told() -> None:
    assert decode_trim(encode_trim(Lsn(77))) == 77
    assert decode_trim(None) == 0


@pytest.mark.parametrize(
    "data", [b"", b"7", b"[]", b'{"format":1}', b'{"format":1,"lsn":-1}', b'{"format":1,"lsn":"7"}']
)
def test_other_bytes_are_no_trim(data: bytes) -> None:
    with pytest.raises(BadFormat, match="cannot be read"):
        decode_trim(data)


def test_one_of_a_newer_program_is_said_to_be_that() -> None:
    with pytest.raises(BadFormat, match="newer program"):
        decode_trim(b'{"format":2}')


def test_nobody_trims_beyond_the_end_of_the_log() -> None:
    assert told_trim(encode_trim(Lsn(77)), Lsn(77)) == 77
    assert told_trim(encode_trim(Lsn(78)), Lsn(77)) == 0
