"""Images of changing results beside a real log server: `result()` is what was fed, counted.

The query counts keys. The judge counts what it feeds, and knows nothing of images. Each mutant
breaks one law of them, in the code that ships, and is noticed by a story.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness.waiting import until
from test_task_shell import at_work, directory, keys, make, register

from penstock.errors import GuardFailed, PenstockError, TooLarge, Trimmed, Unavailable
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.records import Guard, Kind, NewEntry, SetKey
from penstock.ops.sink import read_result
from penstock.protocol import images as protocol
from penstock.protocol.images import Image, decode_image, image_key
from penstock.protocol.names import coordinator_producer, run_key
from penstock.runtime import images as module
from penstock.runtime import results, trim
from penstock.runtime.host import THIS_PROCESS
from penstock.runtime.images import ImageKeeper
from penstock.runtime.registry import RegisteredQuery
from penstock.runtime.results import result_deltas
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.task import Task
from penstock.runtime.trim import trim_consumed
from penstock.stream.session import Log
from penstock.stream.stream import Stream

__all__ = ["directory"]


@dataclass
class Bench:
    log: Log
    client: AsyncLog
    source: Stream
    spec: QuerySpec
    tasks: list[Task]
    #: The judge's.
    expected: Counter[int] = field(default_factory=Counter)

    async def feed(self, first: int, last: int) -> None:
        """Counts of these keys change, and are committed."""
        self.expected.update(range(first, last))
        await asyncio.to_thread(self.source.append, keys(first, last))
        await until(self._is_committed)

    def _is_committed(self) -> bool:
        marker = self.tasks[-1].last_marker
        return marker is not None and marker.rows_in >= self.expected.total()

    async def keeper(self, run: str = "1") -> ImageKeeper:
        voice = await self.client.appender(coordinator_producer("q"))
        await voice.append([], sets=[SetKey(run_key("q"), run.encode())])
        guard = Guard(run_key("q"), run.encode())
        return ImageKeeper(self.client, voice, guard, self.spec, THIS_PROCESS)

    async def renew(self, keeper: ImageKeeper) -> Image:
        image = await keeper._begin()
        tail = (await self.client.bounds()).tail
        return await keeper._renew(image, tail)

    async def image(self) -> Image | None:
        value = await self.client.get(image_key("q"))
        return None if value is None else decode_image("q", value.data)

    async def result(self) -> dict[int, int]:
        """As `query.result()` gives it."""
        deltas = await asyncio.to_thread(result_deltas, self.log, self.spec)
        table = read_result(self.spec.query, deltas)
        assert len(set(table[0].to_pylist())) == table.num_rows
        return dict(zip(table[0].to_pylist(), table[1].to_pylist(), strict=True))


@asynccontextmanager
async def bench(directory: Path, settings: Settings | None = None) -> AsyncIterator[Bench]:
    log, source, spec = make(directory, settings or Settings())
    register(log, spec)
    async with at_work(directory, spec) as (client, tasks, _):
        yield Bench(log, client, source, spec, tasks)
    log.close()


async def follow_changes(directory: Path) -> None:
    """Images at random moments, and the result after each step."""
    random = Random(7)
    async with bench(directory) as b:
        keeper = await b.keeper()
        for _ in range(12):
            first = random.randrange(40)
            await b.feed(first, first + random.randrange(1, 40))
            if random.random() < 0.6:
                image = await b.renew(keeper)
                assert image.rows == len(b.expected)
            assert await b.result() == b.expected
        assert image.entries and image == await b.image()


async def share_the_stream(directory: Path) -> None:
    """Rows of others in the stream are theirs."""
    async with bench(directory) as b:
        await b.feed(0, 10)
        out = b.log.stream("out")
        await asyncio.to_thread(out.append, [dict(zip(out.schema.names, (77, 1, 1), strict=True))])
        await b.renew(await b.keeper())
        assert await b.result() == b.expected


async def commit_meanwhile(directory: Path) -> None:
    """Rows that are committed while an image is made are after it."""
    async with bench(directory) as b:
        await b.feed(0, 50)
        keeper = await b.keeper()
        image, tail = await keeper._begin(), (await b.client.bounds()).tail
        await b.feed(0, 50)
        await keeper._renew(image, tail)
        assert await b.result() == b.expected


async def make_two_at_once(directory: Path) -> None:
    """Entries of two images stand between each other; one of them is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENTRY_BYTES", 600)
        async with bench(directory) as b:
            await b.feed(0, 100)
            zombie = await b.client.appender("somebody")
            keeper = await b.keeper()
            keeper._voice = _Crowded(keeper._voice, zombie)  # type: ignore[assignment]
            await b.renew(keeper)
            assert await b.result() == b.expected


