"""Arguments of `penstock.start` that are of another type than they should be, refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import BadRequest
from penstock.spark.start import _bytes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"commit_interval": "1s"}, "commit_interval='1s': give a number of seconds"),
        ({"idle_after": "1s"}, "idle_after='1s': give a number of seconds"),
        *(
            ({"state_memory": size}, rf"state_memory={size!r}: give .* such as \"256m\"")
            for size in ("256 apples", "m", 0, -1, 1.5, "", "1mm", True, "-1m")
        ),
        ({"checkpoints": 5}, "checkpoints=5: give a path or a URI"),
        ({"log": "/data/log"}, r"penstock.connect\('/data/log'\)"),
        ({"to": 5}, "stream name 5: a letter or _ first"),
        ({"checkpoints": Path("/data")}, "expected a streaming DataFrame, got NoneType"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_words(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        penstock.start(None, **arguments)


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 1), ("4096", 4096), ("256m", 1 << 28), ("256 MiB", 1 << 28), ("2G", 2 << 30)],
)
def test_sizes_are_given_as_spark_has_them(size: int | str, count: int) -> None:
    assert _bytes("state_memory", size) == count
