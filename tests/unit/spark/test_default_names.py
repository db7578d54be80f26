"""What a query and its result are called if nobody says it: the same at every start."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from engine_samples import count_by, scan

from penstock.errors import BadRequest
from penstock.plan.stages import Query, cut
from penstock.protocol.names import check_query_name
from penstock.spark.default_names import choose_names
from penstock.stream.registration import check_name


def query_of(root: Any) -> Query:
    return cut(root, "update", tuple(name.replace("#", "_") for name in root.schema.names))


COUNTS = query_of(count_by(scan(), 0))
OTHER = query_of(count_by(scan(), 1))


def names(name: str | None, to: str | None, query: Query = COUNTS, mode: str = "update") -> Any:
    return choose_names(query, mode, name=name, to=to)


def test_one_of_the_two_is_called_like_the_other() -> None:
    assert names("hot-items", "hot") == ("hot-items", "hot")
    assert names("hot-items", None) == ("hot-items", "hot-items")
    assert names(None, "hot") == ("hot", "hot")
    assert names(None, "shop.hot") == ("shop_hot", "shop.hot"), "a query's name has no dots"


def test_without_either_the_plan_and_the_mode_give_the_name_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        name, to = names(None, None)
    assert name == to == names(None, None)[0], "the same plan goes on"
    assert name not in (names(None, None, OTHER)[0], names(None, None, mode="complete")[0])
    check_query_name(name)
    check_name(to)
    said = caplog.messages[0]
    assert name in said and "begins anew" in said and "name=" in said


def test_a_stream_whose_name_no_query_can_have_asks_for_one() -> None:
    with pytest.raises(BadRequest, match="give name="):
        names(None, "x" * 120)
