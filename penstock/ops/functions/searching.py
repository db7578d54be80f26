"""Finding texts in texts without patterns: prefixes, positions, replacement, splitting, distance.

Patterns are in patterns.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import Ints, on_arrays
from penstock.ops.functions.failures import fail
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each, each_with_nulls
from penstock.ops.functions.slices import Layout, prefix, suffix
from penstock.plan.exprs import Call, Literal

#: The code of each letter from A to Z; 7 marks H and W, which do not part equal codes.
_SOUNDEX: Final = "01230127022455012623017202"


@function("StartsWith", "ByteArrayMethods.startsWith", sql="startswith", raises=False, strict=True)
def starts_with(call: Call, value: Datum, wanted: Datum) -> Datum:
    return _has_affix(call, pc.starts_with, prefix, value, wanted)


@function("EndsWith", "ByteArrayMethods.endsWith", sql="endswith", raises=False, strict=True)
def ends_with(call: Call, value: Datum, wanted: Datum) -> Datum:
    return _has_affix(call, pc.ends_with, suffix, value, wanted)


def _has_affix(
    call: Call,
    kernel: Callable[..., Datum],
    cut: Callable[[pa.Array, Ints], pa.Array],
    value: Datum,
    wanted: Datum,
) -> Datum:
    if isinstance(wanted, pa.Scalar) and wanted.is_valid:
        return kernel(value, pattern=wanted.as_py())

    @on_arrays
    def compare(call: Call, value: pa.Array, wanted: pa.Array) -> pa.Array:
        layout = Layout.of(wanted)
        return pc.equal(cut(value, layout.end - layout.begin), wanted.view(pa.binary()))

    return compare(call, value, wanted)


@function("Contains", "ByteArrayMethods.contains", sql="contains", raises=False, strict=True)
def contains(call: Call, value: Datum, wanted: Datum) -> Datum:
    if isinstance(wanted, pa.Scalar) and wanted.is_valid:
        return pc.match_substring(value, pattern=wanted.as_py())
    # Another text to find in every row: Arrow's kernel takes one for all.
    return each(call.type, lambda text, part: part in text, value, wanted)


@function("StringInstr", sql="instr", raises=False, strict=True)
def instr(call: Call, value: Datum, wanted: Datum) -> Datum:
    """The position of the first occurrence, from 1; 0 if there is none."""
    if isinstance(wanted, pa.Scalar) and wanted.is_valid:
        return _position(call, value, wanted)
    return each(call.type, lambda text, part: text.find(part) + 1, value, wanted)


def _position(call: Call, value: Datum, wanted: pa.Scalar) -> Datum:
    @on_arrays
    def find(call: Call, value: pa.Array) -> pa.Array:
        bytes_at = pc.find_substring(value, pattern=wanted.as_py())
        layout = Layout.of(value)
        if layout.is_ascii:
            return pc.add(bytes_at, pa.scalar(1, pa.int32()))
        counted = layout.characters()
        bytes_before = pc.fill_null(bytes_at, -1).to_numpy(zero_copy_only=False)
        before = counted[layout.begin + np.maximum(bytes_before, 0)] - counted[layout.begin]
        places = np.where(bytes_before < 0, 0, before + 1).astype(np.int32)
        return pa.array(places, mask=None if layout.valid is None else ~layout.valid)

    return find(call, value)


@function("StringInstrWithOccurrence", sql="instr", raises=True, strict=True)
def instr_nth(call: Call, value: Datum, wanted: Datum, start: Datum, nth: Datum) -> Datum:
    """The position of the n-th occurrence from a position on, backwards from a negative one."""
    return each(call.type, _instr_nth, value, wanted, start, nth)


def _instr_nth(text: str, wanted: str, start: int, nth: int) -> int:
    if nth < 1:
        fail("INVALID_PARAMETER_VALUE", f"occurrence {nth}")
    if not wanted:
        return 1
    if start == 0 or abs(start) > len(text):
        return 0
    # Occurrences may overlap.
    place = start - 1 if start > 0 else len(text) + start
    for count in range(nth):
        if start > 0:
            place = text.find(wanted, place + (count > 0))
        else:
            place = (
                text.rfind(wanted, 0, max(place - (count > 0) + len(wanted), 0))
                if place >= 0
                else -1
            )
        if place < 0:
            return 0
    return place + 1


@function("StringLocate", sql="locate position", raises=False, strict=True, order=(2, 0, 1))
def locate(call: Call, wanted: Datum, value: Datum, start: Datum) -> Datum:
    """As instr, from a position on; 0 if the position is null or below 1."""
    is_plain = isinstance(start, pa.Scalar) and start.as_py() == 1
    if is_plain and isinstance(wanted, pa.Scalar) and wanted.is_valid:
        return _position(call, value, wanted)
    return each_with_nulls(call.type, _locate, wanted, value, start)


def _locate(wanted: str | None, text: str | None, start: int | None) -> int | None:
    if start is None:
        return 0
    if wanted is None or text is None:
        return None
    if start < 1:
        return 0
    return text.find(wanted, start - 1) + 1 if wanted else 1


@function("FindInSet", sql="find_in_set", raises=False, strict=True)
def find_in_set(call: Call, word: Datum, words: Datum) -> Datum:
    """Which of the words, parted by commas, it is; 0 if none."""
    return each(call.type, _find_in_set, word, words)


def _find_in_set(word: str, words: str) -> int:
    parts = words.split(",")
    return parts.index(word) + 1 if word in parts else 0


@function("StringReplace", sql="replace", raises=False, strict=True)
def replace(call: Call, value: Datum, old: Datum, new: Datum) -> Datum:
    if all(isinstance(each_, pa.Scalar) and each_.is_valid for each_ in (old, new)):
        if not old.as_py():
            return value
        return pc.replace_substring(value, pattern=old.as_py(), replacement=new.as_py())
    return each(call.type, lambda text, a, b: text.replace(a, b) if a else text, value, old, new)


@function("SubstringIndex", sql="substring_index", raises=False, strict=True)
def substring_index(call: Call, value: Datum, delimiter: Datum, count: Datum) -> Datum:
    """What is before the n-th delimiter from the left, or after the n-th from the right."""
    # Delimiters found may overlap, which Arrow's split does not allow.
    return each(call.type, _substring_index, value, delimiter, count)


def _substring_index(text: str, delimiter: str, count: int) -> str:
    if not delimiter or count == 0:
        return ""
    place = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):
        if count > 0:
            place = text.find(delimiter, place + 1)
        else:
            place = text.rfind(delimiter, 0, place - 1 + len(delimiter)) if place > 0 else -1
        if place < 0:
            return text
    return text[:place] if count > 0 else text[place + len(delimiter) :]


@function("StringSplitSQL", sql="split_part", raises=False, strict=True)
def split_at(call: Call, value: Datum, delimiter: Datum) -> Datum:
    """All parts between delimiters; an empty delimiter parts nothing."""
    if isinstance(delimiter, pa.Scalar) and delimiter.as_py():
        return split_by(call, value, delimiter.as_py(), None)
    return each(call.type, lambda text, d: text.split(d) if d else [text], value, delimiter)


def split_by(call: Call, value: Datum, delimiter: str, splits_max: int | None) -> Datum:
    """The parts between delimiters, of which the first so many count."""

    @on_arrays
    def split(call: Call, value: pa.Array) -> pa.Array:
        parts = pc.split_pattern(value, pattern=delimiter, max_splits=splits_max)
        return parts.cast(call.type)

    return split(call, value)


# -- likeness


def _needs_constant_threshold(call: Call) -> str | None:
    if len(call.args) > 2 and not isinstance(call.args[2], Literal):
        return "levenshtein with a threshold that is not constant"
    return None


@function(
    "Levenshtein", sql="levenshtein", raises=False, accepts=_needs_constant_threshold, strict=True
)
def levenshtein(call: Call, left: Datum, right: Datum, *threshold: Datum) -> Datum:
    """How many insertions, deletions and substitutions; -1 if more than the threshold."""

    def bounded(left: str, right: str, most: int) -> int:
        distance = _distance(left, right)
        return distance if distance <= most else -1

    # Dynamic programming per pair of strings: no kernel has it.
    return each(call.type, bounded if threshold else _distance, left, right, *threshold)


def _distance(left: str, right: str) -> int:
    above = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        line = [row]
        for column, other in enumerate(right, 1):
            substituted = above[column - 1] + (letter != other)
            line.append(min(line[-1] + 1, above[column] + 1, substituted))
        above = line
    return above[-1]


@function("SoundEx", sql="soundex", raises=False)
def soundex(call: Call, value: Datum) -> Datum:
    return each(call.type, _soundex, value)


def _soundex(text: str) -> str:
    first = text[:1].upper() if text[:1].isascii() else ""
    if not "A" <= first <= "Z":
        return text
    code = first
    last = _SOUNDEX[ord(first) - 65]
    for letter in text[1:]:
        upper = letter.upper() if letter.isascii() else ""
        digit = _SOUNDEX[ord(upper) - 65] if "A" <= upper <= "Z" else "0"
        if digit == "7":
            continue
        if digit not in ("0", last):
            code += digit
            if len(code) == 4:
                break
        last = digit
    return code.ljust(4, "0")


@function("ExpressionImplUtils.jaroWinklerSimilarity", sql="jaro_winkler_similarity", raises=False)
def jaro_winkler_similarity(call: Call, left: Datum, right: Datum) -> Datum:
    # Which letters match depends on those that matched before: no kernel does that.
    return each(call.type, _jaro_winkler, left, right)


def _jaro_winkler(left: str, right: str) -> float:
    """By halves of characters, as Java counts them."""
    one, two = (text.encode("utf-16-le") for text in (left, right))
    first, second = ([t[i : i + 2] for i in range(0, len(t), 2)] for t in (one, two))
    if not first or not second:
        return 1.0 if first == second else 0.0
    reach = max(0, max(len(first), len(second)) // 2 - 1)
    matched: list[bytes] = []
    taken = [False] * len(second)
    for i, letter in enumerate(first):
        for j in range(max(0, i - reach), min(i + reach + 1, len(second))):
            if not taken[j] and second[j] == letter:
                taken[j] = True
                matched.append(letter)
                break
    if not matched:
        return 0.0
    others = [letter for letter, is_taken in zip(second, taken, strict=True) if is_taken]
    moved = sum(a != b for a, b in zip(matched, others, strict=True))
    count = len(matched)
    jaro = (count / len(first) + count / len(second) + (count - moved / 2.0) / count) / 3.0
    prefix = 0
    for a, b in zip(first[:4], second[:4], strict=False):
        if a != b:
            break
        prefix += 1
    return jaro + prefix * 0.1 * (1.0 - jaro)