@dataclass
class _Crowded:
    """After each append, somebody else appends the same as a part of another image."""

    voice: AsyncAppender
    other: AsyncAppender

    async def append(self, entries: Any, **more: Any) -> Any:
        done = await self.voice.append(entries, **more)
        for one in entries:
            payload = bytes(protocol.ID_BYTES) + one.payload[protocol.ID_BYTES :]
            await self.other.append([NewEntry(payload, one.tags, one.kind)])
        return done


async def break_off(directory: Path) -> None:
    """An image that is not finished is none; what is left of it counts nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENTRY_BYTES", 600)
        async with bench(directory) as b:
            await b.feed(0, 100)
            whole = await b.renew(await b.keeper())
            assert whole.entries > 3
            for appends in range(whole.entries + 2):
                await b.feed(0, 100)
                keeper = await b.keeper()
                keeper._voice = _Dying(keeper._voice, appends)  # type: ignore[assignment]
                if appends <= whole.entries:
                    with pytest.raises(Unavailable):
                        await b.renew(keeper)
                else:
                    await b.renew(keeper)
                assert await b.result() == b.expected


@dataclass
class _Dying:
    """A driver that is gone after so many appends."""

    voice: AsyncAppender
    left: int

    async def append(self, *given: Any, **more: Any) -> Any:
        if not self.left:
            raise Unavailable("the driver is gone")
        self.left -= 1
        return await self.voice.append(*given, **more)


async def trim_history(directory: Path) -> None:
    """What came before the image is trimmed, and the result survives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.checkpoints.CHECKPOINT_BYTES_MIN", 1)
        place = str(directory.parent / "checkpoints")
        settings = Settings(checkpoints=place, checkpoint_interval_ms=1)
        async with bench(directory, settings) as b:
            keeper = await b.keeper()
            await keeper._begin()
            while len(b.tasks[-1].core.checkpoints.named) < 2:
                await b.feed(0, 100)
            assert await trim_consumed(b.client) == 0
            image = await b.renew(keeper)
            trimmed = 0
            while trimmed < image.position:  # until checkpoints allow it
                await b.feed(0, 100)
                trimmed = await trim_consumed(b.client)
                assert trimmed <= image.position
                assert await b.result() == b.expected
            with pytest.raises(Trimmed):
                await asyncio.to_thread(results.check_whole, b.log, b.spec)


async def replace_the_run(directory: Path) -> None:
    """A coordinator that was replaced sets no image: that would be an older one."""
    async with bench(directory) as b:
        await b.feed(0, 10)
        old = await b.keeper("old")
        first = await old._begin()
        old._voice = await b.client.appender("somebody")  # as if nothing had fenced it yet
        await b.feed(0, 10)
        kept = await b.renew(await b.keeper("new"))
        with pytest.raises(GuardFailed):
            await old._set(first, [])
        assert await b.image() == kept


async def replace_while_read(directory: Path) -> None:
    """A reader whose image was replaced, and trimmed away, takes the next one."""
    async with bench(directory) as b:
        await b.feed(0, 10)
        keeper = await b.keeper()
        await b.renew(keeper)
        read, loop = results.payloads_of, asyncio.get_running_loop()
        raced = []

        async def replace_it() -> None:
            await b.feed(0, 10)
            image = await b.renew(keeper)
            await b.client.trim(image.position)

        def read_late(image: Image, entries: Any) -> Any:
            if not raced:
                raced.append(image)
                asyncio.run_coroutine_threadsafe(replace_it(), loop).result(60)
            return read(image, entries)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(results, "payloads_of", read_late)
            assert await b.result() == b.expected
        assert raced


