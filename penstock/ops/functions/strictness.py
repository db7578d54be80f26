"""Functions of which one null argument decides: Spark does not evaluate the arguments after it.

`null + 1 / 0` is null in Spark, not a failure. Law: an argument that can fail is evaluated only
over the rows for which no argument before it is null.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.functions.branches import can_fail, evaluate_where
from penstock.ops.functions.registry import Compiled, Datum, Evaluate, Raises, special_form
from penstock.plan.exprs import Call


def strict_function(
    *kinds: str, sql: str = "", raises: bool | Raises = False, right_first: bool = False
) -> Callable[[Evaluate], Evaluate]:
    """Register `evaluate(call, *values)`, whose arguments are evaluated until one is null.

    They are evaluated from left to right, or `right_first`: divisions look at the divisor first.
    """

    def register(evaluate: Evaluate) -> Evaluate:
        @special_form(*kinds, sql=sql, raises=raises)
        def form(call: Call, args: list[Compiled]) -> Compiled:
            order = list(range(len(args)))
            if right_first:
                order.reverse()
            if any(can_fail(args[place]) for place in order[1:]):
                return lambda batch: evaluate(call, *_until_null(call, args, order, batch))
            if len(args) == 2:
                one, two = args
                return lambda batch: evaluate(call, one(batch), two(batch))
            return lambda batch: evaluate(call, *[arg(batch) for arg in args])

        return evaluate

    return register


def _until_null(
    call: Call, args: list[Compiled], order: list[int], batch: pa.RecordBatch
) -> list[Datum]:
    values: dict[int, Datum] = {}
    rows = np.ones(batch.num_rows, bool)
    for place in order:
        if can_fail(args[place]):
            value: Datum = evaluate_where(args[place], batch, rows, call.args[place].type)
        else:
            value = args[place](batch)
        if isinstance(value, pa.Scalar):
            rows &= value.is_valid
        elif value.null_count:
            rows &= value.is_valid().to_numpy(zero_copy_only=False)
        values[place] = value
    return [values[place] for place in range(len(args))]
