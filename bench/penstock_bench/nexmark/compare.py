"""`penstock nexmark compare`: Penstock and every peer that is there, in one run on one machine.

Owns the order and the bars. Systems come one after the other, one JVM at a time: a round of
Penstock, every variant of every peer, a round of Penstock again, so that a machine that drifts
favours nobody. All get the same events by seed, rate and schedule. Law: Penstock counts with its
worse round; a ratio is judged only together with whether both sides held the rate and, where the
oracle can tell, gave the right rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import NotFound, PenstockError, Unsupported
from penstock.stream.session import connect
from penstock_bench.child import Child
from penstock_bench.measure import scratch
from penstock_bench.nexmark.driver import start_nexmark_driver
from penstock_bench.nexmark.oracle import Verdict, ask_oracle
from penstock_bench.nexmark.peer_run import KEYS, PeerBench, PeerRun, last_by_key
from penstock_bench.nexmark.peers import Peer, PeerRefused, PeerSpec, find_peers
from penstock_bench.nexmark.result import judged
from penstock_bench.nexmark.run import Bench, Run
from penstock_bench.nexmark.timed import APPEND
from penstock_bench.report import Check, Report, Say

Show = Callable[[float, str], None]
Result = dict[str, Any]

PENSTOCK: Final = "penstock"
#: How the reason of a peer begins that was there and did not do its work: not skipped, missed.
FAILED: Final = "it failed: "
#: How much lower Penstock's median must be than that of a peer's variant.
BARS: Final = {
    ("structured_streaming", "best"): 10.0,
    ("structured_streaming", "defaults"): 25.0,
}


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """What is compared, and how long."""

    queries: tuple[str, ...]
    rate: float = 5_000
    seconds: float = 20
    warm_seconds: float = 10
    #: A JVM needs longer to get warm, and its first batch alone takes up to 8 s.
    peer_warm_seconds: float = 25
    seed: int = 42
    oracle: bool = True
    #: Empty: all that are there.
    peers: tuple[str, ...] = ()
    #: Empty: all of them.
    variants: tuple[str, ...] = ()
    #: Of Penstock: the first before the peers, the others after them.
    rounds: int = 2

    def run(self, query: str, *, is_peer: bool) -> Run:
        warm = self.peer_warm_seconds if is_peer else self.warm_seconds
        return Run(query, self.rate, self.seconds, warm, seed=self.seed, oracle=self.oracle)


@dataclass(slots=True)
class ComparisonResults:
    """What came of all runs."""

    results: list[Result] = field(default_factory=list)
    #: Told of every result as soon as it is there.
    keep: Callable[[Result], object] = lambda _: None
    #: What did not run: system, variant, query, and why.
    skipped: list[dict[str, str | None]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.results.append(result)
        self.keep(result)

    def skip(self, system: str, variant: str | None, query: str | None, reason: str) -> str:
        self.skipped.append(
            {"system": system, "variant": variant, "query": query, "reason": reason}
        )
        name = " ".join(part for part in (system, variant, query) if part)
        return f"{name} is skipped: {reason}"


def compare(
    plan: PeerComparison,
    say: Say,
    *,
    show: Show | None = None,
    directory: Path | None = None,
    peers: Path | None = None,
    keep: Callable[[Result], object] = lambda _: None,
) -> Report:
    """Run everything, one after the other; `peers` is where they are, if not at their place."""
    for query in plan.queries:
        plan.run(query, is_peer=False)  # a wrong name is told before anything starts
    results = ComparisonResults(keep=keep)
    chosen = _chosen(plan, results, say, peers)
    with scratch("penstock-compare-", directory) as root:
        comparison = _Comparison(plan, results, root, say, show)
        comparison.penstock(min(1, plan.rounds))
        comparison.peers(chosen)
        comparison.penstock(plan.rounds - 1)
    return make_report(plan, results)


def _chosen(
    plan: PeerComparison, results: ComparisonResults, say: Say, directory: Path | None
) -> list[PeerSpec]:
    """The peers that are wanted and installed; a line for every other."""
    try:
        peers = find_peers(directory)
    except NotFound as error:
        say(results.skip("all peers", None, None, str(error)))
        return []
    for name in plan.peers:
        if name not in peers:
            raise NotFound(f"no peer {name!r}: there are {', '.join(peers) or 'none'}")
    chosen = []
    for spec in peers.values():
        if plan.peers and spec.name not in plan.peers:
            continue
        if (missing := spec.missing) is not None:
            say(results.skip(spec.name, None, None, missing))
        else:
            chosen.append(spec)
    return chosen


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The runs of one comparison, into one `ComparisonResults`."""

    plan: PeerComparison
    results: ComparisonResults
    root: Path
    say: Say
    show: Show | None

    def penstock(self, rounds: int) -> None:
        if rounds <= 0:
            return
        with Bench(self.say, show=self.show, directory=self.root) as bench:
            for _ in range(rounds):
                for query in self.plan.queries:
                    try:
                        self.results.add(bench.run(self.plan.run(query, is_peer=False)))
                    except Unsupported as refused:
                        self.say(self.results.skip(PENSTOCK, None, query, str(refused)))

    def peers(self, specs: list[PeerSpec]) -> None:
        with contextlib.closing(connect(self.root / "peers")) as log:
            bench = PeerBench(log, self.root, self.show)
            runs = [
                run
                for spec in specs
                for variant in spec.variants
                if not self.plan.variants or variant in self.plan.variants
                for run in self._peer(bench, spec, variant)
            ]
            for result in self._judged(runs):
                self.results.add(result)

    def _peer(self, bench: PeerBench, spec: PeerSpec, variant: str) -> Iterator[PeerRun]:
        """All queries in one process; after a failure the next ones get a new one."""
        waiting = list(self.plan.queries)
        while waiting:
            self.say(f"starting {spec.name} {variant}")
            with contextlib.closing(Peer(spec)) as peer:
                while waiting:
                    query = waiting.pop(0)
                    try:
                        run = bench.run(peer, variant, self.plan.run(query, is_peer=True))
                    except PeerRefused as refused:
                        self.say(self.results.skip(spec.name, variant, query, str(refused)))
                        continue
                    except PenstockError as error:
                        reason = f"{FAILED}{error}"
                        self.say(self.results.skip(spec.name, variant, query, reason))
                        break
                    self.say(tell(run.result))
                    yield run

    def _judged(self, runs: list[PeerRun]) -> Iterator[Result]:
        """What batch Spark says of the peers' rows: after all have run, in a JVM of its own."""
        if not self.plan.oracle or not runs:
            yield from (run.result for run in runs)
            return
        self.say("asking batch Spark about the peers' results")
        with contextlib.closing(start_nexmark_driver(self.root / "peers")) as driver:
            for run in runs:
                yield judged(run.result, self._ask(driver, run))

    def _ask(self, driver: Child, run: PeerRun) -> Verdict:
        query, rows = run.result["query"], run.rows
        if not run.is_settled:
            return Verdict("skipped", "not all results were visible in time")
        if rows.weights is None and run.result["mode"] != APPEND:
            if query not in KEYS:
                return Verdict("skipped", "its rows do not say which ones they replace")
            rows = last_by_key(rows, KEYS[query])
        return ask_oracle(driver, query, run.parameters, run.events, rows, self.root)


