"""Reads the result as whoever uses it would: committed records only, each stamped when it is there.

A thread of the peer's program. Law: a row counts as visible once this process has it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

_LOOK_SECONDS: Final = 0.2
#: Records taken at once, of those that are there.
_TAKEN: Final = 10_000


class Reader:
    """Follows one topic of one partition into a file: a line per record, apart by tabs."""

    def __init__(self, bootstrap: str, topic: str, path: Path) -> None:
        self.rows = 0
        self._path = path
        self._failure: BaseException | None = None
        self._is_wanted = True
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader of {topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "socket.nagle.disable": True,
                "fetch.min.bytes": 1,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._thread = threading.Thread(target=self._follow, name="reader", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            with open(self._path, "wb") as file:
                while self._is_wanted:
                    first = self._consumer.poll(_LOOK_SECONDS)
                    if first is None:
                        continue
                    taken = [first, *self._consumer.consume(_TAKEN, 0)]
                    visible_us = time.time_ns() // 1_000
                    file.writelines(_line(record, visible_us) for record in taken)
                    self.rows += len(taken)
        except BaseException as error:
            self._failure = error

    def check(self) -> None:
        """Raise what ended it."""
        if self._failure is not None:
            raise RuntimeError("the reader of the result failed") from self._failure

    def close(self) -> None:
        """Idempotent. The file is complete after it."""
        self._is_wanted = False
        self._thread.join()
        self._consumer.close()


def _line(record: Any, visible_us: int) -> bytes:
    """When it was visible and when the broker appended it, both in microseconds, and the row."""
    error = record.error()
    if error is not None:
        raise RuntimeError(f"a record of the result cannot be read: {error}")
    _, appended_ms = record.timestamp()
    return b"%d\t%d\t%s\n" % (visible_us, 1_000 * appended_ms, record.value())
