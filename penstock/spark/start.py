"""`penstock.start`: a user's DataFrame becomes a running query.

Owns everything that is decided before the first task runs: the plan, refusals, where to read from,
the result's stream, and whether a query of this name goes on, is new, or must not. Nothing was
started if it raises.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.config import masked_uri
from penstock.errors import (
    BadRequest,
    GuardFailed,
    NotFound,
    PenstockError,
    PlanChanged,
    SchemaMismatch,
    Trimmed,
)
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.client import AsyncLog
from penstock.log.records import Guard, SetKey
from penstock.ops.kept_in_memory import told_in_memory
from penstock.plan import nodes as n
from penstock.plan.checks import check_sources
from penstock.plan.explain import explain
from penstock.plan.result_key import result_key
from penstock.plan.stages import Query
from penstock.protocol.names import (
    TaskId,
    check_query_name,
    coordinator_producer,
    layout_key,
    query_key,
    run_key,
)
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.dead_letters import DEAD_LETTER_DDL
from penstock.runtime.layout import first_layout, read_layout
from penstock.runtime.outputs import RESULT_WEIGHT, result_schema
from penstock.runtime.registry import (
    RegisteredQuery,
    decode_query,
    describe_change,
    encode_query,
)
from penstock.runtime.spec import (
    QuerySpec,
    Settings,
    Source,
    count_tasks,
    join_stages,
    rescaled_tasks,
)
from penstock.runtime.static_tables import fixed_tables
from penstock.runtime.worker import LogAddress
from penstock.runtime.writers import Writers, read_writers
from penstock.spark.cores import check_workers
from penstock.spark.default_names import choose_names
from penstock.spark.frontend import plan
from penstock.spark.jobs import WorkerJobs, ship_launch
from penstock.spark.notebook import tell_page
from penstock.spark.queries import queries
from penstock.spark.query import StreamingQuery
from penstock.spark.sizes import read_size
from penstock.state.stores.open import check_store
from penstock.stream.lanes import Lanes
from penstock.stream.metadata import METADATA
from penstock.stream.positions import Position
from penstock.stream.registration import check_name, stream_key
from penstock.stream.session import Log, connect

logger = logging.getLogger(__name__)

OnChange = Literal["refuse", "restart_from_earliest"]
#: Connections of queries that were given none, by target, token file and certificate authority:
#: they last as long as the program.
_LOGS: Final[dict[tuple[str | None, ...], Log]] = {}
#: Copies of a state beyond which more help nobody.
REPLICAS_MAX: Final = 3
_ON_CHANGE: Final = ("refuse", "restart_from_earliest")


def start(
    df: Any,
    *,
    to: str | None = None,
    name: str | None = None,
    mode: n.Mode = "update",
    workers: int | None = None,
    log: Log | None = None,
    start: Position | Mapping[str, Position] = "earliest",
    on_change: OnChange = "refuse",
    restart: bool = False,
    shared: bool = False,
    fail_on_data_loss: bool = True,
    commit_interval: float = 0.0,
    idle_after: float | None = None,
    dead_letter: str | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_interval: float = 10.0,
    state_memory: int | str | None = None,
    replicas: int = 0,
    balance: bool = False,
    trim_consumed: bool = False,
) -> StreamingQuery:
    """Run a streaming DataFrame in real time, exactly once. Returns once its workers are asked for.

    Args:
        df: A DataFrame over streams of the log (`Stream.df(spark)`), with or without watermarks.
        to: The stream of the result, made if there is none; by default called like the query. If
            the result can take rows back (update and complete mode), it has one more column,
            `_weight`: 1 for a row that is new, -1 for one that is no more (`result()` adds up).
        name: Started again under its name, on any machine, a query goes on where it was. By default
            it is called like `to`; with neither, after its plan, which then must not change.
        mode: append, update or complete, as in Structured Streaming.
        workers: Long-lived Spark tasks, a core each. By default one less than it has, at most 2.
        log: By default the log of the DataFrame's streams.
        start: Where a new query begins: "earliest", "latest", an LSN or a datetime; or by stream.
        on_change: If the plan differs from the registered one, "refuse" raises PlanChanged, and
            "restart_from_earliest" forgets all and computes again; `restart` does so anyway.
        shared: Write `to` although another query does; `StreamingQuery.result()` has its own rows.
        fail_on_data_loss: Compute nothing again of which a part was trimmed. False: what is left.
        commit_interval: Least seconds between two commits of a task; 0: as soon as the log can.
        idle_after: After so many seconds without rows a source holds back no watermark any more.
        dead_letter: A stream for rows that make the query fail. Without it they stop the query.
        checkpoints: Where state is saved: a path, or a URI such as "s3://…" or "redis://…", that
            all workers reach; by default beside the log, if that is a directory. "": nowhere.
        checkpoint_interval: Least number of seconds between two checkpoints of a task.
        state_memory: About how much of its state a worker keeps in memory, in bytes or as "256m";
            the rest is in scratch files on its local disk. By default all is in memory.
        replicas: Other workers that keep a copy of each task's state: a lost task goes on there at
            once, however large the state is, and tasks can be moved (`StreamingQuery.move`).
        balance: Let virtual nodes with many rows go to tasks that have less to do, by itself.
        trim_consumed: Trim the log now and then, below what any query or delivery still needs.

    Raises:
        Unsupported: The plan cannot run; it lists every reason.
        NotFound: A stream or a column does not exist.
        PlanChanged: A query of this name has another plan.
        SchemaMismatch: The result does not fit the stream `to`.
        Trimmed: It cannot begin anew, since a part of what it had read is gone.
        BadRequest: An argument makes no sense, or another query writes `to`.
    """
    settings = _settings(
        commit_interval, idle_after, checkpoints, checkpoint_interval, state_memory,
        dead_letter=dead_letter, replicas=replicas,
    )  # fmt: skip
    return start_query(
        df, settings, to=to, name=name, mode=mode, workers=workers, log=log, start=start,
        on_change=on_change, restart=restart, shared=shared, fail_on_data_loss=fail_on_data_loss,
        trims=trim_consumed, balances=balance,
    )  # fmt: skip


def _settings(
    commit_interval: float,
    idle_after: float | None,
    checkpoints: str | os.PathLike[str] | None,
    checkpoint_interval: float,
    state_memory: int | str | None,
    *,
    dead_letter: str | None,
    replicas: int,
) -> Settings:
    return Settings(
        commit_interval_ms=_ms("commit_interval", commit_interval),
        idle_after_ms=None if idle_after is None else _ms("idle_after", idle_after),
        checkpoint_interval_ms=_ms("checkpoint_interval", checkpoint_interval),
        checkpoints=_place("checkpoints", checkpoints), dead_letter=dead_letter, replicas=replicas,
        state_memory=None if state_memory is None else read_size("state_memory", state_memory),
    )  # fmt: skip


def start_query(
    df: Any,
    settings: Settings,
    *,
    to: str | None = None,
    name: str | None = None,
    mode: n.Mode = "update",
    workers: int | None = None,
    log: Log | None = None,
    start: Position | Mapping[str, Position] = "earliest",
    on_change: OnChange = "refuse",
    restart: bool = False,
    shared: bool = False,
    fail_on_data_loss: bool = True,
    trims: bool = False,
    balances: bool = False,
) -> StreamingQuery:
    """`start` for those who bring settings of their own: any commit protocol, for measurements.

    Of the settings, `checkpoints` is as `start` takes it: None means beside the log, "" nowhere.
    """
    if name is not None:
        check_query_name(name)
    if to is not None:
        check_name(to)
    if log is not None and not isinstance(log, Log):
        raise BadRequest(f"log={log!r}: give the log itself, penstock.connect({log!r})")
    if on_change not in _ON_CHANGE:
        raise BadRequest(f"on_change {on_change!r}: use one of {', '.join(_ON_CHANGE)}")
    planned = plan(df, mode=mode)
    check_sources(planned.query)
    name, to = choose_names(planned.query, mode, name=name, to=to)
    count = _count_workers(df.sparkSession, workers)
    log = log or _log_of(planned.query)
    place = log.default_checkpoints if settings.checkpoints is None else settings.checkpoints
    settings = replace(settings, checkpoints=_check_store(place, log.id))
    settings.protocol.check(settings)
    _check_replicas(settings, count)
    spec, id = _register(
        log, planned.query, name=name, to=to, mode=mode, workers=count, start=start,
        on_change=on_change, restart=restart, shared=shared, fail_on_data_loss=fail_on_data_loss,
        settings=settings, statics=planned.static_rows(),
    )  # fmt: skip
    _tell_idle_workers(spec, count)
    if settings.state_memory is not None:
        logger.info("query=%s %s", spec.name, told_in_memory(spec.query))
        if settings.state_memory < MIB:
            logger.warning(
                "query=%s keeps only %d bytes of its state in memory, and is slow: is a size such "
                'as state_memory="256m" meant?',
                spec.name, settings.state_memory,
            )  # fmt: skip
    return _launch(df.sparkSession, log, spec, id=id, workers=count, trims=trims, balances=balances)


def _check_replicas(settings: Settings, workers: int) -> None:
    if type(settings.replicas) is not int or not 0 <= settings.replicas <= REPLICAS_MAX:
        raise BadRequest(f"replicas={settings.replicas!r}: 0 to {REPLICAS_MAX} allowed")
    if settings.replicas >= workers:
        raise BadRequest(
            f"replicas={settings.replicas} with workers={workers}: a copy of a task's state is "
            f"kept by another worker, so use at least workers={settings.replicas + 1}"
        )
    if settings.replicas and not settings.protocol.logs_changes:
        raise BadRequest(f"replicas: {settings.protocol.name} keeps no changes to make copies from")


def _check_store(place: str | None, log_id: str) -> str | None:
    """Where checkpoints go, under a name that means the same in every process."""
    if not place:
        return None
    parts = urlsplit(place)
    is_masked = parts.query and masked_uri(place) != place
    if parts.username or parts.password or is_masked:
        raise BadRequest(
            "checkpoints: a secret is not part of the place, which the log keeps and shows; give "
            "it to the executors as their storage expects it"
        )
    if "://" not in place:
        if parts.scheme and parts.path.startswith("/"):
            raise BadRequest(
                f"checkpoints={place!r}: an address begins like {parts.scheme}://; a path with "
                "such a name begins with ./"
            )
        place = os.path.abspath(place)
    try:
        check_store(place, log_id)
    except (PenstockError, OSError, ValueError) as error:
        raise BadRequest(f"checkpoints={place!r} cannot be used: {error}") from error
    return place


def _launch(
    spark: Any, log: Log, spec: QuerySpec, *, id: str, workers: int, trims: bool, balances: bool
) -> StreamingQuery:
    address = LogAddress(log.target, log.token_file, log.tls_ca)
    # Executors run users' functions: what they are given opens this query and no other.
    launch = ship_launch(spark, address.narrowed(spec, secrets.token_hex(8)), spec)
    coordinator = CoordinatorThread(
        address, spec, id=id, workers=workers, trims=trims, balances=balances
    )
    jobs = WorkerJobs(
        spark, launch, query=spec.name, workers=workers, run_id=coordinator.run_id,
        is_over=lambda: coordinator.is_over, hellos=coordinator.hellos,
        on_lost=coordinator.job_lost,
        on_vacated=coordinator.vacate,
        on_hopeless=coordinator.fail,
        on_cores=coordinator.set_cores,
    )  # fmt: skip
    coordinator.when_rescaled(jobs.resize)
    jobs.start()
    query = StreamingQuery(log, spec, coordinator, jobs, id, queries(spark))
    tell_page(query)
    return query


def _place(name: str, place: str | os.PathLike[str] | None) -> str | None:
    if place is None:
        return None
    if not isinstance(place, str | os.PathLike):
        raise BadRequest(f"{name}={place!r}: give a path or a URI")
    return os.fspath(place)


def _ms(name: str, seconds: float) -> int:
    if not isinstance(seconds, int | float):
        raise BadRequest(f"{name}={seconds!r}: give a number of seconds")
    if not 0 <= seconds <= 86_400:
        raise BadRequest(f"{name} of {seconds} s: 0 to 86400 allowed")
    return round(seconds * 1000)


def _log_of(query: Query) -> Log:
    """The log that the DataFrame's streams were made with."""
    places = {
        tuple(_options_of(leaf).get(name) for name in ("log", "tokenfile", "tlsca"))
        for stage in query.stages
        for leaf in stage.inputs
        if isinstance(leaf, n.Scan)
    }
    if len(places) > 1:
        logs = sorted(str(where[0]) for where in places)
        raise BadRequest(f"the streams are in different logs ({logs}): use one")
    where = next(iter(places), (None, None, None))
    log = _LOGS.get(where)
    if log is None or log.is_closed:
        target, token_file, tls_ca = where
        log = _LOGS[where] = connect(target, token_file=token_file, tls_ca=tls_ca)
    return log


