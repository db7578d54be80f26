"""Loads a Kafka broker, or what speaks its protocol, by the same client: `penstock bench gateway`.

A program for the harness, in the peer's virtual environment. `open` starts a broker of the peer's
own, which syncs every append before it acknowledges it; every other command names the `ways` of the
servers that it is about. All producers are idempotent, and wait for `acks=all`.

    {"do": "open", "directory": …}                  {"ways": {…}, "settings": {…}}
    {"do": "make", "ways": …, "topic": …}           {}
    {"do": "produce_one", …, "seconds": …}          {"seconds": [one by one]}
    {"do": "transact", …, "rows": …, "pause": …}    {"seconds": [one by one]}
    {"do": "produce", …, "seconds": …, "bytes": …}  {"rows": …, "seconds": …}
    {"do": "fetch", …, "rows": …}                   {"rows": …, "seconds": …}
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker import Broker, end_process  # noqa: E402
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from settings import VARIANTS  # noqa: E402
from talk import Command, Figures, serve  # noqa: E402

#: The broker that syncs, and goes on to the next transaction as soon as we know how to have it.
_VARIANT: Final = VARIANTS["commit_2ms_flushed"]
_SECONDS: Final = 60.0
_END_SECONDS: Final = 4.0
#: Records before which nothing is counted: connections are made, code is compiled.
_WARM: Final = 50
#: Rows that a batch of the client's has taken at once.
_TAKEN: Final = 10_000


class ClientLoad:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._producers: dict[str, Producer] = {}
        self._failures: list[str] = []

    def open(self, command: Command) -> Figures:
        self._broker = Broker(Path(command["directory"]), _VARIANT.broker, _VARIANT.java)
        return {
            "ways": {"bootstrap.servers": self._broker.bootstrap},
            "settings": _VARIANT.broker,
        }

    def make(self, command: Command) -> Figures:
        admin = AdminClient(command["ways"])
        admin.create_topics([NewTopic(command["topic"], 1, 1)])[command["topic"]].result(_SECONDS)
        return {}

    def produce_one(self, command: Command) -> Figures:
        """A record is produced when the one before it is durable."""
        producer = self._producer(command, "one", {"linger.ms": 0})

        def step(value: bytes) -> None:
            self._send(producer, command["topic"], value)
            self._flush(producer)

        return {"seconds": self._timed(command, step)}

    def transact(self, command: Command) -> Figures:
        """A transaction begins when the one before it is committed, or `pause` seconds after."""
        name = f"transact-{command['topic']}"
        producer = self._producer(command, name, {"linger.ms": 0, "transactional.id": name})

        def step(value: bytes) -> None:
            producer.begin_transaction()
            for _ in range(command["rows"]):
                self._send(producer, command["topic"], value)
            producer.commit_transaction(_SECONDS)
            self._check()

        return {"seconds": self._timed(command, step, command["pause"])}

    def produce(self, command: Command) -> Figures:
        producer = self._producer(command, "many", {"linger.ms": 5, "batch.num.messages": 10_000})
        value = bytes(command["bytes"])
        rows, began = 0, time.perf_counter()
        while time.perf_counter() < began + command["seconds"]:
            for _ in range(1_000):
                while True:
                    try:
                        self._send(producer, command["topic"], value)
                        break
                    except BufferError:
                        producer.poll(0.01)  # as much is under way as the client holds
            rows += 1_000
            producer.poll(0)
        self._flush(producer)
        return {"rows": rows, "seconds": time.perf_counter() - began}

    def fetch(self, command: Command) -> Figures:
        settings = {
            **command["ways"], "group.id": "load", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
            # Rows are fetched ahead without a pause, also while those before are counted.
            "queued.min.messages": 1_000_000,
        }  # fmt: skip
        consumer = Consumer(settings)
        began = time.perf_counter()
        consumer.assign([TopicPartition(command["topic"], 0, -2)])
        rows = 0
        while rows < command["rows"]:
            found = consumer.consume(_TAKEN, 1.0)
            if not found and time.perf_counter() > began + _SECONDS:
                raise RuntimeError(f"{rows} of {command['rows']} rows came")
            wrong = next((each.error() for each in found if each.error() is not None), None)
            if wrong is not None:
                raise RuntimeError(str(wrong))
            rows += len(found)
        took = time.perf_counter() - began
        consumer.close()
        return {"rows": rows, "seconds": took}

    def close(self) -> None:
        self._producers.clear()
        if self._broker is not None:
            end_process(self._broker.process, _END_SECONDS)

    # ---- parts

    def _producer(self, command: Command, name: str, more: dict[str, Any]) -> Producer:
        """One for each server and kind of load, whose connections stay."""
        key = f"{command['ways']['bootstrap.servers']} {name}"
        if key not in self._producers:
            settings = {
                **command["ways"], "enable.idempotence": True, "socket.nagle.disable": True,
                "delivery.report.only.error": True, **more,
            }  # fmt: skip
            self._producers[key] = Producer(settings)
            if "transactional.id" in more:
                self._producers[key].init_transactions(_SECONDS)
        return self._producers[key]

    def _send(self, producer: Producer, topic: str, value: bytes) -> None:
        producer.produce(topic, value, partition=0, on_delivery=self._answered)

    def _answered(self, error: object, _: object) -> None:
        self._failures.append(str(error))

    def _flush(self, producer: Producer) -> None:
        if producer.flush(_SECONDS):
            raise RuntimeError("not all was acknowledged")
        self._check()

    def _check(self) -> None:
        if self._failures:
            raise RuntimeError(f"not acknowledged: {self._failures[:3]}")

    @staticmethod
    def _timed(command: Command, step: Any, pause: float = 0.0) -> list[float]:
        value = bytes(command["bytes"])
        for _ in range(_WARM):
            step(value)
        took: list[float] = []
        deadline = time.perf_counter() + command["seconds"]
        while (began := time.perf_counter()) < deadline:
            step(value)
            took.append(time.perf_counter() - began)
            if pause:
                time.sleep(pause)
        return took


if __name__ == "__main__":
    load = ClientLoad()
    handlers = {
        "open": load.open,
        "make": load.make,
        "produce_one": load.produce_one,
        "transact": load.transact,
        "produce": load.produce,
        "fetch": load.fetch,
    }
    serve(handlers, close=load.close)
