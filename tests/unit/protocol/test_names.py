"""Tasks have one name each; no user can take the names of the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, BadRequest
from penstock.protocol import names
from penstock.protocol.names import TaskId, check_query_name, parse_task
from penstock.stream.registration import stream_tag

TASK = TaskId("bids-per_auction", 3, 1, 12)
TASKS = st.builds(
    TaskId,
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", fullmatch=True),
    st.integers(0, 10**9 - 1),
    st.integers(0, 10**6 - 1),
    st.integers(0, 10**6 - 1),
)


def test_a_task_says_where_it_stands() -> None:
    assert str(TASK) == "bids-per_auction.3/1/12"
    assert TASK.producer == "@bids-per_auction.3/1/12"
    assert TASK.marker_tag == "T/bids-per_auction.3/1/12"
    assert TASK.change_tag == "C/bids-per_auction.3/1/12"


@given(TASKS)
def test_a_task_is_found_again_by_its_name(task: TaskId) -> None:
    check_query_name(task.query)
    assert parse_task(str(task)) == task


@given(st.text())
def test_what_is_not_the_name_of_a_task_is_refused(text: str) -> None:
    try:
        task = parse_task(text)
    except BadFormat:
        return
    assert str(task) == text


@pytest.mark.parametrize(
    "text", ["q.01/0/0", "q.1/0", "q.1/0/0\n", "@q.1/0/0", "q.١/0/0", "q.1/-1/0"]
)
def test_a_second_spelling_of_a_task_is_refused(text: str) -> None:
    with pytest.raises(BadFormat, match="is no task"):
        parse_task(text)


@pytest.mark.parametrize("name", ["", "1st", "a/b", "a.b", "@a", "ä", "a" * 101, "a\n", 7])
def test_a_query_name_that_would_not_fit_a_tag_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="a letter or _ first"):
        check_query_name(name)


def test_no_two_uses_share_a_tag_or_key() -> None:
    used = [
        names.keyed_tag("q", 1, 2),
        names.node_tag("q", 1, 2, 0),
        names.node_tag("q", 1, 2, 1),
        names.keyed_tag("q", 12, 2),
        names.flush_tag("q", 1, 2),
        names.control_tag("q"),
        names.pulse_tag("q"),
        names.coordinator_producer("q"),
        names.query_key("q"),
        names.run_key("q"),
        TaskId("q", 1, 2, 0).marker_tag,
        TaskId("q", 1, 2, 0).change_tag,
        TaskId("q", 1, 2, 0).producer,
        stream_tag("q"),
    ]
    assert len(set(used)) == len(used)
