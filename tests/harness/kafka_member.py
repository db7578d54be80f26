"""A member of a consumer group, as a process to be killed.

It tells of each record before it commits it, and of the partitions that it has, in lines of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from confluent_kafka import Consumer


class Member:
    """The process, as a test sees it."""

    def __init__(self, ways: dict[str, Any], topic: str) -> None:
        command = [sys.executable, __file__, json.dumps(ways), topic]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.partitions: list[int] = []
        #: Partition and value, as they came.
        self.read: list[tuple[int, str]] = []
        self._listener = threading.Thread(target=self._listen, name="member")
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # killed in the middle of it
            said = json.loads(line)
            if "has" in said:
                self.partitions = said["has"]
            else:
                self.read.append((said["partition"], said["value"]))

    def kill(self) -> None:
        """kill -9, and take in what it had said. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    consumer = Consumer(json.loads(sys.argv[1]))
    has: set[int] = set()

    def tell(**said: object) -> None:
        print(json.dumps(said), flush=True)

    def assigned(_: Consumer, partitions: list[Any]) -> None:
        has.update(each.partition for each in partitions)
        tell(has=sorted(has))

    def revoked(_: Consumer, partitions: list[Any]) -> None:
        has.difference_update(each.partition for each in partitions)
        tell(has=sorted(has))

    consumer.subscribe([sys.argv[2]], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            raise SystemExit(f"{error}")
        tell(partition=message.partition(), value=(message.value() or b"").decode())
        consumer.commit(message=message, asynchronous=False)


if __name__ == "__main__":
    main()