def _options_of(leaf: n.Scan) -> dict[str, str]:
    """Spark takes their names in any case."""
    return {name.lower(): value for name, value in leaf.options}


def _count_workers(spark: Any, asked: int | None) -> int:
    cores = int(spark.sparkContext.defaultParallelism)
    count = max(1, min(2, cores - 1)) if asked is None else asked
    check_workers(spark.sparkContext, count)
    return count


def _register(
    log: Log,
    query: Query,
    *,
    name: str,
    to: str,
    mode: str,
    workers: int,
    start: Position | Mapping[str, Position],
    on_change: OnChange,
    restart: bool = False,
    shared: bool,
    fail_on_data_loss: bool,
    settings: Settings,
    statics: Mapping[int, pa.Table],
) -> tuple[QuerySpec, str]:
    """The spec to run: of the version that is registered, or of a new one."""
    schemas = {stream: _check_columns(log, query, stream) for stream in query.streams}
    spreads = {stream: log.stream(stream).spread for stream in query.streams}
    if to in query.streams:
        raise BadRequest(f"the query reads {to}: write its result to another stream, with to=")
    wanted = RegisteredQuery(
        name=name, id=str(uuid.uuid4()), version=_unused_version(log, name), plan=explain(query),
        mode=mode, to=to,
        starts=_resolve_starts(log, query, start),
        tasks=list(_tasks(query, workers, spreads, settings)),
        created_ms=time.time_ns() // 1_000_000, checkpoints=settings.checkpoints,
        protocol=settings.protocol.name, shares_sources=settings.protocol.shares_sources,
        result_key=list(result_key(query)), fixed_tables=fixed_tables(query, statics),
    )  # fmt: skip
    chosen, to_schema = _choose(
        log, query, wanted, settings, on_change=on_change, restart=restart, shared=shared,
        fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    sources = {
        stream: Source(schemas[stream], Lsn(chosen.starts[stream]), spreads[stream].count)
        for stream in query.streams
    }
    spec = QuerySpec(
        name=name, version=chosen.version, fingerprint=chosen.fingerprint, query=query,
        statics=statics, sources=sources, to=to, to_schema=to_schema, tasks=tuple(chosen.tasks),
        settings=settings, shares_sources=chosen.shares_sources,
        lanes={name: log.stream(name).spread for name in (to, settings.dead_letter) if name},
    )  # fmt: skip
    return spec, chosen.id


def _tasks(
    query: Query, workers: int, spreads: Mapping[str, Lanes], settings: Settings
) -> tuple[int, ...]:
    lanes = {stream: spread.count for stream, spread in spreads.items()}
    counts = count_tasks(query, workers, lanes, settings.protocol)
    if not settings.joins_stages:
        return counts
    return join_stages(query, counts, spreads if settings.protocol.shares_sources else {})


def _choose(
    log: Log,
    query: Query,
    wanted: RegisteredQuery,
    settings: Settings,
    *,
    on_change: OnChange,
    restart: bool,
    shared: bool,
    fail_on_data_loss: bool,
) -> tuple[RegisteredQuery, pa.Schema]:
    """The version to run, registered now or before, and the schema of its result's stream.

    Nothing was made or changed if it raises because of what is registered.
    """
    key = query_key(wanted.name)
    while True:
        writers = read_writers(log.client, wanted.to)
        value = log.client.get(key)
        registered = None if value is None else decode_query(wanted.name, value.data)
        restarts = False
        if registered is None:
            writers.check_new(wanted.name, shared=shared)
        elif restart or _must_restart(registered, wanted, on_change):
            restarts = True
            if wanted.to in (registered.to, *registered.former_to):
                writers.check_restart(wanted.name)
            else:
                writers.check_new(wanted.name, shared=shared)
            starts = _earliest(log, registered, wanted, fail_on_data_loss=fail_on_data_loss)
            wanted = replace(wanted, starts=starts)
        to_schema = _ensure_streams(log, query, wanted.to, settings)
        try:
            if registered is not None and value is not None:
                if restarts:
                    registered = _restart(log, value.data, registered, wanted, writers)
                return registered, to_schema
            log.client.append(
                [],
                guards=[Guard(key, None), writers.guard],
                sets=[SetKey(key, encode_query(wanted)), writers.join(wanted)],
            )
            return wanted, to_schema
        except GuardFailed:
            if log.client.get(key) != value:
                raise BadRequest(
                    f"query {wanted.name} is being started by another driver now"
                ) from None
            # Another query has become a writer of the stream: look again.


def _tell_idle_workers(spec: QuerySpec, workers: int) -> None:
    """Workers beyond the tasks of a query hold cores for nothing: this is not said elsewhere."""
    tasks = sum(rescaled_tasks(spec, workers))
    if workers > tasks:
        logger.warning(
            "query=%s has %d tasks for %d workers: the others hold a core each and do nothing. One "
            "that was registered by an older program keeps its tasks; with restart=True it gets "
            "others, and computes everything again",
            spec.name, tasks, workers,
        )  # fmt: skip


def _must_restart(
    registered: RegisteredQuery, wanted: RegisteredQuery, on_change: OnChange
) -> bool:
    """Whether the plan is another one; raises PlanChanged if that is not wanted."""
    difference = describe_change(registered, wanted)
    if difference is not None and on_change == "refuse":
        raise PlanChanged(
            f"query {wanted.name} exists with another plan, whose state this one cannot take over. "
            "Start it under another name and with another `to=`, so that both results stand; or "
            'with on_change="restart_from_earliest", to forget the old result and compute '
            f"everything again.\n{difference}"
        )
    return difference is not None


def _unused_version(log: Log, name: str) -> int:
    """One that no task of a query of this name ever had: a name may be used again after a removal.

    Every run claims the coordinator's producer, so a version never is above its run's instance.
    """
    run = log.client.get(run_key(name))
    return 1 if run is None else 1 + int(run.data)


def _ensure_streams(log: Log, query: Query, to: str, settings: Settings) -> pa.Schema:
    """Make the streams that the query writes; returns the schema of the result's."""
    if RESULT_WEIGHT in query.schema.names:
        raise BadRequest(f"a column of the result is called {RESULT_WEIGHT}: rename it")
    if settings.dead_letter in (to, *query.streams):
        raise BadRequest(
            f"dead_letter {settings.dead_letter} is a stream that the query reads or writes: "
            "name another one, it is made if there is none"
        )
    schema = result_schema(query.schema, changing=query.stages[-1].changing)
    try:
        result = log.create_stream(to, schema)
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"the result does not fit: {error}. Write it to another stream, or select the "
            "stream's columns"
        ) from None
    if settings.dead_letter is not None:
        log.create_stream(settings.dead_letter, DEAD_LETTER_DDL)
    return result.schema


