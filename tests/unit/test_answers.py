"""What an answer of batch Spark is known by: the same in every process and checkout."""

from __future__ import annotations

from harness.answers import _lasting

PLAN = """Project [a#{n}L, (a#{n}L + 1) AS b#{m}]
+- StreamingRelation FileSource[{place}/penstock-testing-{name}/t], [a#{n}L]
{{"id":{n},"jvmId":"{name}","createTime":{m}}} lambda x_{m}"""


def test_what_passes_does_not_count() -> None:
    once = PLAN.format(n=7, m=8, place="/tmp", name="k3j2")
    again = PLAN.format(n=91, m=17948, place="/var/tmp/of-mine", name="x9_1")

    assert once != again
    assert _lasting(once) == _lasting(again)


def test_what_lasts_counts() -> None:
    once = PLAN.format(n=7, m=8, place="/tmp", name="k3j2")

    assert _lasting(once) != _lasting(once.replace("+ 1", "+ 2"))
    assert _lasting(once) != _lasting(once.replace("(a#7L + 1)", "(b#8 + 1)"))


def test_the_id_that_spark_draws_for_a_watermark_does_not_count() -> None:
    drawn = ("a42bf8ba-60b7-43f5-9886-ce733f7fbc96", "00000000-60b7-43f5-9886-ce733f7fbc96")
    text = 'EventTimeWatermark {id}, ts#1, 4 seconds\n{{"nodeId":"{id}"}} {other}'
    once, again = (_lasting(text.format(id=id, other="x")) for id in drawn)

    assert once == again
    assert once != _lasting(text.format(id=drawn[0], other=drawn[0]).replace("nodeId", "value"))
    assert once != _lasting(text.format(id=drawn[0], other="x").replace("4 seconds", "5 seconds"))
