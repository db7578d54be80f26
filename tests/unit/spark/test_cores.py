"""What is said of the cores that queries hold."""

from __future__ import annotations

from penstock.spark.cores import Cores


def test_a_start_says_what_is_held_and_what_is_left() -> None:
    text = Cores(2, {}, total=4).describe()
    assert "2 workers hold one core each" in text
    assert text.endswith("Spark has 4 cores; 2 left for other Spark jobs")

    text = Cores(1, {"a": 2}, total=4).describe()
    assert text.startswith("its worker holds one core for as long as it runs; ")
    assert "others are for query a (2)" in text and "1 left" in text


def test_a_start_that_leaves_nothing_says_what_to_do() -> None:
    cores = Cores(2, {"a": 1}, total=3)
    assert cores.left == 0
    assert "none is left" in cores.describe() and "local[4]" in cores.describe()
    assert "fewer workers" in cores.describe()
    assert "fewer workers" not in Cores(1, {}, total=1).describe(), "it cannot have fewer"
    assert Cores(2, {}, total=1).left == -1


def test_a_spark_that_has_no_executors_yet_is_no_spark_without_cores() -> None:
    cores = Cores(2, {})
    assert cores.left is None
    assert "not known yet" in cores.describe()
    assert "executors" in cores.describe_wait(2, 5.0)
    assert cores.as_json(held=0, waiting=None) == {
        "wanted": 2, "held": 0, "total": None, "left": None,
    }  # fmt: skip


def test_who_waits_says_what_is_missing_and_what_to_do() -> None:
    text = Cores(2, {"a": 2}, total=3, busy=3).describe_wait(1, 7.2)
    assert text.startswith("1 worker of 2 waited 7 s for a core: 2 cores wanted, 1 had; ")
    assert "Spark has 3, 0 of them free, others are for query a (2)" in text
    assert "local[5]" in text and "stop another query" in text
    # Free cores and no task: this is not what more cores would help against.
    assert "local[" not in Cores(2, {}, total=3, busy=0).describe_wait(2, 7.0)