def tell(result: Result) -> str:
    latency = result["latency_ms"] or {}
    times = ", ".join(f"{name} {ms:,.1f} ms" for name, ms in latency.items())
    held = "holds the rate" if result.get("keeps_up") else "does not hold the rate"
    return f"{result['system']} {result['variant']} {result['query']}: {times or 'no rows'}, {held}"


# ---- the verdict, pure


def holds_rate(result: Result) -> bool:
    """Whether its backlog did not grow; how late its rows were is another matter."""
    if "keeps_up" in result:
        return bool(result["keeps_up"])
    judged = [check for check in result["checks"] if check["name"] != "p99 latency"]
    return result["latency_ms"] is not None and all(check["ok"] for check in judged)


def worst(results: list[Result]) -> Result | None:
    """The round with the highest median; one without rows is the worst."""
    return max(results, key=_median, default=None)


def _median(result: Result) -> float:
    latency = result["latency_ms"]
    return float("inf") if latency is None else float(latency["p50"])


def make_report(plan: PeerComparison, results: ComparisonResults) -> Report:
    """Every result object, what was skipped, and the checks."""
    report = Report("nexmark compare", parameters=asdict(plan))
    report.figures = {"results": results.results, "skipped": results.skipped}
    for query in plan.queries:
        report.checks += _checks(query, [r for r in results.results if r["query"] == query])
    for skipped in results.skipped:
        if str(skipped["reason"]).startswith(FAILED):
            name = f"{skipped['query']}_{skipped['system']}_{skipped['variant']}_runs"
            report.checks.append(Check(name, 0.0, 1.0, "at least", "", str(skipped["reason"])))
    return report


def _checks(query: str, results: list[Result]) -> Iterator[Check]:
    ours = worst([result for result in results if result["system"] == PENSTOCK])
    judged = [ours] if ours is not None else []
    for (system, variant), bar in BARS.items():
        theirs = worst([r for r in results if (r["system"], r["variant"]) == (system, variant)])
        if ours is None or theirs is None:
            continue
        judged.append(theirs)
        low, high = _median(ours), _median(theirs)
        name = f"{query}_p50_{system}_{variant}_over_penstock"
        rows = f"{theirs['rows']:,} rows over {ours['rows']:,}"
        detail = f"p50 {high:,.1f} ms over p50 {low:,.2f} ms; {rows}"
        # No rows on either side is no success.
        ratio = high / low if 0 < low < float("inf") and high < float("inf") else 0.0
        yield Check(name, ratio, bar, "at least", "×", detail)
    for result in judged:
        name = f"{query}_{result['system']}_{result['variant']}_holds_the_rate"
        detail = f"{result['rate']:,.0f} events/s"
        yield Check(name, float(holds_rate(result)), 1.0, "at least", "", detail)
    different = [result for result in results if result["oracle"] == "different"]
    for result in different:
        name = f"{query}_{result['system']}_{result['variant']}_equal_to_batch_spark"
        yield Check(name, 0.0, 1.0, "at least", "", result["oracle_reason"])
