"""Long lists of metadata come in pages that fit a frame."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock.limits import FRAME_HEAD_BYTES_MAX, VALUE_BYTES_MAX


def test_a_list_that_is_larger_than_a_frame_is_complete_and_in_order(tmp_path: Path) -> None:
    count = FRAME_HEAD_BYTES_MAX // VALUE_BYTES_MAX + 3
    with penstock.connect(tmp_path) as log:
        for number in range(count):
            value = bytes([number]) * VALUE_BYTES_MAX
            log.client.compare_and_set(f"k/{number:03d}", expected=None, value=value)
        log.client.compare_and_set("other", expected=None, value=b"")

        found = log.client.list_metadata("k/")

    assert list(found) == [f"k/{number:03d}" for number in range(count)]
    assert all(value.data == bytes([n]) * VALUE_BYTES_MAX for n, value in enumerate(found.values()))
