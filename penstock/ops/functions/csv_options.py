"""The options of from_csv and to_csv: those that change nothing, those we know, those we refuse.

An option that is not listed here is refused by name, because its effect is not known to be Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.ops.functions.csv_tokens import CsvDialect
from penstock.ops.functions.json_options import READ_FORMATS, given_options, is_set, times_problem
from penstock.plan.exprs import Call

_NOTHING: Final = "\0"
#: For inferring a schema, and for files.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "charset",
        "codec",
        "compression",
        "encoding",
        "enforceschema",
        "extension",
        "header",
        "inferschema",
        "preferdate",
        "samplingratio",
    }
)
_SHARED: Final = frozenset(
    {
        "chartoescapequoteescaping",
        "comment",
        "delimiter",
        "emptyvalue",
        "escape",
        "ignoreleadingwhitespace",
        "ignoretrailingwhitespace",
        "locale",
        "nullvalue",
        "quote",
        "sep",
        "timezone",
        *READ_FORMATS,
    }
)
_READ: Final = frozenset(
    {
        "columnnameofcorruptrecord",
        "linesep",
        "mode",
        "multiline",
        "nanvalue",
        "negativeinf",
        "positiveinf",
        "unescapedquotehandling",
    }
)
_WRITTEN: Final = frozenset({"escapequotes", "quoteall"})
_CHARACTERS: Final = ("quote", "escape", "comment", "chartoescapequoteescaping")
_SEPARATORS: Final = {"\\t": "\t", "\\r": "\r", "\\b": "\b", "\\f": "\f", "\\\\": "\\"}
_SEPARATORS_QUOTED: Final = {'\\"': '"', "\\'": "'"}


def csv_dialect(options: dict[str, str], *, trims: bool) -> CsvDialect:
    """How lines are read or written; `trims` says what is done with blanks if nobody says."""
    quote = options.get("quote", '"') or _NOTHING
    escape = options.get("escape", "\\") or _NOTHING
    unless_given = _NOTHING if quote == escape else escape
    return CsvDialect(
        separator=_separator(options),
        quote=quote,
        escape=escape,
        escape_escape=options.get("chartoescapequoteescaping") or unless_given,
        comment=options.get("comment") or "#",
        skips_comments=bool(options.get("comment")),
        trims_start=is_set(options, "ignoreleadingwhitespace", trims),
        trims_end=is_set(options, "ignoretrailingwhitespace", trims),
        null=options.get("nullvalue", ""),
        empty=options.get("emptyvalue", '""' if trims else ""),
    )


def _separator(options: dict[str, str]) -> str:
    given = options.get("sep", options.get("delimiter", ","))
    return {**_SEPARATORS, **_SEPARATORS_QUOTED}.get(given, given)


def csv_read_problem(call: Call, compile: Callable[[str], object]) -> str | None:
    """Why the options of from_csv cannot be obeyed, or None."""
    handling = given_options(call).get("unescapedquotehandling", "STOP_AT_DELIMITER")
    if handling.upper() != "STOP_AT_DELIMITER":
        return f"the option 'unescapedQuoteHandling' {handling}; leave it out"
    return _problem(call, _SHARED | _READ | _WITHOUT_EFFECT, compile)


def csv_write_problem(call: Call, compile: Callable[[str], object]) -> str | None:
    """Why the options of to_csv cannot be obeyed, or None."""
    return _problem(call, _SHARED | _WRITTEN | _WITHOUT_EFFECT, compile)


def _problem(call: Call, known: frozenset[str], compile: Callable[[str], object]) -> str | None:
    options = given_options(call)
    for name in options:
        if name not in known:
            return f"the option {name!r}, whose effect is not known here; leave it out"
    if len(_separator(options)) != 1:
        return f"the separator {_separator(options)!r}; take a single character"
    for name in _CHARACTERS:
        if len(options.get(name, "")) > 1:
            return f"the option {name!r} of more than one character; take one"
    return times_problem(call, options, compile)
