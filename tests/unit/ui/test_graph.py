"""Ranks and rows of a query's graph."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ui_samples import NOW_MS, a_progress

from penstock.ui.view.graph import heat, place, show_graph


def test_a_join_stands_behind_both_of_its_sides() -> None:
    nodes = ["a", "b", "left", "right", "join", "sink"]
    edges = [("a", "left"), ("b", "right"), ("left", "join"), ("right", "join"), ("join", "sink")]
    assert place(nodes, edges) == {
        "a": (0, 0), "b": (0, 1), "left": (1, 0), "right": (1, 1), "join": (2, 0), "sink": (3, 0),
    }  # fmt: skip


def test_sides_are_ordered_so_that_edges_do_not_cross() -> None:
    places = place(["a", "b", "x", "y"], [("a", "y"), ("b", "x")])
    assert (places["y"], places["x"]) == ((1, 0), (1, 1))


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@given(edges=st.lists(st.tuples(NAMES, NAMES), max_size=15))
def test_no_two_nodes_stand_in_one_place_and_edges_lead_on(edges: list[tuple[str, str]]) -> None:
    nodes = ["a", "b", "c", "d", "e", "f"]
    places = place(nodes, edges)
    assert len(set(places.values())) == len(nodes)
    forward = [(start, end) for start, end in edges if places[start][0] < places[end][0]]
    # Where there is no circle, every edge leads on.
    if all(start < end for start, end in edges):
        assert forward == edges


def test_edges_that_make_a_circle_are_left_out() -> None:
    """No query has one; whoever may append may say so all the same."""
    assert place(["a", "b"], [("a", "b"), ("b", "a")]) == {"a": (0, 0), "b": (1, 0)}


def test_the_colour_is_the_busiest_tasks() -> None:
    assert [heat(one) for one in (None, 0.0, 0.6, 0.95)] == ["unknown", "calm", "busy", "hot"]


def test_a_stage_says_what_it_is_there_for() -> None:
    graph = show_graph(a_progress(), NOW_MS)
    assert graph is not None
    assert graph["ranks"] == 3
    assert [node["mainly"] for node in graph["nodes"]] == [None, "python slow(price)", None]
    first, last = graph["edges"]
    assert first["watermark"] is None, "a stream tells none"
    assert last["lag"] is None, "what is in the result lags behind nothing"
    assert show_graph({}, NOW_MS) is None
