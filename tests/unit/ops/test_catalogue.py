"""The list of functions in the docs is the registry's own."""

from __future__ import annotations

from pathlib import Path

from penstock.ops.catalogue import catalogue, catalogue_markdown

PAGE = Path(__file__).parents[3] / "docs" / "functions.md"
#: What users were promised.
FUNCTIONS_MIN = 150


def test_the_page_is_what_the_registry_prints() -> None:
    assert PAGE.read_text() == catalogue_markdown(), (
        "run: penstock plan functions > docs/functions.md"
    )


def test_there_are_as_many_functions_as_promised() -> None:
    assert sum(len(names) for names in catalogue().values()) >= FUNCTIONS_MIN
