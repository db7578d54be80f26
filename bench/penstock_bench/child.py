"""A process of ours that is told what to do through a pipe: a load, a generator, a Spark driver.

Law: it ends when its pipe is closed, and so when we die; what goes wrong in it is raised here.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")
ANSWER_SECONDS: Final = 120.0
#: A fresh interpreter: a fork would share the threads and connections of the bench.
context = multiprocessing.get_context("spawn")


class Child:
    """The process, as the bench holds it: one command at a time.

    `serve` gets the arguments and, last, its end of the pipe; an exception that it sends is raised.
    """

    def __init__(
        self, name: str, serve: Callable[..., None], *arguments: Any, daemon: bool = True
    ) -> None:
        self._name = name
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(*arguments, theirs), daemon=daemon)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def check(self) -> None:
        """Raise if the process has died."""
        if not self.process.is_alive():
            raise self._ended()

    def ask(self, command: Callable[[Any], T], timeout: float = ANSWER_SECONDS) -> T:
        """Have it done there, with what the process has: what came of it."""
        self.send(command)
        answer: T = self.answer(timeout)
        return answer

    def send(self, command: object) -> None:
        try:
            self._pipe.send(command)
        except OSError:
            raise self._ended() from None

    def answer(self, timeout: float) -> Any:
        """What it says next."""
        try:
            if not self._pipe.poll(max(0.0, timeout)):
                raise DeadlineExceeded(f"{self._name} did not answer within {timeout:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ended(self) -> Unavailable:
        return Unavailable(f"the process of {self._name} ended; what it said last is above")

    def close(self, seconds: float = 20.0) -> None:
        """End the process, by force if it takes longer. Idempotent."""
        self._pipe.close()
        self.process.join(seconds)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(seconds / 2)
