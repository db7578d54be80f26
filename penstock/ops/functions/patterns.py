"""LIKE, RLIKE and the functions with regular expressions.

A pattern must be a constant, except for LIKE. Java's patterns are translated in java_patterns.py;
what is refused there is refused here. RE2 (Arrow's kernels) runs those that it can run with the
same result, Python's re the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, reduce
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import EvaluationFailed
from penstock.ops.functions.alignment import as_array, on_arrays
from penstock.ops.functions.failures import fail, fail_where
from penstock.ops.functions.java_patterns import JavaPattern, PatternRefused, compiled, parse, quote
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.ops.functions.searching import split_by
from penstock.plan.exprs import Call, Literal

#: A replacement: texts, and numbers of groups.
Replacement: TypeAlias = tuple[str | int, ...]
_GROUP_NAME: Final = re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}")
#: RE2's replacements name groups with one digit.
_RE2_GROUPS_MAX: Final = 9
#: The first Java in which words, for \\b, are of ASCII letters, as they are for \\w.
_JAVA_ASCII_WORDS: Final = 19


# -- LIKE


@lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str) -> str:
    """The pattern for RE2 and Python, without its anchors."""
    written = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            escaped = next(letters, None)
            if escaped is None or escaped not in ("_", "%", escape):
                fail("INVALID_FORMAT", f"the escape character in {pattern!r} precedes {escaped!r}")
            written.append(quote(escaped))
        elif letter == "_":
            written.append(".")
        elif letter == "%":
            written.append(".*")
        else:
            written.append(quote(letter))
    return "".join(written)


@lru_cache(maxsize=256)
def _like_compiled(pattern: str, escape: str) -> re.Pattern[str]:
    return re.compile(_like_pattern(pattern, escape), re.DOTALL)


def _is_like(value: Datum, pattern: str, escape: str) -> Datum:
    return pc.match_substring_regex(
        value, pattern=f"(?s)\\A(?:{_like_pattern(pattern, escape)})\\z"
    )


def _can_fail(call: Call) -> bool:
    """Whether some pattern is not constant, or escapes what cannot be escaped."""
    escape = str(call.option("escapeChar", "\\"))
    patterns = call.option("patterns")
    if not isinstance(patterns, tuple):
        literal = call.args[1]
        if not isinstance(literal, Literal):
            return True
        patterns = (literal.value.as_py(),)
    try:
        for pattern in patterns:
            _like_pattern(str(pattern), escape)
    except EvaluationFailed:
        return True
    return False


@function("Like", sql="like ilike", raises=_can_fail, strict=True)
def like(call: Call, value: Datum, pattern: Datum) -> Datum:
    escape = str(call.option("escapeChar"))
    if isinstance(pattern, pa.Scalar) and pattern.is_valid:
        return _is_like(value, pattern.as_py(), escape)
    # Another pattern in every row: Arrow's kernel takes one for all.
    return each(
        call.type,
        lambda text, like: _like_compiled(like, escape).fullmatch(text) is not None,
        value,
        pattern,
    )


def _each_like(call: Call, value: Datum) -> list[Datum]:
    patterns = call.option("patterns")
    assert isinstance(patterns, tuple)
    unknown = pa.scalar(None, pa.bool_())
    masks = [unknown if p is None else _is_like(value, str(p), "\\") for p in patterns]
    return [pc.invert(mask) for mask in masks] if call.function.startswith("Not") else masks


@function("LikeAll", "NotLikeAll", sql="like", raises=_can_fail)
def like_all(call: Call, value: Datum) -> Datum:
    return reduce(pc.and_kleene, _each_like(call, value))


@function("LikeAny", "NotLikeAny", sql="like", raises=_can_fail)
def like_any(call: Call, value: Datum) -> Datum:
    return reduce(pc.or_kleene, _each_like(call, value))


# -- which patterns are taken


def _judge(call: Call) -> str | None:
    pattern = call.args[1]
    if not isinstance(pattern, Literal) or not pattern.value.is_valid:
        return "a regular expression that is not constant"
    try:
        parse(pattern.value.as_py(), _has_ascii_words(call))
    except PatternRefused as error:
        return f"the regular expression {pattern.value.as_py()!r}: {error}"
    return None


def _judge_all(call: Call) -> str | None:
    """For functions that look for all matches.

    After an empty match Java goes on in the middle of a character beyond U+FFFF.
    """
    problem = _judge(call)
    if problem is not None:
        return problem
    pattern = _pattern(call)
    if pattern.is_nullable and not pattern.is_anchored:
        return "a regular expression that matches the empty text, for all its matches"
    return None


def _pattern(call: Call) -> JavaPattern:
    literal = call.args[1]
    assert isinstance(literal, Literal)
    return parse(literal.value.as_py(), _has_ascii_words(call))


def _compiled(call: Call) -> re.Pattern[str]:
    literal = call.args[1]
    assert isinstance(literal, Literal)
    return compiled(literal.value.as_py(), _has_ascii_words(call))


def _has_ascii_words(call: Call) -> bool:
    r"""Whether \b looks at ASCII only: so it is from Java 19 on."""
    version = call.option("javaVersion", 0)
    return isinstance(version, int) and version >= _JAVA_ASCII_WORDS


def _for_re2(java: JavaPattern, value: Datum) -> str | None:
    """The pattern that RE2 can look for in these texts, if there is one."""
    if java.is_plain:
        return java.text
    if java.ascii_text is None:
        return None
    is_ascii = pc.all(pc.string_is_ascii(as_array(value, 1)), min_count=0).as_py()
    return java.ascii_text if is_ascii else None


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """All matches as Java finds them: after an empty one the search moves on."""
    place = 0
    while place <= len(text):
        match = pattern.search(text, place)
        if match is None:
            return
        yield match
        place = match.end() + (match.end() == match.start())


# -- searching


@function("RLike", sql="rlike regexp regexp_like", raises=False, accepts=_judge, strict=True)
def rlike(call: Call, value: Datum, pattern: Datum) -> Datum:
    text = _for_re2(_pattern(call), value)
    if text is not None:
        return pc.match_substring_regex(value, pattern=text)
    expression = _compiled(call)
    return each(call.type, lambda text: expression.search(text) is not None, value)


@function("RegExpInStr", sql="regexp_instr", raises=False, accepts=_judge, strict=True)
def regexp_instr(call: Call, value: Datum, pattern: Datum, group: Datum) -> Datum:
    """The position of the first match, from 1; 0 if there is none."""
    expression = _compiled(call)

    def position(text: str, group: int) -> int:
        match = expression.search(text)
        return 0 if match is None else match.start() + 1

    return each(call.type, position, value, group)


# -- extracting


def _judge_group(call: Call) -> str | None:
    group = call.args[2]
    if not isinstance(group, Literal) or not group.value.is_valid:
        return "a group of a regular expression that is not constant"
    return _judge_all(call) if call.function == "RegExpExtractAll" else _judge(call)


def _has_no_group(call: Call) -> bool:
    group = call.args[2]
    assert isinstance(group, Literal)
    return not 0 <= group.value.as_py() <= _pattern(call).groups


@function(
    "RegExpExtract",
    sql="regexp_extract regexp_substr",
    raises=_has_no_group,
    accepts=_judge_group,
    strict=True,
)
def regexp_extract(call: Call, value: Datum, pattern: Datum, group: pa.Scalar) -> Datum:
    """A group of the first match; empty if there is none."""
    if _has_no_group(call):
        matches = rlike(call, value, pattern)
        fail_where(matches, "INVALID_PARAMETER_VALUE", f"no group {group.as_py()}")
        return pc.if_else(matches, None, "")
    java, number = _pattern(call), group.as_py()
    text = _for_re2(java, value)
    if text is not None:
        return _extract_by_re2(call, value, java.only(number, text), f"g{number}")
    expression = _compiled(call)

    def extract(text: str) -> str:
        match = expression.search(text)
        return (match[number] or "") if match is not None else ""

    return each(call.type, extract, value)


def _extract_by_re2(call: Call, value: Datum, pattern: str, name: str) -> Datum:
    @on_arrays
    def extract(call: Call, value: pa.Array) -> pa.Array:
        groups = pc.struct_field(pc.extract_regex(value, pattern=pattern), name)
        # Null where there is no match, and where the value is null: only the first is empty.
        empty = pc.if_else(pc.is_valid(value), "", pa.scalar(None, pa.string()))
        return pc.coalesce(groups, empty)

    return extract(call, value)


@function(
    "RegExpExtractAll",
    sql="regexp_extract_all regexp_count",
    raises=_has_no_group,
    accepts=_judge_group,
    strict=True,
)
def regexp_extract_all(call: Call, value: Datum, pattern: Datum, group: pa.Scalar) -> Datum:
    expression, number = _compiled(call), group.as_py()
    is_missing = _has_no_group(call)

    def extract(text: str) -> list[str]:
        matches = list(_matches(expression, text))
        if matches and is_missing:
            fail("INVALID_PARAMETER_VALUE", f"no group {number}")
        return [match[number] or "" for match in matches]

    return each(call.type, extract, value)


# -- replacing


def _judge_replace(call: Call) -> str | None:
    position = call.args[3]
    if not isinstance(position, Literal) or not position.value.is_valid:
        return "regexp_replace with a position that is not constant"
    return _judge_all(call)


def _replacement(call: Call) -> Replacement | None:
    """What to put in place of a match; None if it varies, or if Java finds no sense in it."""
    literal = call.args[2]
    if not isinstance(literal, Literal) or not literal.value.is_valid:
        return None
    return _read_replacement(literal.value.as_py(), _pattern(call))


@lru_cache(maxsize=256)
def _read_replacement(text: str, pattern: JavaPattern) -> Replacement | None:
    parts: list[str | int] = []
    place = 0
    while place < len(text):
        letter = text[place]
        place += 1
        if letter == "\\":
            if place == len(text):
                return None
            parts.append(text[place])
            place += 1
        elif letter == "$":
            name = _GROUP_NAME.match(text, place)
            if name is not None:
                number = dict(pattern.names).get(name[1], -1)
                place = name.end()
            else:
                number, place = _read_group(text, place, pattern.groups)
            if not 0 <= number <= pattern.groups:
                return None
            parts.append(number)
        else:
            parts.append(letter)
    return tuple(parts)


def _read_group(text: str, place: int, groups: int) -> tuple[int, int]:
    """As many digits as name a group of the pattern; at least one. -1 if there is none."""
    if not (text[place : place + 1].isascii() and text[place : place + 1].isdigit()):
        return -1, place
    number = int(text[place])
    place += 1
    while text[place : place + 1].isascii() and text[place : place + 1].isdigit():
        longer = number * 10 + int(text[place])
        if longer > groups:
            break
        number, place = longer, place + 1
    return number, place


@function(
    "RegExpReplace",
    sql="regexp_replace",
    raises=lambda call: _replacement(call) is None,
    accepts=_judge_replace,
    strict=True,
)
def regexp_replace(
    call: Call, value: Datum, pattern: Datum, replacement: Datum, position: pa.Scalar
) -> Datum:
    java, parts, start = _pattern(call), _replacement(call), position.as_py() - 1
    text = _for_re2(java, value) if start == 0 and java.groups <= _RE2_GROUPS_MAX else None
    if parts is not None and text is not None:
        written = "".join(
            f"\\{part}" if isinstance(part, int) else part.replace("\\", "\\\\") for part in parts
        )
        return pc.replace_substring_regex(value, pattern=text, replacement=written)
    expression = _compiled(call)

    def replace(text: str, new: str) -> str:
        if start and start >= len(text):
            return text
        # Before the position nothing is seen, not even by ^.
        parts = _read_replacement(new, java)
        return text[:start] + _replace(expression, text[start:], parts)

    return each(call.type, replace, value, replacement)


def _replace(expression: re.Pattern[str], text: str, parts: Replacement | None) -> str:
    replaced = []
    place = 0
    for match in _matches(expression, text):
        if parts is None:
            fail("INVALID_REGEXP_REPLACE", f"the replacement does not fit {expression.pattern!r}")
        replaced.append(text[place : match.start()])
        replaced.extend(p if isinstance(p, str) else match[p] or "" for p in parts)
        place = match.end()
    return "".join([*replaced, text[place:]])


# -- splitting


def _judge_split(call: Call) -> str | None:
    if not isinstance(call.args[2], Literal) or not call.args[2].value.is_valid:
        return "split with a limit that is not constant"
    problem = _judge(call)
    if problem is not None:
        return problem
    return None if _pattern(call).literal == "" else _judge_all(call)


@function("StringSplit", sql="split", raises=False, accepts=_judge_split, strict=True)
def split(call: Call, value: Datum, pattern: Datum, limit: pa.Scalar) -> Datum:
    """The parts between matches, at most `limit` of them if it is positive."""
    java, parts_max = _pattern(call), limit.as_py()
    if java.literal:
        return split_by(call, value, java.literal, parts_max - 1 if parts_max > 0 else None)
    if java.literal == "":
        return each(call.type, lambda text: _letters(text, parts_max), value)
    expression = _compiled(call)

    def split_text(text: str) -> list[str]:
        parts: list[str] = []
        place = 0
        for match in _matches(expression, text):
            if len(parts) + 1 == parts_max:
                break
            if match.end() > 0:  # Java: an empty match at the beginning parts nothing
                parts.append(text[place : match.start()])
                place = match.end()
        return [*parts, text[place:]]

    return each(call.type, split_text, value)


def _letters(text: str, parts_max: int) -> list[str]:
    if not 0 < parts_max < len(text):
        return list(text) or [""]
    return [*text[: parts_max - 1], text[parts_max - 1 :]]
