"""The daemon that `penstock.tuned` lets Spark fork its Python workers from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def test_workers_have_penstock_loaded_and_random_numbers_of_their_own(
    spark: Any, tmp_path: Path
) -> None:
    place = str(tmp_path)

    def look(_: Iterator[int]) -> Iterator[tuple[int, bool, float]]:
        import os
        import sys
        import time

        is_loaded = {"penstock.runtime.worker", "pandas", "pyarrow"} <= sys.modules.keys()
        import numpy as np

        open(f"{place}/{os.getpid()}", "w").close()
        deadline = time.monotonic() + 60
        while len(os.listdir(place)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # until another one is at work: none takes all of the tasks
        yield os.getpid(), is_loaded, float(np.random.random())

    found = spark.sparkContext.parallelize(range(3), 3).mapPartitions(look).collect()

    pids, are_loaded, numbers = zip(*found, strict=True)
    assert all(are_loaded)
    assert len(set(pids)) > 1
    assert len(set(numbers)) == 3
