"""What to do instead of a function that is refused, by how Catalyst's name of it begins."""

from __future__ import annotations

from typing import Final

_DISTINCT: Final = "count with approx_count_distinct, which is exact here, and follows every change"
_PERCENTILE: Final = "take percentile_approx, or percentile, which is exact"
_XML: Final = "parse it in Python, with xml.etree in a F.udf"
_CRYPTOGRAPHY: Final = (
    "call your cryptography library in a F.pandas_udf that answers the same for the same row"
)
_REMEDIES: Final = {
    "HllSketch": _DISTINCT,
    "HllUnion": _DISTINCT,
    "Theta": _DISTINCT,
    "Tuple": f"{_DISTINCT}; and sum per key in a groupBy of its own",
    "Kll": _PERCENTILE,
    "ApproxTopK": "count by the item, and keep the first: row_number() over (order by n desc) <= k",
    "CountMinSketch": "count by the value: groupBy(value).count()",
    "CollectUnion": "array_distinct(flatten(collect_list(filter(xs, x -> x is not null))))",
    "ExpressionImplUtils.aes": _CRYPTOGRAPHY,
    "ExpressionImplUtils.getSentences": "split the text: split(s, '[.!?]+\\\\s*')",
    "CallMethodViaReflection": "call it in Python: F.udf",
    "XPath": _XML,
    "XmlToStructs": _XML,
    "ToVariantObject": "go through JSON: parse_json(to_json(value))",
    "SchemaOfVariant": (
        "look at its text, to_json(v), or at single values, try_variant_get(v, '$.a', 'int')"
    ),
    "VariantExplode": (
        "name what is inside: explode(variant_get(v, '$.a', 'array<variant>')), or for an object "
        "explode(from_json(text, 'map<string,string>'))"
    ),
    "RandStr": "compute it before the rows enter the log, or take a digest: sha2(id, 256)",
    "Collate": "compare what is equal for you: lower(a) = lower(b)",
    "ResolvedCollation": "compare what is equal for you: lower(a) = lower(b)",
    "TimeBucket": "take a window, window(ts, '1 hour').start, or date_trunc('HOUR', ts)",
}


def remedy_of(problem: str | None, otherwise: str) -> str:
    """What to do about a problem that a judge has with a function, or what is always said."""
    before, is_unknown, function = (problem or "").partition(" for ")
    if not is_unknown or before not in ("no function", "no aggregate function", "no generator"):
        return otherwise
    found = (remedy for name, remedy in _REMEDIES.items() if function.startswith(name))
    return next(found, otherwise)