def _earliest(
    log: Log, registered: RegisteredQuery, wanted: RegisteredQuery, *, fail_on_data_loss: bool
) -> dict[str, int]:
    """Where a query that begins anew begins; Trimmed if it had read what stood before."""
    starts = {stream: int(log.stream(stream).resolve("earliest")) for stream in wanted.starts}
    missing = []
    for stream, start in starts.items():
        value = log.client.get(stream_key(stream))
        if value is None or stream not in registered.starts:
            continue
        # No row of a stream is older than the stream itself, or than its new beginning.
        first = max(registered.starts[stream], value.lsn)
        if start > first:
            missing.append(f"{stream} (LSN {first} to {start - 1})")
    if not missing:
        return starts
    what = f"the log was trimmed, and with it what the query had read of {', '.join(missing)}"
    if fail_on_data_loss:
        raise Trimmed(
            f"query {wanted.name} cannot compute everything again: {what}. Its result so far "
            "stands: keep it, and start the new plan under another name and with another `to=`; "
            "or say fail_on_data_loss=False to forget it and compute from what is left"
        )
    logger.warning("query=%s begins anew without all of its input: %s", wanted.name, what)
    return starts


def _restart(
    log: Log,
    value: bytes,
    registered: RegisteredQuery,
    wanted: RegisteredQuery,
    writers: Writers,
) -> RegisteredQuery:
    """Register the next version; what still runs of the last one writes no more.

    The result begins anew in the same step: a driver that dies before it has changed nothing. In a
    stream that the query never wrote there is nothing of it: whatever that holds stays.
    """
    former = dict.fromkeys([*registered.former_to, registered.to])
    chosen = replace(
        wanted, id=registered.id, version=registered.version + 1,
        former_to=[name for name in former if name != wanted.to],
    )  # fmt: skip
    _fence(log, registered)
    key = query_key(registered.name)
    guards = [Guard(key, value), writers.guard]
    sets = [SetKey(key, encode_query(chosen)), writers.join(chosen)]
    if wanted.to in former:
        log.restart_stream(wanted.to, guards=guards, sets=sets)
    else:
        log.client.append([], guards=guards, sets=sets)
    return chosen


