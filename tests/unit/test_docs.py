"""The documentation holds together: navigation, links, anchors, included files, the API page.

`make docs` checks the same, and more, with MkDocs. It is not part of `make test`, which would have
to install MkDocs for it. This here takes a moment and needs nothing.
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from pathlib import Path

import pytest

import penstock
import penstock.testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
README_LINES_MAX = 120


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", without_blocks(text)))


def anchors(page: Path) -> set[str]:
    """As MkDocs makes them of headings."""
    text = without_blocks(page.read_text())
    slugs: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        slugs.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return slugs


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in links(text):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{page.name}: {link} does not exist")
        elif anchor and anchor not in anchors(target):
            broken.append(f"{page.name}: {link} has no such heading")
        elif page.is_relative_to(DOCS) and not target.is_relative_to(DOCS):
            broken.append(f"{page.name}: {link} is not part of the site")
    return broken


def nav() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    section = text[text.index("\nnav:") : text.index("\nnot_in_nav:")]
    return set(re.findall(r": (\S+\.md)$", section, re.MULTILINE))


@pytest.mark.parametrize("page", [*FRONT, *PAGES], ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_a_broken_link_is_seen() -> None:
    text = "[a](nowhere.md) [b](glossary.md#nothing) [c](../README.md) [d](glossary.md#glossary)"

    assert len(broken_links(DOCS / "index.md", text)) == 3


def test_the_navigation_has_every_page_once() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}

    assert nav() == {page for page in pages if not page.startswith("decisions/0")}


def test_every_decision_is_listed() -> None:
    listed = links((DOCS / "decisions/index.md").read_text())

    assert listed == [page.name for page in PAGES if page.name.startswith("0")]


def test_every_example_is_shown() -> None:
    shown = re.findall(r'^--8<-- "(.+)"$', (DOCS / "examples.md").read_text(), re.MULTILINE)

    examples = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py")}
    assert set(shown) == examples and len(shown) == len(examples)


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name

    errors = {name for name in penstock.__all__ if hasattr(penstock.errors, name)}
    public = {f"penstock.{name}" for name in set(penstock.__all__) - errors - {"__version__"}}
    testing = {f"penstock.testing.{name}" for name in penstock.testing.__all__}
    assert set(named) == public | testing | {"penstock.errors"}


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX
