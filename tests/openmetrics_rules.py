"""The rules of the OpenMetrics text format that a scraper insists on."""

from __future__ import annotations

import re

_LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(rf"([a-z_]+)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_SUFFIXES = {
    "counter": {"_total"},
    "gauge": {""},
    "stateset": {""},
    "histogram": {"_bucket", "_sum", "_count"},
}
_UNITS = ("seconds", "bytes", "ratio")


def check_openmetrics(text: str) -> dict[str, str]:
    """Raises AssertionError; returns each family's kind."""
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1
    kinds: dict[str, str] = {}
    units: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    buckets: dict[tuple[str, str], list[float]] = {}
    family = ""
    for line in text.splitlines()[:-1]:
        described = re.fullmatch(r"# (TYPE|HELP|UNIT) ([a-z_]+) (.+)", line)
        if described is not None:
            if described[1] == "TYPE":
                family = described[2]
                assert family not in kinds, f"{family} is described twice"
                kinds[family] = described[3]
            assert described[2] == family, "families are mixed"
            if described[1] == "UNIT":
                units[family] = described[3]
                assert family.endswith("_" + described[3])
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, line
        name, labels, value = sample[1], sample[2] or "", float(sample[3])
        assert name.startswith(family), line
        assert name.removeprefix(family) in _SUFFIXES[kinds[family]], line
        assert (name, labels) not in seen, f"twice: {line}"
        seen.add((name, labels))
        assert kinds[family] != "counter" or value >= 0, line
        assert kinds[family] != "stateset" or value in (0, 1), line
        if name.endswith("_bucket"):
            rest, _, bound = labels.rpartition("le=")
            buckets.setdefault((name, rest), []).append(value)
            assert bound
    assert all(counts == sorted(counts) for counts in buckets.values()), "buckets are cumulative"
    assert all(name.startswith("penstock_") for name in kinds)
    return kinds
