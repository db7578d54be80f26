r"""Classes of characters by their Unicode properties, as java.util.regex names them.

General categories and case are those of Python's Unicode database; what it does not have is listed
here as of Unicode 13, which is that of Java 17. Characters that are younger than either can differ.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias

#: Characters from a code point to another, both included.
Ranges: TypeAlias = tuple[tuple[int, int], ...]

LAST: Final = 0x10FFFF
#: Halves of characters, which no text in UTF-8 has.
_HALVES: Final = (0xD800, 0xDFFF)

#: Characters beyond letters and letter numbers that are alphabetic.
_OTHER_ALPHABETIC: Final = (
    "345 5b0-5bd 5bf 5c1-5c2 5c4-5c5 5c7 610-61a 64b-657 659-65f 670 6d6-6dc 6e1-6e4 6e7-6e8 6ed "
    "711 730-73f 7a6-7b0 816-817 81b-823 825-827 829-82c 8d4-8df 8e3-8e9 8f0-903 93a-93b 93e-94c "
    "94e-94f 955-957 962-963 981-983 9be-9c4 9c7-9c8 9cb-9cc 9d7 9e2-9e3 a01-a03 a3e-a42 a47-a48 "
    "a4b-a4c a51 a70-a71 a75 a81-a83 abe-ac5 ac7-ac9 acb-acc ae2-ae3 afa-afc b01-b03 b3e-b44 "
    "b47-b48 b4b-b4c b56-b57 b62-b63 b82 bbe-bc2 bc6-bc8 bca-bcc bd7 c00-c03 c3e-c44 c46-c48 "
    "c4a-c4c c55-c56 c62-c63 c81-c83 cbe-cc4 cc6-cc8 cca-ccc cd5-cd6 ce2-ce3 d00-d03 d3e-d44 "
    "d46-d48 d4a-d4c d57 d62-d63 d81-d83 dcf-dd4 dd6 dd8-ddf df2-df3 e31 e34-e3a e4d eb1 eb4-eb9 "
    "ebb-ebc ecd f71-f81 f8d-f97 f99-fbc 102b-1036 1038 103b-103e 1056-1059 105e-1060 1062-1064 "
    "1067-106d 1071-1074 1082-108d 108f 109a-109d 1712-1713 1732-1733 1752-1753 1772-1773 "
    "17b6-17c8 1885-1886 18a9 1920-192b 1930-1938 1a17-1a1b 1a55-1a5e 1a61-1a74 1abf-1ac0 "
    "1b00-1b04 1b35-1b43 1b80-1b82 1ba1-1ba9 1bac-1bad 1be7-1bf1 1c24-1c36 1de7-1df4 24b6-24e9 "
    "2de0-2dff a674-a67b a69e-a69f a802 a80b a823-a827 a880-a881 a8b4-a8c3 a8c5 a8ff a926-a92a "
    "a947-a952 a980-a983 a9b4-a9bf a9e5 aa29-aa36 aa43 aa4c-aa4d aa7b-aa7d aab0 aab2-aab4 "
    "aab7-aab8 aabe aaeb-aaef aaf5 abe3-abea fb1e 10376-1037a 10a01-10a03 10a05-10a06 10a0c-10a0f "
    "10d24-10d27 10eab-10eac 11000-11002 11038-11045 11082 110b0-110b8 11100-11102 11127-11132 "
    "11145-11146 11180-11182 111b3-111bf 111ce-111cf 1122c-11234 11237 1123e 112df-112e8 "
    "11300-11303 1133e-11344 11347-11348 1134b-1134c 11357 11362-11363 11435-11441 11443-11445 "
    "114b0-114c1 115af-115b5 115b8-115be 115dc-115dd 11630-1163e 11640 116ab-116b5 1171d-1172a "
    "1182c-11838 11930-11935 11937-11938 1193b-1193c 11940 11942 119d1-119d7 119da-119df 119e4 "
    "11a01-11a0a 11a35-11a39 11a3b-11a3e 11a51-11a5b 11a8a-11a97 11c2f-11c36 11c38-11c3e "
    "11c92-11ca7 11ca9-11cb6 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d41 11d43 11d47 11d8a-11d8e "
    "11d90-11d91 11d93-11d96 11ef3-11ef6 16f4f 16f51-16f87 16f8f-16f92 16ff0-16ff1 1bc9e "
    "1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024 1e026-1e02a 1e947 1f130-1f149 1f150-1f169 "
    "1f170-1f189"
)
_IDEOGRAPHIC: Final = (
    "3006-3007 3021-3029 3038-303a 3400-4dbf 4e00-9ffc f900-fa6d fa70-fad9 16fe4 17000-187f7 "
    "18800-18cd5 18d00-18d08 1b170-1b2fb 20000-2a6dd 2a700-2b734 2b740-2b81d 2b820-2cea1 "
    "2ceb0-2ebe0 2f800-2fa1d 30000-3134a"
)
_SCRIPTS: Final = {
    "LATIN": (
        "41-5a 61-7a aa ba c0-d6 d8-f6 f8-2b8 2e0-2e4 1d00-1d25 1d2c-1d5c 1d62-1d65 1d6b-1d77 "
        "1d79-1dbe 1e00-1eff 2071 207f 2090-209c 212a-212b 2132 214e 2160-2188 2c60-2c7f "
        "a722-a787 a78b-a7bf a7c2-a7ca a7f5-a7ff ab30-ab5a ab5c-ab64 ab66-ab69 fb00-fb06 "
        "ff21-ff3a ff41-ff5a"
    ),
    "GREEK": (
        "370-373 375-377 37a-37d 37f 384 386 388-38a 38c 38e-3a1 3a3-3e1 3f0-3ff 1d26-1d2a "
        "1d5d-1d61 1d66-1d6a 1dbf 1f00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b "
        "1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fc4 1fc6-1fd3 1fd6-1fdb 1fdd-1fef 1ff2-1ff4 1ff6-1ffe "
        "2126 ab65 10140-1018e 101a0 1d200-1d245"
    ),
    "CYRILLIC": ("400-484 487-52f 1c80-1c88 1d2b 1d78 2de0-2dff a640-a69f fe2e-fe2f"),
    "HAN": (
        "2e80-2e99 2e9b-2ef3 2f00-2fd5 3005 3007 3021-3029 3038-303b 3400-4dbf 4e00-9ffc "
        "f900-fa6d fa70-fad9 16ff0-16ff1 20000-2a6dd 2a700-2b734 2b740-2b81d 2b820-2cea1 "
        "2ceb0-2ebe0 2f800-2fa1d 30000-3134a"
    ),
    "HIRAGANA": ("3041-3096 309d-309f 1b001-1b11e 1b150-1b152 1f200"),
    "KATAKANA": (
        "30a1-30fa 30fd-30ff 31f0-31ff 32d0-32fe 3300-3357 ff66-ff6f ff71-ff9d 1b000 1b164-1b167"
    ),
    "HANGUL": (
        "1100-11ff 302e-302f 3131-318e 3200-321e 3260-327e a960-a97c ac00-d7a3 d7b0-d7c6 "
        "d7cb-d7fb ffa0-ffbe ffc2-ffc7 ffca-ffcf ffd2-ffd7 ffda-ffdc"
    ),
    "ARABIC": (
        "600-604 606-60b 60d-61a 61c 61e 620-63f 641-64a 656-66f 671-6dc 6de-6ff 750-77f 8a0-8b4 "
        "8b6-8c7 8d3-8e1 8e3-8ff fb50-fbc1 fbd3-fd3d fd50-fd8f fd92-fdc7 fdf0-fdfd fe70-fe74 "
        "fe76-fefc 10e60-10e7e 1ee00-1ee03 1ee05-1ee1f 1ee21-1ee22 1ee24 1ee27 1ee29-1ee32 "
        "1ee34-1ee37 1ee39 1ee3b 1ee42 1ee47 1ee49 1ee4b 1ee4d-1ee4f 1ee51-1ee52 1ee54 1ee57 "
        "1ee59 1ee5b 1ee5d 1ee5f 1ee61-1ee62 1ee64 1ee67-1ee6a 1ee6c-1ee72 1ee74-1ee77 "
        "1ee79-1ee7c 1ee7e 1ee80-1ee89 1ee8b-1ee9b 1eea1-1eea3 1eea5-1eea9 1eeab-1eebb "
        "1eef0-1eef1"
    ),
    "HEBREW": ("591-5c7 5d0-5ea 5ef-5f4 fb1d-fb36 fb38-fb3c fb3e fb40-fb41 fb43-fb44 fb46-fb4f"),
}
_WHITE_SPACE: Final = "9-d 20 85 a0 1680 2000-200a 2028-2029 202f 205f 3000"
_HEX: Final = "30-39 41-46 61-66 ff10-ff19 ff21-ff26 ff41-ff46"
_LETTERS: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo"})
_CATEGORIES: Final = {
    "LC": frozenset({"Lu", "Ll", "Lt"}),
    "LD": _LETTERS | {"Nd"},
}
#: What Java widens when case is ignored, not in all versions alike.
CASED: Final = frozenset(
    {"LU", "LL", "LT", "LOWER", "UPPER", "LOWERCASE", "UPPERCASE", "TITLECASE"}
    | {"JAVALOWERCASE", "JAVAUPPERCASE", "JAVATITLECASE"}
)


def spelled(text: str) -> Ranges:
    """Ranges out of hexadecimal numbers: `a 20-2f`."""
    pairs = (part.partition("-") for part in text.split())
    return tuple((int(first, 16), int(last or first, 16)) for first, _, last in pairs)


def union(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """The characters of all, in order, without overlaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(piece for part in parts for piece in part):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps = []
    code = 0
    for first, last in sorted(ranges):
        if first > code:
            gaps.append((code, first - 1))
        code = max(code, last + 1)
    if code <= LAST:
        gaps.append((code, LAST))
    return tuple(gaps)


