"""Stories of the sequencer: commands and the trace they give, one file each, to be read by people.

telling.py says how they are written.

    claim p 1                       open producer p as instance 1 (nonce=N: somebody else's claim)
    append p seq=0 entries=2        a group (instance=, tags=a,b, size=, flush=MS)
           guard=k=v guard=k!       ordered only if metadata k holds v, or is absent
           set=k=v set=k!           give k a value, or remove it
    retire p seq=3                  the producer will never write again
    ask                             answered once all before it is durable
    write / written / fail          take a write; it is durable; the disk refused it
    time +5                         milliseconds pass
    segment 600                     from now on, segments hold so many bytes
    crash                           what is not durable is gone; the log is opened again
    state                           what the fold of the log knows
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from sample_groups import claim, group, retire
from telling import check_story, told

from penstock.errors import PenstockError
from penstock.log.core.sequencer import (
    Answer,
    OldDuplicate,
    OrderedGroup,
    SegmentLimits,
    Sequencer,
    Write,
)
from penstock.log.core.state import LogState
from penstock.log.group_format import Body
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, NewEntry, SetKey

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*.txt"))


class Story:
    """One log, told by commands. `check()` after each."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.durable: list[OrderedGroup] = []
        self.write: Write | None = None
        #: Bytes of the open segment: what an owner would find on disk.
        self.segment_bytes = 0
        self.segment_bytes_max = 2**30
        self.lines: list[str] = []
        self.open()

    def open(self) -> None:
        state = LogState()
        for each in self.durable:
            state.apply(each.body, first_lsn=each.first_lsn, time_ms=each.time_ms)
        limits = SegmentLimits(bytes=self.segment_bytes_max, ms=2**40)
        self.core = Sequencer(state, limits=limits, segment_bytes=self.segment_bytes)
        self.write = None

    def run(self, command: str) -> list[str]:
        """The trace of one command."""
        name, *words = shlex.split(command)
        self.lines = []
        getattr(self, f"do_{name}")(command, *words)
        self.core.check()
        self.lines += [show_answer(answer) for answer in self.core.take_answers()]
        return self.lines

    # ---- commands

    def do_claim(self, command: str, producer: str, instance: str, *words: str) -> None:
        options = options_of(words)
        body = claim(producer, int(instance), nonce=int(options.get("nonce", "7")))
        self.append(command, body)

    def do_append(self, command: str, producer: str, *words: str) -> None:
        options = options_of(words)
        tags = tuple(filter(None, options.get("tags", "").split(",")))
        payload = bytes(int(options.get("size", "1")))
        entries = [NewEntry(payload, tags)] * int(options.get("entries", "1"))
        guards = [Guard(key, value) for key, value in pairs(words, "guard")]
        body = group(
            producer,
            int(options["seq"]),
            entries,
            instance=int(options.get("instance", "1")),
            sets=[SetKey(key, value) for key, value in pairs(words, "set")],
        )
        self.append(command, body, guards, Flush(int(options.get("flush", "0"))))

    def do_retire(self, command: str, producer: str, *words: str) -> None:
        options = options_of(words)
        instance = int(options.get("instance", "1"))
        self.append(command, retire(producer, instance, seq=int(options["seq"])))

    def append(
        self, command: str, body: Body, guards: list[Guard] | None = None, flush: Flush = IMMEDIATE
    ) -> None:
        self.core.append(command, body, guards=guards or (), flush=flush, now_ms=self.now_ms)

    def do_ask(self, command: str) -> None:
        self.core.ask(command)

    def do_write(self, command: str) -> None:
        write = self.core.take_write(self.now_ms)
        if write is None:
            due_ms = self.core.due_ms()
            self.lines.append("no write" if due_ms is None else f"no write before {due_ms} ms")
            return
        self.write = write
        if write.roll is not None:
            self.lines.append(f"roll: a new segment starts at lsn {write.roll.next_lsn}")
            self.segment_bytes = 0
        first, groups = write.groups[0].first_lsn, len(write.groups)
        self.lines.append(
            f"write {groups} group{'s' * (groups > 1)} at {show_lsns(first, write.end_lsn - first)}"
            f", durable below {write.durable_lsn}"
        )

    def do_written(self, command: str) -> None:
        assert self.write is not None
        self.core.written(self.write)
        self.durable += self.write.groups
        self.segment_bytes += self.write.bytes
        self.write = None

    def do_fail(self, command: str) -> None:
        self.core.write_failed()
        self.lines.append("poisoned: nothing more is written or answered")

    def do_time(self, command: str, by: str) -> None:
        self.now_ms += int(by)
        self.lines.append(f"it is {self.now_ms} ms")

    def do_segment(self, command: str, size: str) -> None:
        self.segment_bytes_max = int(size)
        self.open()

    def do_crash(self, command: str) -> None:
        lost = self.core.state.next_lsn - self.core.durable_lsn
        self.open()
        self.lines.append(f"opened again at lsn {self.core.durable_lsn}, {lost} entries gone")

    def do_state(self, command: str) -> None:
        state = self.core.state
        for key, value in state.metadata.items():
            self.lines.append(f"{key} = {value.data.decode()!r}, set at lsn {value.lsn}")
        for name, known in state.producers.items():
            self.lines.append(f"{name}: instance {known.instance}, next seq {known.next_seq}")
        if not self.lines:
            self.lines.append("nothing is known")


def options_of(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if not word.startswith(("guard=", "set=")))


def pairs(words: tuple[str, ...], name: str) -> list[tuple[str, bytes | None]]:
    """`name=k=v` is (k, v); `name=k!` is (k, None)."""
    found: list[tuple[str, bytes | None]] = []
    for word in words:
        if word.startswith(f"{name}="):
            key, equals, value = word.removeprefix(f"{name}=").partition("=")
            found.append((key, value.encode()) if equals else (key.removesuffix("!"), None))
    return found


def show_answer(answer: Answer) -> str:
    outcome = answer.outcome
    if isinstance(outcome, PenstockError):
        text = f"{type(outcome).__name__}: {outcome}"
    elif isinstance(outcome, OldDuplicate):
        text = "old duplicate: to be looked up in the log"
    else:
        text = show_appended(outcome)
    return f"  -> {answer.cause}: {text}"


def show_appended(outcome: Appended) -> str:
    if not outcome.count:
        return f"all below lsn {outcome.first_lsn} is durable"
    place = show_lsns(outcome.first_lsn, outcome.count)
    return ("duplicate of " if outcome.duplicate else "appended at ") + place


def show_lsns(first: int, count: int) -> str:
    return f"lsn {first}" + (f"..{first + count - 1}" if count > 1 else "")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    check_story(path, Story().run)


def test_there_are_stories_and_each_begins_with_what_it_tells() -> None:
    assert len(STORIES) >= 6
    for path in STORIES:
        assert path.read_text().startswith("# ")


def test_a_trace_that_is_not_what_happens_is_noticed() -> None:
    story = "claim p 1\n----\nnonsense\n"

    assert told(story, Story().run) == "claim p 1\n----\n"
