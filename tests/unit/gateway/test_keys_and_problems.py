from __future__ import annotations

import inspect
import json

import pytest

from penstock import errors
from penstock.gateway.description import DOCS_PAGE, OPENAPI
from penstock.gateway.keys import Key, parse_key
from penstock.gateway.problems import Problem, problem_of, refuse


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("loader:0", Key("loader", 0)),
        ("a:b:17", Key("a:b", 17)),
        ('"sensor/17:3"', Key("sensor/17", 3)),
        ("x:0004611686018427387904", None),
        ("x:4611686018427387904", Key("x", 2**62)),
    ],
)
def test_a_key_says_producer_and_seq(text: str, key: Key | None) -> None:
    if key is None:
        with pytest.raises(errors.BadRequest):
            parse_key(text)
    else:
        assert parse_key(text) == key
        assert parse_key(str(key)) == key


@pytest.mark.parametrize(
    "text",
    ["", "x", "x:", ":1", "x:-1", "x:1.5", "x:４", '"x:1', "a b:1", "ü:1", "x:9" * 60, "x:1\n"],
)
def test_what_is_no_key_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(errors.BadRequest, match="like sensor-17:0"):
        parse_key(text)


def test_every_error_has_a_status_and_a_remedy() -> None:
    classes = [
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.PenstockError)
    ]
    for error in classes:
        problem = problem_of(error("the cause"))
        assert 400 <= problem.status < 600
        assert problem.remedy.endswith(".")
        if issubclass(error, errors.Retryable | errors.Fenced | errors.Unknown):
            assert problem.headers["Retry-After"]
        if issubclass(error, errors.Refused):
            assert problem.status < 500
    assert problem_of(errors.BadRow("x")).status == 422
    assert problem_of(errors.NotOwner("10.0.0.1:7")).status == 503
    assert problem_of(ValueError("secret")).detail == "a defect of the gateway; its log says where"


def test_a_problem_is_one_short_line_of_json_whatever_it_repeats() -> None:
    body = Problem(400, "bad-request", "x\r\n\x1b[31m" + "y" * 9000, "Do.").body()

    assert b"\n" not in body and b"\x1b" not in body and len(body) < 2300
    assert json.loads(body)["title"] == "bad request"
    assert problem_of(refuse(415, "k", "d", "R.")).status == 415


def test_the_page_says_what_openapi_says_and_loads_nothing() -> None:
    page = DOCS_PAGE.decode()
    for path in OPENAPI["paths"]:
        assert path in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    references = {
        status
        for methods in OPENAPI["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if "$ref" in answer
    }
    assert references <= set(OPENAPI["components"]["responses"])