def intersection(one: Ranges, two: Ranges) -> Ranges:
    """The characters of both."""
    return complement(union(complement(one), complement(two)))


def whole_characters(ranges: Ranges) -> Ranges:
    """The same without halves of characters."""
    low, high = _HALVES
    return intersection(ranges, ((0, low - 1), (high + 1, LAST)))


@cache
def _by_category() -> dict[str, Ranges]:
    """All characters by their general category. Takes a tenth of a second, once."""
    found: dict[str, list[tuple[int, int]]] = {}
    begin, category = 0, unicodedata.category("\0")
    for code in range(1, LAST + 2):
        following = unicodedata.category(chr(code)) if code <= LAST else ""
        if following != category:
            found.setdefault(category, []).append((begin, code - 1))
            begin, category = code, following
    return {name: tuple(ranges) for name, ranges in found.items()}


def categories(*names: str) -> Ranges:
    """The characters of these general categories."""
    return union(*(_by_category().get(name, ()) for name in names))


@cache
def _where(test: Callable[[str], bool]) -> Ranges:
    return union((code, code) for code in range(LAST + 1) if test(chr(code)))


def _group(letter: str) -> Ranges:
    return categories(*(name for name in _by_category() if name[0] == letter))


def letters() -> Ranges:
    return categories(*_LETTERS)


