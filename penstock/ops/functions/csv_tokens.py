"""A line of CSV as its values, with the habits of Spark's own reader (univocity).

Row by row and in Python: this is the exact path, for lines with quotes. What becomes
of a quote that is not where it belongs depends on the reader's steps, so these are followed one by
one, under its names: a value stops at the next separator (STOP_AT_DELIMITER, Spark's default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NOTHING: Final = "\0"
#: What Spark tells the reader to take for a line end; it stands in no text of this world.
LINE_END: Final = "\uffff"


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How values are separated, quoted and escaped; a character that is not used is a null."""

    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    #: What escapes an escape.
    escape_escape: str = "\\"
    comment: str = "#"
    skips_comments: bool = False
    trims_start: bool = False
    trims_end: bool = False
    null: str = ""
    empty: str = ""


class Unreadable(ValueError):
    """A line on which Spark's reader itself fails, whatever the mode."""


class _End(Exception):
    """The text is at its end."""


class CsvLine:
    """Reads one text: `values` after `read`, and what of the text was taken for them."""

    def __init__(self, text: str, dialect: CsvDialect) -> None:
        self._text = text
        self._end = len(text)
        self._at = 0
        self._start = 0
        self._is_done = False
        self._dialect = dialect
        self._char = self._before = _NOTHING
        self._is_unescaped = False
        self._trims = False
        self._parts: list[str] = []
        self._values: list[str] = []

    def read(self) -> list[str] | None:
        """The values, or None if there is nothing to read."""
        if not self._text:
            return None
        try:
            while True:
                self._start = self._at
                self._char = self._next()
                if self._dialect.skips_comments and self._char == self._dialect.comment:
                    self._skip_comment()
                    return None
                self._read_record()
                if self._values:
                    return self._values
        except _End:
            return self._finish()

    @property
    def seen(self) -> str | None:
        """What has been read of the text, without the line end; None if that is nothing."""
        seen = self._text[self._start : self._at]
        if seen.endswith("\r\n"):
            return seen[:-2]
        return seen[:-1] if seen.endswith(("\n", "\f")) else seen or None

    # -- characters

    def _next(self) -> str:
        if self._is_done:
            raise _End
        char = self._text[self._at]
        self._at += 1
        self._is_done = self._at >= self._end
        return char

    def _skip_comment(self) -> None:
        while not self._is_done and self._text[self._at] != LINE_END:
            self._at += 1
            self._is_done = self._at >= self._end

    def _append_until(self, char: str, *stops: str) -> str:
        while char not in stops:
            self._parts.append(char)
            char = self._next()
        return char

    def _skip_blanks(self, char: str) -> str:
        dialect = self._dialect
        while char <= " " and char not in (dialect.separator, dialect.quote, LINE_END):
            char = self._next()
        return char

    # -- values

    def _take(self) -> None:
        """What was gathered is a value."""
        value = "".join(self._parts)
        if self._trims:
            value = _without_end(value)
        self._values.append(value or self._dialect.empty)
        self._parts.clear()

    def _finish(self) -> list[str] | None:
        """At the end of the text."""
        is_value = self._is_value_at_end()
        if not self._values and not is_value and not self._parts and self._at == self._start:
            return None
        if self._parts or is_value:
            self._take()
        else:
            self._values.append(self._dialect.null)
        return self._values

    def _is_value_at_end(self) -> bool:
        dialect = self._dialect
        if self._char == dialect.quote:
            if self._before == dialect.quote:
                return True
            if not self._is_unescaped:
                self._parts.append(dialect.quote)
        others = (dialect.separator, LINE_END, dialect.comment)
        return self._before != _NOTHING and self._char not in others

    def _read_record(self) -> None:
        dialect = self._dialect
        if dialect.trims_start:
            self._char = self._skip_blanks(self._char)
        while self._char != LINE_END:
            if dialect.trims_start:
                self._char = self._skip_blanks(self._char)
            if self._char in (dialect.separator, LINE_END):
                self._values.append(dialect.null)
            else:
                self._is_unescaped = False
                self._before = _NOTHING
                if self._char != dialect.quote:
                    self._read_bare()
                elif self._read_plainly_quoted():
                    continue
                else:
                    self._trims = False
                    self._read_quoted()
                    self._take()
            if self._char != LINE_END:
                self._char = self._next()
                if self._char == LINE_END:
                    self._values.append(dialect.null)

    def _read_bare(self) -> None:
        """A value without quotes."""
        dialect, text = self._dialect, self._text
        start = self._at - 1
        end = -1 if self._is_done else text.find(dialect.separator, self._at)
        mark = text.find(LINE_END, start, self._end - 1 if end < 0 else end)
        if mark >= 0 and not self._is_done:
            end = mark
        if end < 0:
            self._trims = dialect.trims_end
            self._char = self._append_until(self._char, dialect.separator, LINE_END)
            self._take()
            return
        value = text[start:end]
        if dialect.trims_end and start == 0 and not _without_end(value):
            raise Unreadable("nothing but blanks before the first separator")
        self._values.append((_without_end(value) if dialect.trims_end else value) or dialect.null)
        self._at = end
        self._char = self._next()

    def _read_plainly_quoted(self) -> bool:
        """A quoted value with nothing odd in it, before a separator, which is passed, too."""
        dialect, text = self._dialect, self._text
        if self._is_done:
            return False
        place = self._at
        while True:
            if place >= self._end:
                return False
            char = text[place]
            following = text[place + 1 : place + 2]
            if char == dialect.quote:
                if text[place - 1] == dialect.escape:
                    return False
                if following and following in (dialect.separator, LINE_END):
                    break
                return False
            is_escape = char == dialect.escape and following != ""
            if is_escape and following in (dialect.quote, dialect.escape_escape):
                return False
            if char == LINE_END:
                return False
            place += 1
        self._values.append(text[self._at : place] or dialect.empty)
        self._at = place + 1
        self._char = self._next()
        if self._char == dialect.separator:
            try:
                self._char = self._next()
            except _End:
                self._values.append(dialect.null)
                self._char = LINE_END
                return True
            if self._char == LINE_END:
                self._values.append(dialect.null)
        return True

    def _read_quoted(self) -> None:
        dialect = self._dialect
        quote, escape = dialect.quote, dialect.escape
        stops = (dialect.separator, LINE_END)
        if self._before != _NOTHING:  # behind a quote that was none
            self._parts.insert(0, quote)
            self._char = self._next()
            self._trims = dialect.trims_end
            self._char = self._append_until(self._char, *stops)
            return
        self._char = self._next()
        while True:
            char = self._char
            if self._before == quote and (char <= " " or char in stops):
                break
            if char not in (quote, escape):
                if self._before == quote:
                    self._go_on_behind_quote()
                    return
                if self._before == escape and escape != _NOTHING:
                    self._parts.append(escape)
                self._char = self._append_until(char, quote, escape, dialect.escape_escape)
                self._before = self._char
                self._char = self._next()
            else:
                self._read_escape()
                self._before = self._char
                self._char = self._next()
                if self._is_unescaped and self._char in stops:
                    return
        if self._char <= " " and self._char not in stops:
            self._read_behind_blanks()

    def _go_on_behind_quote(self) -> None:
        self._is_unescaped = True
        self._parts += [self._dialect.quote, self._char]
        self._before = self._char
        self._read_quoted()

    def _read_behind_blanks(self) -> None:
        """Blanks behind a quoted value are dropped, unless more than a separator follows."""
        blanks = []
        while self._char <= " " and self._char != self._dialect.separator:
            blanks.append(self._char)
            self._char = self._next()
            if self._char == LINE_END:
                return
        if self._char != self._dialect.separator:
            self._parts += [self._dialect.quote, *blanks, self._char]
            self._before = self._char
            self._read_quoted()

    def _read_escape(self) -> None:
        dialect = self._dialect
        char, before = self._char, self._before
        if char == dialect.escape and before == dialect.escape_escape != _NOTHING:
            self._parts.append(dialect.escape)
            self._char = _NOTHING
        elif before == dialect.escape:
            self._parts.append(dialect.quote if char == dialect.quote else before)
            if char == dialect.quote:
                self._char = _NOTHING
        elif char == dialect.quote and before == dialect.quote:
            self._parts.append(dialect.quote)
        elif before == dialect.quote:
            self._go_on_in_value()

    def _go_on_in_value(self) -> None:
        dialect = self._dialect
        self._parts.append(dialect.quote)
        self._before = self._char
        while self._char not in (dialect.separator, LINE_END):
            if self._char in (dialect.quote, dialect.escape):
                self._read_escape()
            elif self._before == dialect.quote:
                self._go_on_in_value()
                return
            else:
                self._parts.append(self._char)
            self._before = self._char
            self._char = self._next()


def _without_end(text: str) -> str:
    """Without the blanks behind it."""
    end = len(text)
    while end and text[end - 1] <= " ":
        end -= 1
    return text[:end]
