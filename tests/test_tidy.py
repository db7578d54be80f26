"""Style as a test: the sans-IO rule, the order of imports between packages, sizes and names.

Each rule is a function from a parsed module to its violations, and each is shown to fail on a bad
snippet, so that a rule which has gone blind is noticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "penstock"

#: What decides: no clock, no randomness, no I/O, no threads. Folders end in a slash.
PURE = (
    "errors.py",
    "ids.py",
    "limits.py",
    "plain_text.py",
    "wire/",
    "log/api.py",
    "log/records.py",
    "log/group_format.py",
    "log/record_format.py",
    "log/block_format.py",
    "log/core/",
    "log/meta/api.py",
    "log/meta/paths.py",
    "log/replication/",
    "log/client/appender_core.py",
    "log/proxy/claims.py",
    "log/client/packing.py",
    "log/serving/openmetrics.py",
    "log/serving/query_metrics.py",
    "protocol/",
    "stream/batches.py",
    "stream/columns.py",
    "stream/ddl.py",
    "stream/json_columns.py",
    "stream/json_lines.py",
    "stream/lanes.py",
    "stream/metadata.py",
    "stream/registration.py",
    "stream/rows.py",
    "stream/schema.py",
    "stream/showing.py",
    "stream/values.py",
    *(
        f"state/{name}.py"
        for name in (
            "api",
            "changelog",
            "checkpoint_format",
            "columns",
            "equal_rows",
            "event_time",
            "int_index",
            "key_index",
            "keys",
            "memory",
            "memory_row_set",
            "memory_table",
            "room",
            "stores/api",
            "stores/bytes_api",
            "stores/collecting",
            "stores/commit_format",
            "stores/entry_index",
            "stores/row_bytes",
        )
    ),
    "plan/",
    "ops/",
    "runtime/assignment.py",
    "runtime/balancing.py",
    "runtime/control.py",
    "runtime/coordinator_core.py",
    "runtime/dead_letters.py",
    "runtime/edges.py",
    "runtime/graph.py",
    "runtime/histogram.py",
    "runtime/inputs.py",
    "runtime/meter.py",
    "runtime/node_rates.py",
    "runtime/outputs.py",
    "runtime/progress.py",
    "runtime/registry.py",
    "runtime/report_size.py",
    "runtime/row_merge.py",
    "runtime/run_facts.py",
    "runtime/spec.py",
    "runtime/static_tables.py",
    "runtime/taken.py",
    "runtime/task_core.py",
    "runtime/task_rates.py",
    "runtime/task_report.py",
    "runtime/time_text.py",
    "runtime/trials.py",
    "runtime/commit.py",
    "runtime/commit_protocol.py",
    "runtime/trim_rule.py",
    "delivery/acks.py",
    "delivery/api.py",
    "delivery/fold.py",
    "delivery/letters.py",
    "delivery/messages.py",
    "delivery/player_core.py",
    "delivery/remote/address.py",
    "delivery/remote/row_parts.py",
    "delivery/remote/seat.py",
    "delivery/remote/shard_format.py",
    "delivery/routing.py",
    "delivery/status.py",
    "delivery/target_queue.py",
    *(
        f"delivery/targets/{name}.py"
        for name in (
            "changes",
            "columns",
            "digests",
            "existing",
            "memory",
            "positions",
            "postgres_format",
            "postgres_sql",
            "sql",
            "strictness",
        )
    ),
    "connector/items.py",
    "connector/partitions.py",
    "gateway/description.py",
    "gateway/keys.py",
    "gateway/problems.py",
    "gateway/replies.py",
    "ui/card.py",
    "ui/tickets.py",
    "ui/view/",
)
IMPURE_MODULES = {
    "asyncio",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}
IMPURE_CALLS = {"open", "print", "input", "hash", "id", "now", "utcnow", "today"}
UNSAFE_MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load"}

#: A package imports itself and what stands above it. The longest matching prefix counts.
LAYERS = (
    ("errors", "ids", "limits", "config", "plain_text"),
    ("log.directories", "log.keep_alive"),
    ("log.records", "log.group_format", "log.record_format", "log.block_format", "log.api"),
    ("wire",),
    ("log.core",),
    ("log.replication",),
    ("log.meta",),
    ("log.storage",),
    ("log.pairing", "log.handshake"),
    ("protocol.names", "protocol.pulses"),
    ("log.serving",),
    ("log.node",),
    ("log.server",),
    ("log.proxy",),
    ("log.client",),
    ("log.embedded", "log.local_cluster"),
    ("protocol",),
    ("state.keys",),
    ("stream",),
    ("state.api", "state.room"),
    ("state",),
    ("plan",),
    ("ops",),
    ("runtime",),
    ("delivery",),
    ("gateway",),
    # What the command line says of the log, and the page as well.
    (
        *(
            f"cli.{name}"
            for name in ("output", "query_asks", "rescaling", "query_facts", "delivery_facts")
        ),
        *(f"cli.cluster_{name}" for name in ("facts", "target")),
        *(f"cli.explain_{name}" for name in ("delivery", "entry", "task")),
    ),
    ("ui",),
    ("connector",),
    ("spark",),
    ("testing",),
    ("cli",),
)
#: What is not installed with Penstock: measurements and tests import it, never the other way round.
OUTSIDE = ("penstock_bench", "harness", "simulation")
#: They stand beside each other, and know nothing of each other.
STRANGERS = (("log.server", "log.client"), ("log.storage", "log.client"))
#: Third parties that have one home.
HOMES = {
    "pyarrow": (
        "stream/",
        "log/storage/cold.py",
        "cli/stream.py",
        "cli/demo_bids.py",
        "state/",
        "plan/",
        "ops/",
        "runtime/",
        "delivery/",
        "gateway/",
        "connector/",
        "spark/",
        "testing/",
    ),
    "click": ("cli/",),
    "rich": ("cli/",),
    "uvloop": (
        "log/server/",
        "log/node/",
        "log/proxy/",
        "log/client/blocking.py",
        "runtime/host.py",
        "runtime/worker.py",
        "runtime/coordinator_thread.py",
        "delivery/player_thread.py",
        "delivery/remote/frames_server.py",
        "delivery/remote/grpc_server.py",
        "gateway/server.py",
        "ui/beside.py",
        "ui/server.py",
    ),
    "starlette": ("gateway/", "ui/"),
    "uvicorn": ("gateway/http_server.py",),
    "kazoo": ("log/meta/zookeeper.py",),
    "psycopg": tuple(
        f"delivery/targets/postgres{part}.py" for part in ("", "_connection", "_rows")
    ),
    "duckdb": ("delivery/targets/duckdb.py",),
    "redis": ("state/stores/redis_engine.py",),
    "rocksdict": ("state/stores/rocksdb_engine.py",),
    "sqlite3": ("delivery/targets/sqlite.py", "delivery/targets/sqlite_rows.py"),
    "grpc": ("delivery/remote/grpc_host.py", "delivery/remote/grpc_server.py"),
    "google": ("delivery/remote/grpc_messages.py",),
    "pyspark": (
        "connector/",
        "spark/",
        "cli/plan.py",
        "cli/demo_bids.py",
        "testing/",
        # Where a user's Python function runs, with pyspark's own conversions.
        "ops/group_state.py",
        "ops/python_eval.py",
        "ops/table_functions.py",
        "ops/map_batches.py",
        "ops/with_state.py",
        "ops/processor_handle.py",
    ),
    "py4j": ("spark/walker.py", "spark/failures.py", "spark/commands.py"),
}
DRAWERS = {"utils", "util", "helpers", "common", "misc", "base", "manager"}
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
WIDTH_MAX = 100


@dataclass(frozen=True)
class Module:
    """A parsed source file; `path` is relative to the package."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)[0]

    @property
    def nodes(self) -> list[ast.AST]:
        return _parsed(self.text)[1]

    @property
    def imports(self) -> list[tuple[int, str]]:
        return _imported(self.text)

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@lru_cache(maxsize=1)  # one file after the other: all trees would fill the memory
def _parsed(text: str) -> tuple[ast.Module, list[ast.AST]]:
    tree = ast.parse(text)
    return tree, list(ast.walk(tree))