def alphabetic() -> Ranges:
    return union(letters(), categories("Nl"), spelled(_OTHER_ALPHABETIC))


def unicode_word() -> Ranges:
    r"""What \w is with (?U)."""
    marks = categories("Mn", "Me", "Mc", "Nd", "Pc")
    return union(alphabetic(), marks, spelled("200c-200d"))


def _graph() -> Ranges:
    return complement(union(spelled(_WHITE_SPACE), categories("Cc", "Cs", "Cn")))


def _blank() -> Ranges:
    lines = union(spelled("a-d 85"), categories("Zl", "Zp"))
    return intersection(spelled(_WHITE_SPACE), complement(lines))


def _java_whitespace() -> Ranges:
    spaces = intersection(categories("Zs", "Zl", "Zp"), complement(spelled("a0 2007 202f")))
    return union(spaces, spelled("9-d 1c-1f"))


#: Java's binary properties, as after \p{Is.
_PROPERTIES: Final[dict[str, Callable[[], Ranges]]] = {
    "ALPHABETIC": alphabetic,
    "LETTER": letters,
    "IDEOGRAPHIC": lambda: spelled(_IDEOGRAPHIC),
    "LOWERCASE": lambda: _where(str.islower),
    "UPPERCASE": lambda: _where(str.isupper),
    "TITLECASE": lambda: categories("Lt"),
    "PUNCTUATION": lambda: _group("P"),
    "CONTROL": lambda: categories("Cc"),
    "WHITE_SPACE": lambda: spelled(_WHITE_SPACE),
    "WHITESPACE": lambda: spelled(_WHITE_SPACE),
    "DIGIT": lambda: categories("Nd"),
    "HEX_DIGIT": lambda: union(categories("Nd"), spelled(_HEX)),
    "HEXDIGIT": lambda: union(categories("Nd"), spelled(_HEX)),
    "ASSIGNED": lambda: complement(categories("Cn")),
    "JOIN_CONTROL": lambda: spelled("200c-200d"),
    "JOINCONTROL": lambda: spelled("200c-200d"),
}
#: Methods of java.lang.Character, as after \p{java.
_JAVA: Final[dict[str, Callable[[], Ranges]]] = {
    "LowerCase": _PROPERTIES["LOWERCASE"],
    "UpperCase": _PROPERTIES["UPPERCASE"],
    "TitleCase": _PROPERTIES["TITLECASE"],
    "Alphabetic": alphabetic,
    "Ideographic": _PROPERTIES["IDEOGRAPHIC"],
    "Letter": letters,
    "Digit": _PROPERTIES["DIGIT"],
    "LetterOrDigit": lambda: union(letters(), categories("Nd")),
    "Whitespace": _java_whitespace,
    "SpaceChar": lambda: categories("Zs", "Zl", "Zp"),
    "ISOControl": lambda: categories("Cc"),
    "Defined": _PROPERTIES["ASSIGNED"],
}
#: What POSIX names and \d, \s, \w stand for with (?U).
_UNICODE_POSIX: Final[dict[str, Callable[[], Ranges]]] = {
    "Lower": _PROPERTIES["LOWERCASE"],
    "Upper": _PROPERTIES["UPPERCASE"],
    "Alpha": alphabetic,
    "Digit": _PROPERTIES["DIGIT"],
    "Alnum": lambda: union(alphabetic(), categories("Nd")),
    "Punct": _PROPERTIES["PUNCTUATION"],
    "Graph": _graph,
    "Print": lambda: intersection(union(_graph(), _blank()), complement(categories("Cc"))),
    "Blank": _blank,
    "Cntrl": _PROPERTIES["CONTROL"],
    "XDigit": _PROPERTIES["HEXDIGIT"],
    "Space": _PROPERTIES["WHITE_SPACE"],
    "d": _PROPERTIES["DIGIT"],
    "s": _PROPERTIES["WHITE_SPACE"],
    "w": unicode_word,
}


