"""Arguments of `penstock.start` that are of another type than they should be, refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import BadRequest
from penstock.spark.sizes import read_size
from penstock.spark.start import _check_store


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"commit_interval": "1s"}, "commit_interval='1s': give a number of seconds"),
        ({"idle_after": "1s"}, "idle_after='1s': give a number of seconds"),
        *(
            ({"state_memory": size}, rf"state_memory={size!r}: give .* such as \"256m\"")
            for size in ("256 apples", "m", 0, -1, 1.5, "", "1mm", True, "-1m", "9" * 400)
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
    assert read_size("state_memory", size) == count


@pytest.mark.parametrize("size", ["12x", 0, -1, "", 1.5])
def test_explain_refuses_sizes_that_start_refuses(size: Any) -> None:
    with pytest.raises(BadRequest, match="give a number of bytes"):
        penstock.explain(None, state_memory=size)


@pytest.mark.parametrize("workers", [0, -1, True, "2"])
def test_explain_refuses_numbers_of_workers_that_start_refuses(workers: Any) -> None:
    with pytest.raises(BadRequest, match="give a whole number, at least 1"):
        penstock.explain(None, workers=workers)


@pytest.mark.parametrize("place", ["rocksdb:/data", "indexed:/data", "file:/data"])
def test_an_address_with_a_slash_too_few_is_no_folder_of_that_name(place: str) -> None:
    with pytest.raises(BadRequest, match="an address begins like"):
        _check_store(place, "0" * 32)


def test_a_path_may_have_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _check_store("./a:/b", "0" * 32) == f"{tmp_path}/a:/b"
    assert _check_store("a:b", "0" * 32) == f"{tmp_path}/a:b"
