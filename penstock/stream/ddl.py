"""Spark DDL text to and from pyarrow.Schema.

Owns the grammar of `StructType.fromDDL` (Spark's SqlBaseParser.g4: colTypeList, complexColTypeList,
dataType) and the one Arrow type that Spark itself uses for each of its types
(pyspark.sql.pandas.types.to_arrow_type, with timezone UTC). Knows nothing of rows.

Law: parse_ddl(to_ddl(s)) equals s, metadata included, for every schema that parse_ddl or
schema.normalise returns. To keep it, one thing is added to Spark's grammar: array elements and map
values may say NOT NULL (`array<int NOT NULL>`), because Spark has such types but no text for them.

What Spark's text says and Arrow cannot carry is dropped: the length of char and varchar, the
precision of time, the fields of a day-time interval. What would change meaning is refused:
collations, calendar and year-month intervals, variant, geometry, geography.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadRequest

#: Key of a field's COMMENT in its Arrow metadata.
COMMENT_KEY: Final = b"comment"
#: Nesting of arrays, maps and structs. Far above any real schema, and below both Python's recursion
#: limit and the 128 levels at which Arrow's flatbuffer verifier gives up on a schema message.
TYPE_DEPTH_MAX: Final = 32
#: Spark's DecimalType.MAX_PRECISION and its default, DecimalType.USER_DEFAULT.
DECIMAL_PRECISION_MAX: Final = 38
DECIMAL_PRECISION_DEFAULT: Final = 10
#: Microseconds, as in Python's time. Spark 4.3 also parses time(7) to time(9), but its own Python
#: side drops those digits (TimeType.fromInternal); refusing them here beats losing them there.
TIME_PRECISION_MAX: Final = 6

#: Types without parameters; the first name of each Arrow type is the one that is printed.
_PLAIN_TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL_NAMES: Final = frozenset({"decimal", "dec", "numeric"})
_LENGTH_NAMES: Final = frozenset({"char", "character", "varchar"})
_INTERVAL_UNITS: Final = ("day", "hour", "minute", "second")
_NESTED_NAMES: Final = frozenset({"array", "map", "struct"})
_REFUSED_TYPES: Final = frozenset({"variant", "geometry", "geography"})
_KNOWN_NAMES: Final = sorted(
    _PLAIN_TYPES.keys() | _DECIMAL_NAMES | _LENGTH_NAMES | _NESTED_NAMES | {"time", "interval"}
)
_TYPE_NAMES: Final[dict[pa.DataType, str]] = {
    arrow_type: name for name, arrow_type in reversed(_PLAIN_TYPES.items())
} | {pa.time64("ns"): "time(6)", pa.duration("us"): "interval day to second"}

# Words come before integers, as in Spark's lexer the longer match wins: `2x` is a name, `2` is not.
_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|--[^\n]*|/\*.*?\*/)+)
      | (?P<text>[rR]?'(?:[^'\\]|\\.|'')*' | [rR]?"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>[0-9]*[^\W0-9]\w*)
      | (?P<integer>[0-9]+)
      | (?P<mark>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPE: Final = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


@dataclass(frozen=True, slots=True)
class _Token:
    #: One of the group names of _TOKEN, or "end".
    kind: str
    text: str
    #: Characters before it in the text.
    position: int

    @property
    def word(self) -> str:
        """The lower-case keyword or type name, or the mark itself; empty for anything else."""
        return self.text.lower() if self.kind in ("word", "mark") else ""


def parse_ddl(text: str) -> pa.Schema:
    """The Arrow schema of `a int, b string NOT NULL` or of `struct<a: int, b: string>`.

    Raises BadRequest with the position and what was expected there. Names are kept as written;
    two that differ only in case are refused, as Spark resolves columns without regard to case.
    """
    if not isinstance(text, str):
        raise BadRequest(f"a schema is DDL text, got {type(text).__name__}")
    parser = _Parser(text)
    if parser.peek().word == "struct" and parser.peek(1).word == "<":
        fields = list(parser.take_type(depth=0))
        if parser.peek().kind != "end":
            parser.fail("the end")
    else:
        fields = parser.take_fields(closing="", depth=0)
    if not fields:
        raise BadRequest("a schema needs at least one column")
    return pa.schema(fields)


def to_ddl(schema: pa.Schema) -> str:
    """The DDL of a normalised schema; BadRequest names a column that has no Spark type."""
    return ", ".join(_field_to_ddl(field, separator=" ") for field in schema)


def type_to_ddl(arrow_type: pa.DataType) -> str:
    """The DDL name of one type, as Spark's simpleString but readable: `array<struct<a: int>>`."""
    if pt.is_decimal128(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    if pt.is_list(arrow_type):
        return f"array<{_slot_to_ddl(arrow_type.value_field)}>"
    if pt.is_map(arrow_type):
        return f"map<{type_to_ddl(arrow_type.key_type)},{_slot_to_ddl(arrow_type.item_field)}>"
    if pt.is_struct(arrow_type):
        return f"struct<{', '.join(_field_to_ddl(field, separator=': ') for field in arrow_type)}>"
    name = _TYPE_NAMES.get(arrow_type)
    if name is None:
        raise BadRequest(f"arrow type {arrow_type} has no Spark DDL; normalise the schema first")
    return name


def check_names(names: list[str], *, owner: str) -> None:
    """Refuse empty names, names that are not Unicode, and names that differ only in case."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise BadRequest(f"{owner}: a column needs a name")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{owner}: column name {name!r} is not valid Unicode") from None
        # Spark lower-cases with Locale.ROOT; casefold would also equate names Spark keeps apart.
        earlier = seen.get(name.lower())
        if earlier is not None:
            raise BadRequest(f"{owner}: columns {earlier} and {name} differ at most in case")
        seen[name.lower()] = name


def _field_to_ddl(field: pa.Field, *, separator: str) -> str:
    name = field.name
    quoted = name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
    comment = (field.metadata or {}).get(COMMENT_KEY)
    suffix = "" if comment is None else f" COMMENT {_quote(comment.decode())}"
    return f"{quoted}{separator}{_slot_to_ddl(field)}{suffix}"


def _slot_to_ddl(field: pa.Field) -> str:
    return type_to_ddl(field.type) + ("" if field.nullable else " NOT NULL")


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unquote(literal: str) -> str:
    """The value of a string literal, by the rules of Spark's unescapeSQLString."""
    if literal[0] in "rR":
        return literal[2:-1]
    quote = literal[0]
    # Doubled quotes first would break `\''`; so both are undone in one pass from the left.
    pattern = re.compile(_ESCAPE.pattern + "|" + quote * 2, re.DOTALL)

    def replacement(match: re.Match[str]) -> str:
        short, long, octal, other = match.groups()
        if short or long:
            code = int(short or long, 16)
            return chr(code) if code <= 0x10FFFF else match.group()
        if octal:
            return chr(int(octal, 8))
        if other is None:
            return quote
        # LIKE patterns keep their backslash, as in Spark.
        return match.group() if other in "%_" else _ESCAPED.get(other, other)

    return pattern.sub(replacement, literal[1:-1])


class _Parser:
    """Recursive descent over the tokens of one text; `take_` methods consume what they return."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        self._next = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                start = text[position]
                what = "an unclosed quote" if start in "`'\"" else repr(start)
                raise BadRequest(f"bad schema at character {position + 1}: cannot read {what}")
            if match.lastgroup != "space":
                self._tokens.append(_Token(str(match.lastgroup), match.group(), position))
            position = match.end()
        self._tokens.append(_Token("end", "", len(text)))

    def peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self._next += 1
        return token

    def fail(self, expected: str, token: _Token | None = None, remedy: str = "") -> NoReturn:
        token = token or self.peek()
        got = "the end" if token.kind == "end" else repr(token.text)
        remedy = f" ({remedy})" if remedy else ""
        raise BadRequest(
            f"bad schema at character {token.position + 1}: expected {expected}, got {got}{remedy}"
        )

    def take_word(self, word: str) -> None:
        if self.peek().word != word:
            self.fail(repr(word) if len(word) == 1 else word.upper())
        self._next += 1

    def skip_word(self, word: str) -> bool:
        is_there = self.peek().word == word
        self._next += is_there
        return is_there

    def take_fields(self, *, closing: str, depth: int) -> list[pa.Field]:
        """Fields up to `closing` (a mark, or empty for the end of the text), which stays."""
        start = self.peek()
        fields: list[pa.Field] = []
        if closing and start.word == closing:
            return fields
        fields.append(self.take_field(depth))
        while self.skip_word(","):
            fields.append(self.take_field(depth))
        if (closing and self.peek().word != closing) or (not closing and self.peek().kind != "end"):
            self.fail(f"',' or {repr(closing) if closing else 'the end'}")
        owner = f"bad schema at character {start.position + 1}"
        check_names([field.name for field in fields], owner=owner)
        return fields

    def take_field(self, depth: int) -> pa.Field:
        name = self.take_name()
        self.skip_word(":")
        arrow_type = self.take_type(depth)
        nullable = self.take_nullable()
        metadata = None
        if self.skip_word("comment"):
            if self.peek().kind != "text":
                self.fail("the comment in quotes")
            comment = ""
            while self.peek().kind == "text":  # As in SQL, adjacent literals are one.
                comment += _unquote(self.take().text)
            # Half of a surrogate pair, written as an escape, cannot be stored as UTF-8.
            metadata = {COMMENT_KEY: comment.encode(errors="replace")}
        return self.make_field(name, arrow_type, nullable=nullable, metadata=metadata)

    def make_field(
        self,
        name: str,
        arrow_type: pa.DataType,
        *,
        nullable: bool,
        metadata: dict[bytes, bytes] | None = None,
    ) -> pa.Field:
        if pt.is_null(arrow_type) and not nullable:
            self.fail(
                f"a type with values before this for {name}, which is NOT NULL; void has none"
            )
        return pa.field(name, arrow_type, nullable=nullable, metadata=metadata)

    def take_nullable(self) -> bool:
        if not self.skip_word("not"):
            return True
        self.take_word("null")
        return False

    def take_name(self) -> str:
        token = self.take()
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word":
            self.fail("a column name", token)
        if not token.text.isascii():
            self.fail("a column name", token, "quote names beyond a-z, 0-9 and _ with backticks")
        return token.text

    def take_type(self, depth: int) -> pa.DataType:
        token = self.take()
        name = token.word if token.kind == "word" else ""
        if not name:
            self.fail("a type", token)
        if name in _NESTED_NAMES:
            if depth >= TYPE_DEPTH_MAX:
                self.fail(f"at most {TYPE_DEPTH_MAX} levels of nesting", token)
            return self.take_nested(name, depth + 1)
        if name == "interval":
            return self.take_interval()
        if name in _PLAIN_TYPES:
            return self.take_plain(name)
        if name in _DECIMAL_NAMES:
            return self.take_decimal()
        if name in _LENGTH_NAMES:
            if not self.take_integers(count_max=1, low=0, high=2**31 - 1):
                self.fail("a length in parentheses")
            return pa.string()
        if name == "time":
            self.take_integers(count_max=1, low=0, high=TIME_PRECISION_MAX)
            return self.take_zone(pa.time64("ns"), pa.time64("ns"))
        if name in _REFUSED_TYPES:
            self.fail("a type that a stream can carry", token)
        close = difflib.get_close_matches(name, _KNOWN_NAMES, n=1)
        self.fail("a type", token, f"did you mean {close[0]}?" if close else "")

    def take_nested(self, name: str, depth: int) -> pa.DataType:
        self.take_word("<")
        if name == "struct":
            nested = pa.struct(self.take_fields(closing=">", depth=depth))
        elif name == "array":
            element_type = self.take_type(depth)
            nullable = self.take_nullable()
            nested = pa.list_(self.make_field("element", element_type, nullable=nullable))
        else:
            key = self.make_field("key", self.take_type(depth), nullable=False)
            self.take_word(",")
            value_type = self.take_type(depth)
            nullable = self.take_nullable()
            nested = pa.map_(key, self.make_field("value", value_type, nullable=nullable))
        self.take_word(">")
        return nested

    def take_interval(self) -> pa.DataType:
        first = self.take()
        if first.word not in _INTERVAL_UNITS:
            self.fail("DAY, HOUR, MINUTE or SECOND", first, "only day-time intervals are carried")
        if self.skip_word("to"):
            last = self.take()
            finer = _INTERVAL_UNITS[_INTERVAL_UNITS.index(first.word) + 1 :]
            if last.word not in finer:
                self.fail(f"a unit finer than {first.word.upper()}", last)
        return pa.duration("us")

    def take_plain(self, name: str) -> pa.DataType:
        plain = _PLAIN_TYPES[name]
        if self.peek().word == "(":
            self.fail(f"no parameters after {name}")
        if name == "timestamp":
            return self.take_zone(plain, _PLAIN_TYPES["timestamp_ntz"])
        if name == "string" and self.skip_word("collate"):
            collation = self.take()
            if collation.text.strip("`").lower() != "utf8_binary":
                self.fail("UTF8_BINARY, the only collation carried", collation)
        return plain

    def take_zone(self, zoned: pa.DataType, zoneless: pa.DataType) -> pa.DataType:
        """`timestamp WITHOUT TIME ZONE` and its kin; WITH is refused where Spark refuses it."""
        if self.peek(1).word != "time" or self.peek().word != "without":
            return zoned
        self._next += 2
        self.take_word("zone")
        return zoneless

    def take_decimal(self) -> pa.DataType:
        opening = self.peek()
        sizes = self.take_integers(count_max=2, low=0, high=DECIMAL_PRECISION_MAX)
        precision, scale, *_ = (*sizes, *((DECIMAL_PRECISION_DEFAULT, 0)[len(sizes) :]))
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
            self.fail(f"1 <= precision <= {DECIMAL_PRECISION_MAX} and scale <= precision", opening)
        return pa.decimal128(precision, scale)

    def take_integers(self, *, count_max: int, low: int, high: int) -> list[int]:
        """The parameters `(n, m)`, each in [low, high]; empty if there are no parentheses."""
        values: list[int] = []
        if not self.skip_word("("):
            return values
        while not values or self.skip_word(","):
            token = self.take()
            # Digits are counted first: int() of an endless literal is refused by Python itself.
            if token.kind != "integer" or len(token.text) > 10 or len(values) == count_max:
                self.fail(f"at most {count_max} whole numbers", token)
            if not low <= int(token.text) <= high:
                self.fail(f"a number from {low} to {high}", token)
            values.append(int(token.text))
        self.take_word(")")
        return values