async def begin_anew(directory: Path) -> None:
    """The image of an earlier version is nothing of the next one's."""
    async with bench(directory) as b:
        await b.feed(0, 10)
        keeper = await b.keeper()
        await b.renew(keeper)
        next_version = replace(b.spec, version=2)
        assert await asyncio.to_thread(result_deltas, b.log, next_version) == []
        keeper._spec = next_version
        image = await keeper._begin()
        assert (image.version, image.rows, image.entries) == (2, 0, 0)
        assert await b.image() == image


async def grow_too_large(directory: Path) -> None:
    """A result beyond the limit has no image, in words, and holds back no trim."""
    async with bench(directory) as b:
        keeper = await b.keeper()
        await b.feed(0, 10)
        await b.renew(keeper)
        await b.feed(10, 30)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROWS_MAX", 20)
            with pytest.raises(TooLarge, match="30 rows"):
                await b.renew(keeper)
        assert await b.image() is None
        assert await b.result() == b.expected


Scenario = Callable[[Path], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    follow_changes, share_the_stream, commit_meanwhile, make_two_at_once, break_off, trim_history,
    replace_the_run, replace_while_read, begin_anew, grow_too_large,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_the_result_is_what_was_fed(directory: Path, scenario: Scenario) -> None:
    await scenario(directory)


async def _reads_to_the_end(log: AsyncLog, spec: QuerySpec, start: Lsn, end: Lsn) -> Any:
    async for payloads in PAYLOADS_SINCE(log, spec, start, (await log.bounds()).tail):
        yield payloads


async def _needs_nothing(log: AsyncLog, query: RegisteredQuery) -> list[Lsn]:
    return []


def _takes_all(image: Image, entries: Any) -> list[memoryview]:
    return [memoryview(entry.payload)[protocol.ID_BYTES :] for entry in entries]


async def _asks_nobody(self: ImageKeeper, data: bytes | None) -> None:
    await self._voice.append([], sets=[SetKey(self._key, data)])
    self._data = data


async def _forgets_the_last_image(self: ImageKeeper, image: Image) -> list[memoryview]:
    return []


async def _names_it_first(self: ImageKeeper, image: Image, pieces: Any) -> Image:
    tail = (await self._log.bounds()).tail
    id = "00" * protocol.ID_BYTES if pieces else ""
    named = replace(
        image, id=id, first_lsn=tail, end_lsn=tail + 2 * len(pieces), entries=len(pieces)
    )
    await self._change(protocol.encode_image(named))
    for piece in pieces:
        tags = (protocol.image_tag("q", image.version),)
        await self._voice.append([NewEntry(protocol.seal_payload(id, piece), tags, Kind.CHANGE)])
    return named


PAYLOADS_SINCE = module._payloads_since
#: What is broken, how, and the story that notices.
MUTANTS: dict[str, tuple[Any, str, Any, Scenario]] = {
    "rows after the position are in it": (
        module, "_payloads_since", _reads_to_the_end, commit_meanwhile,
    ),
    "rows of others are in it": (module, "is_of", lambda *_: True, share_the_stream),
    "the image before is forgotten": (
        ImageKeeper, "_payloads", _forgets_the_last_image, follow_changes,
    ),
    "what was left of another is read": (results, "payloads_of", _takes_all, make_two_at_once),
    "it is named before it is there": (ImageKeeper, "_set", _names_it_first, break_off),
    "a trim does not spare what came after it": (
        trim, "_needed_by_result", _needs_nothing, trim_history,
    ),
    "a replaced coordinator sets it": (ImageKeeper, "_change", _asks_nobody, replace_the_run),
    "any version's image is taken": (
        results, "_find_image", lambda log, spec: _any_version(log, spec), begin_anew,
    ),
}  # fmt: skip


def _any_version(log: Log, spec: QuerySpec) -> tuple[bytes, Image]:
    value = log.client.get(image_key(spec.name))
    assert value is not None
    return value.data, decode_image(spec.name, value.data)


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_mutants_are_noticed(
    directory: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, name, broken, scenario = MUTANTS[mutant]
    monkeypatch.setattr(home, name, broken)
    with pytest.raises((AssertionError, PenstockError, pytest.fail.Exception)):
        await scenario(directory)
