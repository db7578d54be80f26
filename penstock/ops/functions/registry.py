"""The registry of functions: Catalyst's name of an expression to the code that evaluates it.

A *function* is given its arguments' values and answers with a value. A *special form* decides
itself which arguments to evaluate, and over which rows: branches, short circuits, lambdas.

A value (Datum) is an Arrow array with one element per row, or a scalar that stands for all rows.
Contract of a function: nulls, errors and types are Spark's, per evaluation mode of the call; the
answer has call.type exactly; no state, no clock, no randomness; no loop over rows in Python unless
a comment says why no column kernel can do it.

Law: whatever the registry does not know is refused during translation. The documentation's list of
functions (docs/functions.md) is printed from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.plan.exprs import Call

Datum: TypeAlias = pa.Array | pa.Scalar
#: A compiled expression: from the rows to its value over them.
Compiled: TypeAlias = Callable[[pa.RecordBatch], Datum]
Evaluate: TypeAlias = Callable[..., Datum]
#: What is true of all rows; whoever meets it may know it by its identity.
TRUE: Final = pa.scalar(True)


@dataclass(frozen=True, slots=True)
class Argument:
    """A compiled argument of a special form; called with rows, it gives its value over them."""

    evaluate: Compiled
    #: Whether some row can make it fail: then it is evaluated only over the rows that Spark takes.
    can_fail: bool

    def __call__(self, batch: pa.RecordBatch) -> Datum:
        return self.evaluate(batch)


#: Makes the compiled form of a call out of its arguments.
Form: TypeAlias = Callable[[Call, list[Argument]], Compiled]
#: Whether a call can fail on some row, apart from its arguments.
Raises: TypeAlias = Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function or special form."""

    #: Catalyst's class names that it answers for.
    kinds: tuple[str, ...]
    #: The names users write, for the documentation.
    sql: tuple[str, ...]
    evaluate: Evaluate | None
    form: Form | None
    raises: Raises
    #: Says why a call cannot be evaluated, or None.
    accepts: Callable[[Call], str | None]
    #: Whether Spark evaluates the arguments one by one, and none after one that is null.
    strict: bool = False
    #: The order in which it does so, if that is not from the first to the last.
    order: tuple[int, ...] = ()
    #: The same as `evaluate`, for who need not know the call.
    kernel: Evaluate | None = None


FUNCTIONS: dict[str, Function] = {}


def _when_ansi(call: Call) -> bool:
    return call.is_ansi


def _accepts_all(call: Call) -> str | None:
    return None


def function(
    *kinds: str,
    sql: str = "",
    raises: bool | Raises = _when_ansi,
    accepts: Callable[[Call], str | None] = _accepts_all,
    strict: bool = False,
    order: tuple[int, ...] = (),
) -> Callable[[Evaluate], Evaluate]:
    """Register `evaluate(call, *values)` for these Catalyst names. `sql` lists names, spaced.

    `raises` says whether a call can fail on a row; by default it can in ANSI mode. `strict` and
    `order` say which arguments Spark evaluates: see Function.
    """

    def register(evaluate: Evaluate) -> Evaluate:
        names, fails = tuple(sql.split()), _as_raises(raises)
        _add(Function(kinds, names, evaluate, None, fails, accepts, strict, order))
        return evaluate

    return register


def special_form(
    *kinds: str,
    sql: str = "",
    raises: bool | Raises = False,
    accepts: Callable[[Call], str | None] = _accepts_all,
) -> Callable[[Form], Form]:
    """Register `form(call, compiled_args) -> compiled` for these Catalyst names."""

    def register(form: Form) -> Form:
        _add(Function(kinds, tuple(sql.split()), None, form, _as_raises(raises), accepts))
        return form

    return register


def kernels(rows: Mapping[str, tuple[str, Evaluate]], *, strict: bool = False) -> None:
    """Register functions that never fail and are one kernel each: by kind, SQL names and kernel."""
    for kind, (sql, kernel) in rows.items():
        names, evaluate, fails = tuple(sql.split()), _without_call(kernel), _as_raises(False)
        row = Function((kind,), names, evaluate, None, fails, _accepts_all, strict, kernel=kernel)
        _add(row)


def _without_call(kernel: Evaluate) -> Evaluate:
    return lambda call, *values: kernel(*values)


def judge(call: Call) -> str | None:
    """Why the call cannot be evaluated, or None if it can."""
    function = FUNCTIONS.get(call.function)
    if function is None:
        return f"no function for {call.function}"
    return function.accepts(call)


def _add(row: Function) -> None:
    for kind in row.kinds:
        assert kind not in FUNCTIONS, f"{kind} is registered twice"
        FUNCTIONS[kind] = row


def _as_raises(raises: bool | Raises) -> Raises:
    if isinstance(raises, bool):
        return (lambda call: True) if raises else (lambda call: False)
    return raises
