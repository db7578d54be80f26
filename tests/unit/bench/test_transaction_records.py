"""Records of the transaction stream: there and back, and nothing else."""

from __future__ import annotations

import pytest
from penstock_bench.protocols.transaction_records import (
    CommitRecord,
    TransactionRecord,
    decode_record,
    encode_record,
)

from penstock.errors import BadFormat

RECORDS = [
    TransactionRecord("begun", 0, ("s/out", "C/q.1/0/0")),
    TransactionRecord("prepared", 7, (), (CommitRecord(("s/out", "R/q.1/0/0"), '{"a": 1}'),)),
    TransactionRecord("done", 7),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_survives_its_bytes(record: TransactionRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        encode_record(RECORDS[0]).replace(b'"version":1', b'"version":2'),
        encode_record(RECORDS[0]).replace(b"begun", b"ended"),
        encode_record(RECORDS[0]).replace(b'"number":0', b'"number":"0"'),
        encode_record(RECORDS[0]).replace(b'"s/out"', b"5"),
        encode_record(RECORDS[1]).replace(b'"{\\"a\\": 1}"', b"{}"),
    ],
)
def test_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_record(payload)
