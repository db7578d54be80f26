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
import os, pickle, sys, threading, time
from penstock.spark import loading

def note():
    global loader, mine
    loader = threading.get_native_id()
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    load()

def living():
    # Threads, of libraries too; the one that loaded may still be on its way out.
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/self/task/{loader}") and time.monotonic() < until:
        time.sleep(0.01)
    return os.listdir("/proc/self/task")

load, loading.load = loading.load, note
before = os.getpriority(os.PRIO_PROCESS, 0)
if "forbidden" in sys.argv:
    def forbid(*_):
        raise PermissionError(1, "Operation not permitted")
    os.setpriority = forbid
work = pickle.loads(sys.stdin.buffer.read())
assert "penstock.runtime.worker" not in sys.modules, "as it is read, it loads nothing"
try:
    work(iter([0]))
except AssertionError:
    pass  # Spark runs no task here
left = [os.getpriority(os.PRIO_PROCESS, int(one)) for one in living()]
print(before, max(left), mine)
loaded = set(sys.modules)
from penstock.ops import aggregates, functions
aggregates.load(), functions.load()
assert set(sys.modules) == loaded, "the first task would have loaded more"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread is nicer than its process")
@pytest.mark.parametrize("how", ["allowed", "forbidden"])
def test_who_joins_loads_in_a_thread_that_yields_and_nobody_else_does(how: str) -> None:
    work = dumps(make_work(SimpleNamespace(value=b""), joins=True))
    # As many threads of libraries as there may be; Spark allows one.
    ran = subprocess.run(
        [sys.executable, "-c", JOIN, how], input=work, capture_output=True, check=False,
        timeout=60, env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    before, after, loading = map(int, ran.stdout.split())
    assert before == after == os.getpriority(os.PRIO_PROCESS, 0)
    assert loading == (min(19, before + 10) if how == "allowed" else before)
    assert b"Traceback" not in ran.stderr
