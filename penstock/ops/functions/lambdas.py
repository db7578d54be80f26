"""Higher-order functions over arrays and maps: `filter(xs, x -> x > 1)`.

A lambda is evaluated once over all elements of all rows: the elements become the column of its
variable, and the row's own columns are repeated beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.ops.functions.registry import Compiled
from penstock.plan.exprs import Call, Expr


def compile_lambda_call(
    call: Call, schema: pa.Schema, compile_expr: Callable[[Expr, pa.Schema], Compiled]
) -> Compiled:
    """The compiled form of a call with a lambda among its arguments."""
    raise NotImplementedError(call.function)
