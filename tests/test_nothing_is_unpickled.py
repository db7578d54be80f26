"""Nothing that is read from a log, a checkpoint, a store or the network is ever unpickled.

Goal: what the threat model says of functions. Method: every place of the package that could turn
bytes into code is found in its syntax, and must be one of the few that are named here, with what
they read: pickles that Spark itself carries from a driver to its own processes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "penstock"

#: By file and function: what it loads, none of which comes from a log.
ALLOWED = {
    # What this driver has put into a broadcast variable of its own, read by its own Spark task.
    ("spark/jobs.py", "work"): "launch.value",
    # What a table function of the user's own DataFrame said of itself, in the driver's Spark.
    ("spark/commands.py", "load_pickle"): "bytes(pickled)",
    # Functions of the user's own DataFrame, as the driver's Spark holds them.
    ("spark/commands.py", "load_command"): "bytes(command), loaded.value",
}
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
NAMES = {"read_pickle", "unpickle", "exec", "eval"}


def loads(tree: ast.Module) -> list[tuple[str, str]]:
    """Function and text of whatever may run what it reads."""
    found: list[tuple[str, str]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Import):
            found.extend((function, a.name) for a in node.names if a.name.split(".")[0] in MODULES)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append((function, node.module or ""))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append((function, "allow_pickle"))
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in ("loads", "load"):
                owner = ast.unparse(called.value)
                # States, checkpoints and readers have a `load`, too: it is known by its owner.
                is_serializer = "erializer" in owner or "ickle" in owner
                if is_serializer or (called.attr == "loads" and owner != "json"):
                    found.append((function, ast.unparse(node.args[0])))
            name = called.id if isinstance(called, ast.Name) else ""
            name = called.attr if isinstance(called, ast.Attribute) else name
            if name in NAMES:
                found.append((function, ast.unparse(node)))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def test_bytes_become_code_only_where_spark_carries_them_to_its_own_processes() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), function, text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for function, text in loads(ast.parse(path.read_text()))
    }
    allowed = {
        (path, function, text)
        for (path, function), texts in ALLOWED.items()
        for text in texts.split(", ")
    }

    assert found == allowed


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f(entry):\n    return CPickleSerializer().loads(entry.payload)",
        "serializer.load(stream)",
        "pd.read_pickle(path)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(code)",
        "marshal.loads(data)",
    ],
)
def test_other_ways_are_noticed(code: str) -> None:
    assert loads(ast.parse(code))
