"""Alerts from state of your own: three failed logins in a row, by user, with `transformWithState`.

The processor is Spark's own interface, unchanged: it keeps a counter per user and clears it after a
success. Its state survives kills and restarts like that of any other operator.

    python examples/login_alerts.py
"""

import tempfile
from collections.abc import Iterator

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock

LOGINS = "user string NOT NULL, ok boolean, address string"
FAILURES_MAX = 3


class FailedLogins(StatefulProcessor):
    """Counts failures in a row, and tells the address of the last one."""

    def init(self, handle) -> None:
        self.failures = handle.getValueState("failures", "count int")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        count = self.failures.get()[0] if self.failures.exists() else 0
        for row in rows:
            count = 0 if row.ok else count + 1
            if count == FAILURES_MAX:
                yield Row(user=key[0], failures=count, address=row.address)
        self.failures.update((count,))

    def close(self) -> None:
        pass


def alerts(logins: DataFrame) -> DataFrame:
    schema = "user string, failures int, address string"
    return logins.groupBy("user").transformWithState(FailedLogins(), schema, "Append", "None")


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        logins = log.create_stream("logins", LOGINS)
        frame = alerts(logins.df(spark))
        # With one worker, rows of a user come in the order of the log: "in a row" means that.
        query = penstock.start(frame, to="alerts", name="alerts", mode="append", workers=1, log=log)
        attempts = [("ann", False), ("eve", False), ("ann", True), ("eve", False), ("ann", False)]
        for number, (user, ok) in enumerate([*attempts, ("eve", False), ("ann", False)]):
            logins.append({"user": user, "ok": ok, "address": f"10.0.0.{number}"})
        query.processAllAvailable()
        query.stop()

        for row in log.stream("alerts").read().to_pylist():
            print(f"{row['user']}: {row['failures']} failed logins, last from {row['address']}")


if __name__ == "__main__":
    main()