def unicode_posix(name: str) -> Ranges | None:
    """The class of this name with (?U), or None if that changes nothing."""
    find = _UNICODE_POSIX.get(name)
    return find() if find is not None else None


def property_ranges(name: str) -> Ranges | None:
    r"""The characters of \p{name}, or None if the name is not known here."""
    key, equals, value = name.partition("=")
    if equals:
        if key.lower() in ("gc", "general_category"):
            return _category(value)
        return _script(value) if key.lower() in ("sc", "script") else None
    if name.startswith("java"):
        find = _JAVA.get(name.removeprefix("java"))
        return find() if find is not None else None
    if name.startswith("Is"):
        rest = name.removeprefix("Is")
        find = _PROPERTIES.get(rest.upper())
        found = find() if find is not None else _category(rest)
        return found if found is not None else _script(rest)
    return _category(name)


def _script(name: str) -> Ranges | None:
    found = _SCRIPTS.get(name.upper())
    return spelled(found) if found is not None else None


def _category(name: str) -> Ranges | None:
    if name == "L1":
        return ((0, 0xFF),)
    if name == "all":
        return ((0, LAST),)
    if name in _CATEGORIES:
        return categories(*_CATEGORIES[name])
    if len(name) == 1 and name in "LMNPSZC":
        return _group(name)
    return _by_category().get(name)
