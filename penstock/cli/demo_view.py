"""What the demo shows while it runs: a page kept up to date in a terminal, plain lines elsewhere.

Owns the follower of the result, which notes when each window of the result could be read, and the
words on the screen. Decides nothing of the demo.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.live import ms_text, progress_line
from penstock.stream.positions import EARLIEST
from penstock.stream.stream import Stream
from penstock.stream.times import to_time_ms

WINDOWS_SHOWN: Final = 8
#: Between two plain lines.
LINE_SECONDS: Final = 2.0


@dataclass(slots=True)
class CountedWindow:
    """One second of the result."""

    end: datetime
    bids: int = 0
    auctions: int = 0
    #: (bids, auction, highest price) of the auction with the most.
    hottest: tuple[int, int, int] = (0, 0, 0)
    #: From its end to when its last row could be read.
    visible_ms: float = 0.0


@dataclass(slots=True)
class Windows:
    """The result so far; its rows come window by window, in any order within one."""

    by_end: dict[datetime, CountedWindow] = field(default_factory=dict)

    def take(self, columns: dict[str, list[Any]], at_ms: float) -> None:
        rows = zip(*(columns[name] for name in ("second", "auction", "bids", "price")), strict=True)
        for end, auction, bids, price in rows:
            window = self.by_end.setdefault(end, CountedWindow(end))
            window.bids += bids
            window.auctions += 1
            window.hottest = max(window.hottest, (bids, auction, price))
            window.visible_ms = at_ms - to_time_ms(end)

    def newest(self, count: int) -> list[CountedWindow]:
        return [self.by_end[end] for end in sorted(self.by_end)[-count:]]

    def latencies_ms(self, from_ms: float, to_ms: float) -> list[float]:
        """Of the windows that ended in this span of time, smallest first."""
        return sorted(
            window.visible_ms
            for end, window in self.by_end.items()
            if from_ms <= to_time_ms(end) < to_ms
        )


class Follower:
    """Reads the result as it comes, on a thread."""

    def __init__(self, result: Stream) -> None:
        self._result = result
        self._lock = threading.Lock()
        self._windows = Windows()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="demo-follower", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        position: Any = EARLIEST
        while not self._ending:
            with self._result.tail(position, timeout=0.2) as tail:
                for batch in tail:
                    at_ms = time.time() * 1000
                    with self._lock:
                        self._windows.take(batch.to_pydict(), at_ms)
                position = tail.position

    @property
    def count(self) -> int:
        return len(self._windows.by_end)

    def newest(self) -> list[CountedWindow]:
        with self._lock:
            return self._windows.newest(WINDOWS_SHOWN)

    def latencies_ms(self, from_ms: float, to_ms: float) -> list[float]:
        with self._lock:
            return self._windows.latencies_ms(from_ms, to_ms)

    def stop(self) -> None:
        self._ending = True
        self._thread.join()


class View:
    """The screen. Quiet if somebody wants an object instead."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, soft_wrap=True, highlight=False)
        self._live: Live | None = None
        self._printed = 0.0

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold cyan]{text}[/]")

    def say(self, text: str) -> None:
        self._console.print(f"  {text}")

    def verdict(self, text: str, *, ok: bool) -> None:
        self._console.print(f"\n[{'bold green' if ok else 'bold red'}]{text}[/]")

    def __enter__(self) -> View:
        """From here on `show` keeps a page up to date, if there is a terminal."""
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, windows: list[CountedWindow], progress: dict[str, Any] | None) -> None:
        line = "waiting for the workers" if progress is None else progress_line(progress)
        if self._live is not None:
            self._live.update(
                Group(Text(line, no_wrap=True, overflow="ellipsis"), _table(windows)), refresh=True
            )
        elif time.monotonic() - self._printed >= LINE_SECONDS and windows:
            self._printed = time.monotonic()
            self.say(_window_line(windows[-1]))


def _table(windows: list[CountedWindow]) -> Table:
    table = Table("second", "bids", "auctions", "hottest", "its bids", "highest", "visible after")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in windows:
        bids, auction, price = one.hottest
        table.add_row(
            f"{one.end:%H:%M:%S}", f"{one.bids:,}", f"{one.auctions:,}", str(auction),
            f"{bids:,}", f"{price / 100:,.2f}", ms_text(one.visible_ms),
        )  # fmt: skip
    return table


def _window_line(one: CountedWindow) -> str:
    bids, auction, _ = one.hottest
    return (
        f"second {one.end:%H:%M:%S}: {one.bids:,} bids for {one.auctions:,} auctions, most "
        f"({bids:,}) for {auction}; visible {ms_text(one.visible_ms)} after its end"
    )