@lru_cache(maxsize=1)
def _imported(text: str) -> list[tuple[int, str]]:
    return list(imported(_parsed(text)[1]))


def modules() -> list[Module]:
    return [
        Module(path.relative_to(PACKAGE).as_posix(), path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def imported(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every imported module, `TYPE_CHECKING` blocks left out: they are not there at run time."""
    skipped = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and dotted_name(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as it is written; nothing for what is more than a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def is_pure(path: str) -> bool:
    return any(path.startswith(p) if p.endswith("/") else path == p for p in PURE)


# ---- rules


def impurities(module: Module) -> list[str]:
    if not is_pure(module.path):
        return []
    found = [
        f"{line}: a pure module imports {name}"
        for line, name in module.imports
        if name.split(".")[0] in IMPURE_MODULES
    ]
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in IMPURE_CALLS and not (name == "open" and isinstance(called, ast.Attribute)):
                found.append(f"{node.lineno}: a pure module calls {name}")
    return found


def loops_over_sets(module: Module) -> list[str]:
    """The order of a set is not defined: the same seed must give the same trace."""
    if not is_pure(module.path):
        return []
    found = []
    for node in module.nodes:
        if isinstance(node, ast.For):
            source = node.iter
            called = isinstance(source, ast.Call) and dotted_name(source.func)
            if isinstance(source, ast.Set | ast.SetComp) or called in ("set", "frozenset"):
                found.append(f"{node.lineno}: a pure module loops over a set")
    return found


def layer_of(dotted: str) -> int | None:
    name = dotted.removeprefix("penstock.")
    best: tuple[int, int] | None = None
    for number, names in enumerate(LAYERS):
        for prefix in names:
            if name == prefix or name.startswith(prefix + "."):
                if best is None or len(prefix) > best[0]:
                    best = (len(prefix), number)
    return None if best is None else best[1]


def upward_imports(module: Module) -> list[str]:
    own = layer_of(module.dotted)
    if own is None:
        own = len(LAYERS) - 1  # the package itself
    found = []
    for line, name in module.imports:
        if name.split(".")[0] in OUTSIDE:
            found.append(f"{line}: {module.dotted} imports {name}, which is not installed with it")
        other = layer_of(name) if name.startswith("penstock.") else None
        if other is not None and other > own:
            found.append(f"{line}: {module.dotted} imports {name}, which stands below it")
    return found


def stranger_imports(module: Module) -> list[str]:
    found = []
    for line, name in module.imports:
        for one, other in STRANGERS:
            ends = (f"{module.dotted}.", f"{name.removeprefix('penstock.')}.")
            for here, there in ((one, other), (other, one)):
                if ends[0].startswith(here + ".") and ends[1].startswith(there + "."):
                    found.append(f"{line}: {module.dotted} imports {name}, a stranger")
    return found


def homeless_imports(module: Module) -> list[str]:
    found = []
    for line, name in module.imports:
        homes = HOMES.get(name.split(".")[0])
        if homes is not None and not any(module.path.startswith(home) for home in homes):
            found.append(f"{line}: {name} has no home in {module.path}")
    return found


def unsafe_code(module: Module) -> list[str]:
    found = [
        f"{line}: {name} runs code from data"
        for line, name in module.imports
        if name.split(".")[0] in UNSAFE_MODULES
    ]
    for node in module.nodes:
        if isinstance(node, ast.Call) and (name := dotted_name(node.func)) in UNSAFE_CALLS:
            found.append(f"{node.lineno}: {name} runs code from data")
    return found


def long_things(module: Module) -> list[str]:
    lines = module.text.splitlines()
    found = [
        f"{number}: {len(line)} columns"
        for number, line in enumerate(lines, 1)
        if len(line) > WIDTH_MAX
    ]
    if len(lines) > FILE_LINES_MAX:
        found.append(f"1: {len(lines)} lines, split it by noun")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{node.lineno}: {node.name} has {length} lines")
    return found


def names_and_docstrings(module: Module) -> list[str]:
    found = []
    if Path(module.path).stem in DRAWERS:
        found.append("1: a drawer, not a noun")
    if not ast.get_docstring(module.tree):
        found.append("1: no docstring")
    return found


RULES: tuple[Callable[[Module], list[str]], ...] = (
    impurities,
    loops_over_sets,
    upward_imports,
    stranger_imports,
    homeless_imports,
    unsafe_code,
    long_things,
    names_and_docstrings,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Callable[[Module], list[str]]) -> None:
    problems = all_problems()[rule]

    assert not problems, "\n".join(problems)


@cache
def all_problems() -> dict[Callable[[Module], list[str]], list[str]]:
    """By rule: every file is read once."""
    problems: dict[Callable[[Module], list[str]], list[str]] = {rule: [] for rule in RULES}
    for module in modules():
        for rule in RULES:
            problems[rule] += [f"{module.path}:{found}" for found in rule(module)]
    return problems


BAD = {
    impurities: [
        Module("log/core/x.py", '"""x."""\nimport time\n'),
        Module("wire/x.py", '"""x."""\nprint(1)\n'),
        Module("stream/rows.py", '"""x."""\nfrom datetime import datetime\ndatetime.now()\n'),
    ],
    loops_over_sets: [Module("log/core/x.py", '"""x."""\nfor i in {1, 2}:\n    pass\n')],
    upward_imports: [
        Module("log/core/x.py", '"""x."""\nfrom penstock.log.storage.disk import Disk\n'),
        Module("log/server/x.py", '"""x."""\nimport harness.disk\n'),
        Module("log/client/x.py", '"""x."""\nfrom penstock.stream.rows import to_batches\n'),
        Module("__init__.py", '"""x."""\nfrom harness.disk import MemoryDisk\n'),
    ],
    stranger_imports: [
        Module("log/client/x.py", '"""x."""\nfrom penstock.log.server.owner import LogOwner\n'),
        Module("log/server/x.py", '"""x."""\nimport penstock.log.client\n'),
    ],
    homeless_imports: [
        Module("log/core/x.py", '"""x."""\nimport pyarrow as pa\n'),
        Module("stream/x.py", '"""x."""\nfrom pyspark.sql import SparkSession\n'),
    ],
    unsafe_code: [
        Module("stream/x.py", '"""x."""\nimport pickle\n'),
        Module("cli/x.py", '"""x."""\neval("1")\n'),
        Module("cli/x.py", '"""x."""\nyaml.load(text)\n'),
    ],
    long_things: [
        Module("x.py", '"""x."""\n' + "x = 1  #" + " " * 100 + "\n"),
        Module("x.py", '"""x."""\n' + "x = 1\n" * 801),
        Module("x.py", '"""x."""\ndef f():\n' + "    x = 1\n" * 71),
    ],
    names_and_docstrings: [Module("utils.py", '"""x."""\n'), Module("noun.py", "x = 1\n")],
}


@pytest.mark.parametrize(
    ("rule", "module"),
    [(rule, module) for rule, bad in BAD.items() for module in bad],
    ids=lambda value: getattr(value, "__name__", "bad"),
)
def test_the_rule_sees_a_violation(rule: Callable[[Module], list[str]], module: Module) -> None:
    assert rule(module)


def test_every_rule_was_seen_to_fail() -> None:
    assert set(BAD) == set(RULES)


def wrong_map(docstring: str, names: set[str]) -> list[str]:
    """Names that a package's docstring leaves out, or that it has and nobody else."""
    rows = re.findall(r"^((?:[a-z_0-9]+(?:\.py|/)(?:, )?)+) ", docstring, re.MULTILINE)
    told = {name for row in rows for name in row.split(", ")}
    missing = [f"{name} is not in the map" for name in sorted(names - told)]
    return missing + [f"{name} is in the map only" for name in sorted(told - names)]


def test_every_package_says_what_its_files_are_for() -> None:
    problems = []
    packages = [PACKAGE, *(ROOT / "tests").glob("*/"), *(ROOT / "bench").glob("*/")]
    found = sorted(init for place in packages for init in place.rglob("__init__.py"))
    for init in (init for init in found if ".venv" not in init.parts):  # peers have their own
        files = {path.name for path in init.parent.glob("*.py") if path.name[:2] != "__"}
        folders = {f"{path.parent.name}/" for path in init.parent.glob("*/__init__.py")}
        docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
        place = init.relative_to(ROOT)
        problems += [f"{place}: {found}" for found in wrong_map(docstring, files | folders)]

    assert not problems, "\n".join(problems)


def test_a_map_with_a_name_too_few_or_too_many_is_seen() -> None:
    assert wrong_map("a.py, c.py  this\nb/  as in z.py", {"a.py", "b/", "c.py"}) == []
    assert wrong_map("a.py  this", {"a.py", "b/"}) == ["b/ is not in the map"]
    assert wrong_map("a.py  this\nc.py  gone", {"a.py"}) == ["c.py is in the map only"]


def test_the_tests_keep_to_the_same_sizes() -> None:
    problems = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        module = Module(path.relative_to(ROOT).as_posix(), path.read_text())
        problems += [f"{module.path}:{found}" for found in long_things(module)]

    assert not problems, "\n".join(problems)


def test_every_pure_path_exists() -> None:
    assert all((PACKAGE / path).exists() for path in PURE)


def test_test_files_have_names_of_their_own() -> None:
    """Files outside of a package share one name space."""
    names = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "conftest.py" and not (path.parent / "__init__.py").exists()
    ]

    assert len(names) == len(set(names))
