"""The options of from_json and to_json: those that change nothing, those we know, those we refuse.

An option that is not listed here is refused by name, because its effect is not known to be Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.ops.functions.json_tokens import Dialect
from penstock.ops.functions.time_patterns import UnknownPattern
from penstock.ops.functions.zones import UTC_ZONE, Zone, find_zone
from penstock.plan.exprs import Call

_DIALECT: Final = {
    "allowcomments": "comments",
    "allowunquotedfieldnames": "unquoted_names",
    "allowsinglequotes": "single_quotes",
    "allownumericleadingzeros": "leading_zeros",
    "allownonnumericnumbers": "non_numbers",
    "allowbackslashescapinganycharacter": "any_escape",
    "allowunquotedcontrolchars": "control_characters",
}
#: For inferring a schema, and for files.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "compression",
        "dropfieldifallnull",
        "infertimestamp",
        "linesep",
        "multiline",
        "prefersdecimal",
        "primitivesasstring",
        "samplingratio",
    }
)
READ_FORMATS: Final = ("dateformat", "timestampformat", "timestampntzformat")
_READ: Final = frozenset({"mode", "columnnameofcorruptrecord", "locale", "timezone", *READ_FORMATS})
_WRITTEN: Final = frozenset({"ignorenullfields", "locale", "pretty", "timezone", *READ_FORMATS})


def given_options(call: Call) -> dict[str, str]:
    """What the user wrote, by name in lower case."""
    pairs = call.option("options", ())
    assert isinstance(pairs, tuple), pairs
    return {str(name).lower(): str(value) for name, value in pairs}


def is_set(options: dict[str, str], name: str, default: bool) -> bool:
    """An option that is true or false."""
    return options[name].lower() == "true" if name in options else default


def dialect_of(options: dict[str, str]) -> Dialect:
    """What a text may have beyond the standard."""
    standard = Dialect()
    return Dialect(
        **{
            field: is_set(options, name, getattr(standard, field))
            for name, field in _DIALECT.items()
        }
    )


def zone_of_options(call: Call, options: dict[str, str]) -> Zone:
    """The zone of timestamps that name none."""
    zone = find_zone(options.get("timezone", str(call.option("timeZoneId", "UTC"))))
    return zone if zone is not None else UTC_ZONE


def read_problem(call: Call, compile: Callable[[str], object]) -> str | None:
    """Why the options of a reader cannot be obeyed, or None."""
    return _problem(call, _READ | _DIALECT.keys() | _WITHOUT_EFFECT, compile)


def write_problem(call: Call, compile: Callable[[str], object]) -> str | None:
    """Why the options of a writer cannot be obeyed, or None."""
    return _problem(call, _WRITTEN | _WITHOUT_EFFECT, compile)


def _problem(
    call: Call, known: frozenset[str] | set[str], compile: Callable[[str], object]
) -> str | None:
    options = given_options(call)
    for name in options:
        if name not in known:
            return f"the option {name!r}, whose effect is not known here; leave it out"
    return times_problem(call, options, compile)


def times_problem(
    call: Call, options: dict[str, str], compile: Callable[[str], object]
) -> str | None:
    """Why mode, language, patterns and zone cannot be obeyed, or None."""
    language = options.get("locale", "en-US")
    if language.lower() != "en-us":
        return f"the locale {language!r}; take en-US, or read texts and replace what differs"
    mode = options.get("mode", "PERMISSIVE").upper()
    if mode not in ("PERMISSIVE", "FAILFAST"):
        return f"the mode {mode!r}; take PERMISSIVE or FAILFAST"
    for name in READ_FORMATS:
        if name not in options:
            continue
        try:
            compile(options[name])
        except UnknownPattern as error:
            return f"the option {name} with the pattern {options[name]!r}: {error}"
    zone = options.get("timezone", str(call.option("timeZoneId", "UTC")))
    return None if find_zone(zone) is not None else f"the time zone {zone!r}, which is not known"