def _fence(log: Log, query: RegisteredQuery) -> None:
    """Nothing that still runs of this version writes from here on: first its coordinator."""

    async def claim_all(client: AsyncLog) -> None:
        await client.claim(coordinator_producer(query.name))
        value = await client.get(layout_key(query.name))  # after that, nobody changes it
        found = None if value is None else read_layout(value.data, query.version)
        layout = found or first_layout(query.tasks)
        for stage, shares in enumerate(layout.stages):
            for share in shares:
                task = TaskId(query.name, query.version, stage, share.index)
                await client.claim(task.producer)

    log.client.run(claim_all)


def _check_columns(log: Log, query: Query, stream: str) -> pa.Schema:
    """The stream's schema, which must have the columns that the query reads, as it reads them."""
    schema = log.stream(stream).schema
    for stage in query.stages:
        for leaf in stage.inputs:
            if not isinstance(leaf, n.Scan) or leaf.stream != stream:
                continue
            for name, field in zip(leaf.columns, leaf.schema, strict=True):
                index = schema.get_field_index(name)
                if index < 0 and METADATA.get(name) == field.type:
                    continue
                if index < 0:
                    raise NotFound(
                        f"stream {stream} has no column {name}: it has {', '.join(schema.names)}"
                    )
                if schema.field(index).type != field.type:
                    raise BadRequest(
                        f"column {name} of stream {stream} is {schema.field(index).type}, the "
                        f"query reads it as {field.type}: use Stream.df(spark)"
                    )
    return schema


def _resolve_starts(
    log: Log, query: Query, start: Position | Mapping[str, Position]
) -> dict[str, int]:
    if isinstance(start, Mapping):
        missing = sorted(set(start) - set(query.streams))
        if missing:
            raise BadRequest(
                f"start names {', '.join(missing)}, but the query reads {', '.join(query.streams)}"
            )
        chosen = {stream: start.get(stream, "earliest") for stream in query.streams}
    else:
        chosen = dict.fromkeys(query.streams, start)
    starts = {
        stream: int(log.stream(stream).resolve(position)) for stream, position in chosen.items()
    }
    tail = log.bounds().tail
    for stream, lsn in starts.items():
        if lsn > tail:
            raise BadRequest(f"start of {stream} at LSN {lsn}: the log ends at {tail}")
    return starts
