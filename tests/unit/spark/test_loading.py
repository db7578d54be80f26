"""What workers load aside, in processes of their own: this one has loaded it all."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.cloudpickle import dumps

from penstock.spark.jobs import make_work

JOIN = """
import os, pickle, sys, threading
from penstock.spark import loading

def note():
    global mine
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    load()

load, loading.load = loading.load, note
before = os.getpriority(os.PRIO_PROCESS, 0)
work = pickle.loads(sys.stdin.buffer.read())
assert "penstock.runtime.worker" not in sys.modules, "as it is read, it loads nothing"
try:
    work(iter([0]))
except AssertionError:
    pass  # Spark runs no task here
print(before, os.getpriority(os.PRIO_PROCESS, 0), mine)
loaded = set(sys.modules)
from penstock.ops import aggregates, functions
aggregates.load(), functions.load()
assert set(sys.modules) == loaded, "the first task would have loaded more"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread is nicer than its process")
def test_who_joins_loads_in_a_thread_that_yields_and_works_in_one_that_does_not() -> None:
    work = dumps(make_work(SimpleNamespace(value=b""), joins=True))
    ran = subprocess.run(
        [sys.executable, "-c", JOIN], input=work, capture_output=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr.decode()
    before, after, loading = map(int, ran.stdout.split())
    assert before == after == os.getpriority(os.PRIO_PROCESS, 0)
    assert loading == min(19, before + 10)
