"""Reasons why a query cannot run here, gathered so that the user hears all of them at once."""

from __future__ import annotations

from penstock.errors import Reason, Unsupported

#: What to do when nothing better is known.
MICRO_BATCH = "run it in micro-batches with Spark's own engine, df.writeStream"
#: What to do instead of a function that is not known.
IN_PYTHON = f"rewrite it, compute it in Python with F.pandas_udf, or {MICRO_BATCH}"


class Refusals:
    """Collects reasons during translation."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def add(self, node: str, problem: str, remedy: str = MICRO_BATCH) -> None:
        """Note a reason; the same one is noted once."""
        reason = Reason(node, problem, remedy)
        if reason not in self.reasons:
            self.reasons.append(reason)

    def check(self, cause: Exception | None = None) -> None:
        """Raise Unsupported if there are any reasons."""
        if self.reasons:
            count = len(self.reasons)
            head = f"this query cannot run here, for {count} reason{'s' * (count > 1)}:"
            lines = [f"{index}. {reason}" for index, reason in enumerate(self.reasons, 1)]
            raise Unsupported("\n".join([head, *lines]), tuple(self.reasons)) from cause
