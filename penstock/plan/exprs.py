"""Expressions of the IR: immutable, typed, free of Spark.

Four kinds are enough. A Call names a function of the registry (ops/functions) by Catalyst's own
class name, because Catalyst has resolved overloads and coercions: `Upper`, `Add`, `Cast`. Options
are the settings that Catalyst froze into that node (evaluation mode, fail on error, time zone ...).

Law: an expression is a value. Equal expressions give equal columns; it can be hashed, compared,
printed, and sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

#: A setting: nothing, a number, text, bytes, an Arrow scalar, or a tuple of these.
Option: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the input, or a variable of an enclosing lambda."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `value.type` is its type."""

    value: pa.Scalar

    def __eq__(self, other: object) -> bool:
        """Arrow calls 0.0 and -0.0 equal; what is computed from them is not."""
        if not isinstance(other, Literal) or not self.value.equals(other.value):
            return False
        kind = self.value.type
        if not pa.types.is_floating(kind) and not pa.types.is_nested(kind):
            return True
        return repr(self.value.as_py()) == repr(other.value.as_py())

    def __reduce__(self) -> tuple[Callable[..., Literal], tuple[object, ...]]:
        """Arrow's calendar intervals cannot be pickled, but what they consist of can."""
        if pa.types.is_interval(self.value.type) and self.value.is_valid:
            return _interval, tuple(self.value.as_py())
        return Literal, (self.value,)

    @property
    def type(self) -> pa.DataType:
        return self.value.type


def _interval(months: int, days: int, nanoseconds: int) -> Literal:
    return Literal(pa.scalar(pa.MonthDayNano((months, days, nanoseconds))))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the registry over arguments."""

    function: str
    args: tuple[Expr, ...]
    type: pa.DataType
    options: tuple[tuple[str, Option], ...] = ()

    def option(self, name: str, default: Option = None) -> Option:
        """The option of this name as Catalyst spelled it, or the default."""
        for key, value in self.options:
            if key == name:
                return value
        return default

    @property
    def is_ansi(self) -> bool:
        """Whether wrong input is an error here. Modes differ per node, never per query."""
        mode = self.option("evalMode")
        if mode is not None:
            return mode == "ANSI"
        return bool(self.option("failOnError", self.option("ansiEnabled", False)))

    @property
    def is_try(self) -> bool:
        """Whether wrong input gives null because the user wrote try_."""
        return self.option("evalMode") == "TRY"


@dataclass(frozen=True, slots=True)
class Lambda:
    """A function that the user wrote in place: `x -> x + 1`."""

    params: tuple[Column, ...]
    body: Expr

    @property
    def type(self) -> pa.DataType:
        return self.body.type


Expr: TypeAlias = Column | Literal | Call | Lambda


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly below."""
    match expr:
        case Call():
            return expr.args
        case Lambda():
            return (expr.body,)
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all below it, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def conjuncts(expr: Expr) -> list[Expr]:
    """The parts of a condition that must all be true."""
    if isinstance(expr, Call) and expr.function == "And":
        return [part for arg in expr.args for part in conjuncts(arg)]
    return [expr]


def columns(expr: Expr) -> frozenset[str]:
    """The names of the columns that it reads; a lambda's own variables are not among them."""
    match expr:
        case Column():
            return frozenset((expr.name,))
        case Lambda():
            return columns(expr.body) - {param.name for param in expr.params}
        case _:
            return frozenset().union(*(columns(child) for child in children(expr)))


def replace(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with every topmost part that `change` answers for replaced by its answer."""
    changed = change(expr)
    if changed is not None:
        return changed
    match expr:
        case Call():
            args = tuple(replace(arg, change) for arg in expr.args)
            return Call(expr.function, args, expr.type, expr.options)
        case Lambda():
            return Lambda(expr.params, replace(expr.body, change))
        case _:
            return expr
