"""What is wrong now, in words, and what to do about it: the first line of the page. Pure.

Laws: what is not known is no problem, and never good news either: it is said where the figure
stands. The worst comes first. Of a query whose driver is not heard, its old figures blame nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.ui.view.facts import Facts, keys, named, number, shown, sub, text, texts, things
from penstock.ui.view.figures import span_text
from penstock.ui.view.graph import HOT_SHARE, LATE_SECONDS
from penstock.ui.view.history import Counters
from penstock.ui.view.queries import (
    LONG_STEP_MS,
    name_of,
    progress_of,
    set_aside,
    step_ms,
    task_counter,
)

#: Facts that are older are not of now.
STALE_MS: Final = 3_000.0
#: One fsync in a hundred that takes so long makes everything wait.
SLOW_FSYNC_MS: Final = 500.0
#: A task that is held up for so much of its time waits for the log more than it works.
HELD_UP_SHARE: Final = 0.5
#: A task that takes so many times its share of the rows has a key that is in most of them.
SKEW: Final = 2.5
#: Below so many rows a second, shares say nothing.
SKEW_ROWS: Final = 20.0
PROBLEMS_SHOWN: Final = 50
_ORDER: Final = {"down": 0, "bad": 1, "warn": 2}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong."""

    #: "down": nothing goes on; "bad": something does not; "warn": something is slow.
    level: str
    what: str
    do: str
    query: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"level": self.level, "what": self.what, "do": self.do, "query": self.query}


def find_trouble(facts: Facts, counters: Counters) -> list[Trouble]:
    """The worst first."""
    found = [
        *_of_log(facts),
        *(one for query in things(facts, "queries") for one in _of_query(query, counters)),
        *_of_deliveries(facts),
        *_of_cluster(facts),
    ]
    return sorted(found, key=lambda one: _ORDER[one.level])


def age_ms(facts: Facts, now_ms: float) -> float | None:
    """How long ago the log said so."""
    at_ms = number(facts, "at_ms")
    return None if at_ms is None else max(now_ms - at_ms, 0)


def show_health(
    facts: Facts,
    away: Facts | None,
    counters: Counters,
    now_ms: float,
    fsync_ms: float | None,
) -> dict[str, Any]:
    """The line, and what it is made of; `fsync_ms`: one in a hundred takes so long."""
    trouble = [] if away is None else [_away(away)]
    # What was known before the log went away says nothing of now.
    if away is None:
        trouble += [*_stale(facts, now_ms), *find_trouble(facts, counters), *_of_disk(fsync_ms)]
        trouble.sort(key=lambda one: _ORDER[one.level])
    level = trouble[0].level if trouble else "good"
    if trouble:
        more = f" And {len(trouble) - 1} more." if len(trouble) > 1 else ""
        title = f"{trouble[0].what}{more}"
    else:
        title = _all_well(facts)
    return {
        "level": level,
        "title": title,
        "count": len(trouble),
        "problems": [one.as_json() for one in trouble[:PROBLEMS_SHOWN]],
    }


def _all_well(facts: Facts) -> str:
    queries = things(facts, "queries")
    running = sum(one.get("state") == "running" for one in queries)
    if not queries:
        return "All is well. No query is registered on this log."
    return f"All is well. {running} of {len(queries)} {_plural(len(queries), 'query')} running."


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _away(away: Facts) -> Trouble:
    for_ms = number(away, "for_ms") or 0
    since = f", for {span_text(for_ms)} now" if for_ms >= 1000 else ""
    return Trouble(
        "down",
        f"The log does not answer{since}: {text(away, 'why') or 'no reason is known'}.",
        "Start its server (`penstock log serve`, or any program that connects to its directory), "
        "or look why it hangs. The page goes on by itself; the figures below are from before.",
    )


def _stale(facts: Facts, now_ms: float) -> Iterator[Trouble]:
    old_ms = age_ms(facts, now_ms)
    if old_ms is not None and old_ms >= STALE_MS:
        yield Trouble(
            "warn",
            f"The figures are {span_text(old_ms)} old: the log is slow to answer.",
            "It hangs, is far away, or has very many queries. The page goes on by itself.",
        )


# ---- the log


def _of_disk(fsync_ms: float | None) -> Iterator[Trouble]:
    if fsync_ms is not None and fsync_ms >= SLOW_FSYNC_MS:
        yield Trouble(
            "warn",
            f"The log's disk is slow: one fsync in a hundred takes {span_text(fsync_ms)}.",
            "Everything waits for it. See what else uses the disk; give the log one of its own.",
        )


def _of_log(facts: Facts) -> Iterator[Trouble]:
    left_out = number(facts, "queries_left_out")
    if left_out:
        yield Trouble(
            "warn",
            f"{left_out:,.0f} more queries are registered than are shown.",
            "`penstock query list` has all; `penstock query remove` forgets those of no use.",
        )
    stalled = text(sub(facts, "log", "status"), "stalled")
    if stalled:
        yield Trouble("down", f"Appends wait: {stalled}", "See the nodes of the cluster below.")


def _of_cluster(facts: Facts) -> Iterator[Trouble]:
    for problem in texts(sub(facts, "cluster"), "problems"):
        yield Trouble("bad", f"Cluster: {problem}.", "See the nodes and proxies below.")


def _of_deliveries(facts: Facts) -> Iterator[Trouble]:
    for delivery in things(facts, "deliveries"):
        name, state = shown(name_of(delivery)), delivery.get("state")
        if state == "failed":
            why = text(delivery, "error") or "it did not say why"
            yield Trouble(
                "bad",
                f"Delivery {name} stopped by itself: {why}.",
                "Repair what it names, then start it again: it goes on where it was.",
            )
        elif state == "lost":
            yield Trouble(
                "bad",
                f"Delivery {name} is not heard of any more.",
                "Its process died or is cut off: start it again, it goes on where it was.",
            )
        for target in things(delivery, "targets"):
            problem = text(target, "problem")
            if problem and state == "running":
                yield Trouble(
                    "bad",
                    f"Delivery {name}, target {text(target, 'target')}: {problem}.",
                    "It is tried again by itself; others do not wait for it.",
                )


# ---- queries


def _of_query(query: Facts, counters: Counters) -> Iterator[Trouble]:
    name, progress = name_of(query), progress_of(query)
    said = shown(name)
    why = text(query, "why")
    if why is not None:
        yield Trouble("bad", f"Query {said} cannot be read: {why}.", "", name)
        return
    state = query.get("state")
    if state == "failed":
        cause = text(progress, "exception") or "it did not say why"
        yield Trouble(
            "bad",
            f"Query {said} stopped by itself: {cause}.",
            "Correct the cause, then start it again under its name: it goes on where it was.",
            name,
        )
    elif state == "lost":
        yield Trouble(
            "bad",
            f"Query {said} is not heard of any more: no driver runs it.",
            "Its driver died or is cut off from the log. Start it again under its name: it goes "
            "on where it was.",
            name,
        )
    elif state == "running" and "suspended" in progress:
        yield Trouble(
            "warn",
            f"Query {said} is suspended: it holds no worker and takes nothing in.",
            "It was asked for. It goes on with its state when it gets workers: `penstock query "
            f"rescale {said} --workers …`.",
            name,
        )
    elif state == "running" and progress:
        yield from _of_running(name, said, progress, counters)


def _of_running(name: str, said: str, progress: Facts, counters: Counters) -> Iterator[Trouble]:
    workers, wanted = number(progress, "workers"), number(progress, "workersWanted")
    waiting = text(sub(progress, "cores"), "waiting")
    if not _has_begun(progress):
        yield Trouble(
            "warn",
            f"Query {said} is starting: {waiting or 'its workers are on their way'}.",
            "Spark takes some seconds to start them; each needs a free core.",
            name,
        )
        return
    if "rescaling" in progress:
        goal = number(progress, "rescaling", "workers")
        yield Trouble(
            "warn",
            f"Query {said} is being rescaled"
            + ("" if goal is None else f" to {goal:,.0f} {_plural(int(goal), 'worker')}")
            + f"{'' if waiting is None else f': {waiting}'}.",
            "It was asked for. Results go on; they may pause for a moment when tasks change hands.",
            name,
        )
    elif workers is not None and wanted is not None and workers < wanted:
        what = f"Query {said} has {workers:,.0f} of {wanted:,.0f} workers"
        yield Trouble(
            "bad",
            f"{what}: {waiting or 'a worker was lost, and is being replaced'}.",
            "Spark starts another by itself if it has a free core. If it stays so, look at Spark's "
            "executors."
            if waiting is None
            else "Free cores in Spark, or start the query with fewer workers.",
            name,
        )
    stopped = [
        task
        for task, one in named(progress, "tasks")
        if one.get("is_running") is not True and step_ms(progress, one) is None
    ]
    if stopped and "rescaling" not in progress:
        which = f"task {shown(stopped[0])}" if len(stopped) == 1 else f"{len(stopped)} tasks"
        yield Trouble(
            "bad",
            f"Query {said}: {which} {'does' if len(stopped) == 1 else 'do'} not run now.",
            "A worker takes over by itself, from the last commit. If it stays so, see the workers.",
            name,
        )
    yield from _of_slow(name, said, progress, counters)
    aside = set_aside(progress)
    if aside:
        yield Trouble(
            "warn",
            f"Query {said} has set aside {aside:,.0f} {_plural(int(aside), 'row')} that made it "
            "fail.",
            "They are in its dead-letter stream: each says why.",
            name,
        )
    for task, one in named(progress, "tasks"):
        error = text(one, "checkpoint_error")
        if error:
            yield Trouble(
                "warn",
                f"Query {said}, task {shown(task)}: its last checkpoint failed: {error}.",
                "Nothing is lost, but a restart takes longer. See if the place of checkpoints can "
                "be written.",
                name,
            )


def _has_begun(progress: Facts) -> bool:
    """Whether each task has ever run in this run of the query, under this layout."""
    tasks = [task for _, task in named(progress, "tasks")]
    if number(progress, "tasksLeftOut") is not None:
        return True
    return bool(tasks) and all(number(task, "instance") is not None for task in tasks)


def _of_slow(name: str, said: str, progress: Facts, counters: Counters) -> Iterator[Trouble]:
    late = max(
        (number(sub(source, "lag"), "seconds") or 0 for source in things(progress, "sources")),
        default=0,
    )
    found = list(_slow_stages(name, said, progress, counters, late))
    yield from found
    if late >= LATE_SECONDS and not found:
        yield Trouble(
            "warn",
            f"Query {said} is {span_text(late * 1000)} behind its sources.",
            "No task says that it works all the time: look at the graph for the first stage with "
            "lag before it, and at fsync times of the log.",
            name,
        )


def _slow_stages(
    name: str, said: str, progress: Facts, counters: Counters, late: float
) -> Iterator[Trouble]:
    for node in things(sub(progress, "graph"), "nodes"):
        if node.get("kind") != "stage":
            continue
        tasks = {task: sub(progress, "tasks", task) for task in keys(node, "tasks")}
        stage = text(node, "name") or "a stage"
        slow = _longest_step(progress, tasks)
        busiest = max(tasks, key=lambda task: number(tasks[task], "busy_share") or 0, default=None)
        if busiest is None:
            continue
        busy = number(tasks[busiest], "busy_share") or 0
        if busy < HOT_SHARE and slow is None:
            yield from _of_held_up(name, said, stage, tasks, late)
            continue
        skewed = _skewed(name, tasks, counters)
        if skewed is not None and late >= 1:
            task, share, fair = skewed
            yield Trouble(
                "warn",
                f"Query {said}, {stage}: task {shown(task)} takes {100 * share:.0f} % of the rows, "
                f"and its fair share were {100 * fair:.0f} %. It has a key, or some, that are in "
                "most rows.",
                f"`penstock query balance {said}` lets hot virtual nodes go to other tasks, or "
                "says that one key is to blame. More workers do not help then: aggregate in two "
                "steps, or add a column to the key.",
                name,
            )
        elif slow is not None:
            task, ms = slow
            yield Trouble(
                "warn",
                f"Query {said}, {stage}: one step of task {shown(task)} has lasted "
                f"{span_text(ms)} by now.",
                f"Look for a slow function: {_does(node)}. A function that sleeps or asks another "
                "machine holds up all tasks of its worker.",
                name,
            )
        elif late >= 1:
            yield Trouble(
                "warn",
                f"Query {said}, {stage} is the bottleneck: its task {shown(busiest)} works "
                f"{100 * busy:.0f} % of its time, and the query is {span_text(late * 1000)} "
                "behind.",
                f"Make it cheaper ({_does(node)}), or give it more workers: "
                f"`penstock query rescale {said} --workers …`.",
                name,
            )


def _of_held_up(
    name: str, said: str, stage: str, tasks: dict[str, Facts], late: float
) -> Iterator[Trouble]:
    held = {task: number(one, "back_pressured_share") or 0 for task, one in tasks.items()}
    task = max(held, key=lambda one: held[one])
    if held[task] >= HELD_UP_SHARE and late >= 1:
        yield Trouble(
            "warn",
            f"Query {said}, {stage}: task {shown(task)} is held up {100 * held[task]:.0f} % of its "
            f"time: it waits for its commits, and the query is {span_text(late * 1000)} behind.",
            "The log takes them too slowly: see its fsync times below, and how large commits are.",
            name,
        )


def _does(node: Facts) -> str:
    """The steps in which a user's function runs come first."""
    steps = texts(node, "does")
    own = [step for step in steps if "python" in step.lower() or "map" in step.lower()]
    return "; ".join((own or steps)[:2]) or "its steps are in the plan"


def _longest_step(progress: Facts, tasks: dict[str, Facts]) -> tuple[str, float] | None:
    told = [(task, step_ms(progress, one) or 0) for task, one in tasks.items()]
    task, ms = max(told, key=lambda one: one[1], default=("", 0))
    return (task, ms) if ms >= LONG_STEP_MS else None


def _skewed(
    query: str, tasks: dict[str, Facts], counters: Counters
) -> tuple[str, float, float] | None:
    """The task that takes far more than its share: (task, its share, the fair one)."""
    rates = {task: counters.rate(task_counter(query, task)) for task in tasks}
    known = {task: rate for task, rate in rates.items() if rate is not None}
    total = sum(known.values())
    if len(known) < 2 or len(known) < len(tasks) or total < SKEW_ROWS:
        return None
    task = max(known, key=lambda one: known[one])
    fair = 1 / len(known)
    share = known[task] / total
    # Of two tasks, nobody can take 2.5 times a half.
    return (task, share, fair) if share >= min(SKEW * fair, 0.85) else None
