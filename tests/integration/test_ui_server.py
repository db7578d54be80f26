"""The page's server as programs meet it: who gets what, what it costs, how it ends."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from harness.http_gateway import GatewayProcess, HttpClient, gateway_thread
from harness.made_up_queries import MadeUpQueries
from harness.ui_page import ui_thread
from harness.waiting import wait_until

import penstock
from penstock.cli import query_facts
from penstock.errors import BadConfig
from penstock.gateway.config import GatewayConfig
from penstock.log.core.rights import allow_caveat, until_caveat
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.log.serving.directory import Address
from penstock.protocol.names import control_tag, pulse_tag, query_key
from penstock.runtime.control import Pulse, Rescale, Stop, decode_message, encode_message
from penstock.ui import app, gather, live
from penstock.ui.assets import ASSETS, ASSETS_BYTES_MAX, POLICY, read_asset
from penstock.ui.config import UiConfig
from penstock.ui.place import find_page
from penstock.ui.view import Book
from penstock.wire.token import make_token


@pytest.fixture(scope="module")
def log(module_log: penstock.Log) -> penstock.Log:
    return module_log


@pytest.fixture(scope="module")
def address(log: penstock.Log) -> Iterator[Address]:
    with ui_thread(UiConfig(target=log.target, port=0)) as listening:
        yield listening


@pytest.fixture
def client(log: penstock.Log, address: Address) -> HttpClient:
    return HttpClient(address, token_of(log))


def token_of(log: penstock.Log) -> str:
    return Path(log.target, "token").read_text().strip()


@contextmanager
def events(client: HttpClient, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Server-sent events of a path, as they come."""
    connection = client.connection()
    connection.request("GET", path, headers={"Authorization": f"Bearer {client.token}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()

    def read() -> Iterator[tuple[str, Any]]:
        name = "message"
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])

    try:
        yield read()
    finally:
        connection.close()


def pages(found: Iterator[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    return (data for name, data in found if name == "page")


# ---- the page itself


def test_all_that_is_served_is_small_and_loads_nothing_from_elsewhere() -> None:
    sizes = {path: len(read_asset(name)) for path, (name, _) in ASSETS.items()}
    assert sum(sizes.values()) <= ASSETS_BYTES_MAX, sizes
    own = [name for name, _ in ASSETS.values() if "vendor" not in name]
    for name in own:
        text = read_asset(name).decode()
        elsewhere = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'`)]*""", text))
        assert elsewhere <= {"http://www.w3.org/2000/svg"}, (name, elsewhere)
        assert "innerHTML" not in text and "dangerouslySet" not in text


def test_every_file_is_served_and_may_do_nothing_but_what_the_page_needs(
    address: Address,
) -> None:
    for path, (name, kind) in ASSETS.items():
        answer = HttpClient(address).ask("GET", path)
        assert (answer.status, answer.body) == (200, read_asset(name))
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_the_notice_names_every_file_of_others() -> None:
    from importlib.resources import files

    vendor = files("penstock.ui").joinpath("static", "vendor")
    notice = vendor.joinpath("NOTICE").read_text()
    for path in vendor.iterdir():
        assert path.name == "NOTICE" or re.search(rf"^{path.name} ", notice, re.MULTILINE)


# ---- who gets what

ROUTES = (
    ("GET", "/v1/events"), ("GET", "/v1/facts"), ("GET", "/v1/explain/0"),
    ("GET", "/v1/streams/bids/tail"), ("GET", "/v1/queries/hot/plan"),
    ("POST", "/v1/queries/hot/stop"), ("POST", "/v1/queries/hot/rescale"),
)  # fmt: skip


@pytest.mark.parametrize("token", [None, "", "0" * 64, "wrong"])
def test_no_token_and_a_wrong_one_get_nothing(address: Address, token: str | None) -> None:
    for method, path in ROUTES:
        answer = HttpClient(address, token).ask(method, path)
        assert answer.status == 401, (method, path, answer.body)
        assert set(answer.json) == {"type", "title", "status", "detail", "remedy"}


def test_a_cookie_shows_no_token(log: penstock.Log, address: Address) -> None:
    """So that no other site can let a browser ask in somebody's name."""
    told = {"Cookie": f"token={token_of(log)}", "Origin": "http://elsewhere.example"}
    assert HttpClient(address).ask("POST", "/v1/queries/hot/stop", headers=told).status == 401


def narrowed(log: penstock.Log, *rights: str) -> str:
    return make_token(token_of(log), "a1b2c3d4e5f60718", [allow_caveat(rights)])


def test_a_narrowed_token_sees_what_it_may_and_is_told_of_the_rest(
    log: penstock.Log, address: Address
) -> None:
    log.create_stream("open_stream", "price long")
    log.create_stream("closed_stream", "price long")
    queries = MadeUpQueries(log, 2, 1)
    queries.register()
    queries.report(1)
    shown = HttpClient(address, narrowed(log, "read:open_*", "run:made_up_000"))

    facts = shown.ask("GET", "/v1/facts").json

    assert [one["name"] for one in facts["streams"]] == ["open_stream"]
    assert [one["name"] for one in facts["queries"]] == ["made_up_000"]
    assert facts["log"]["status"] is None
    assert "it may not look at the server" in facts["log"]["why"]
    assert shown.ask("GET", "/v1/streams/closed_stream/tail").status in (403, 404)
    with events(shown, "/v1/events?query=made_up_000") as found:
        page = next(pages(found))
    assert page["may_ask"] is True
    assert page["log"]["head"][0] == ["tail", ["n/a", None, ""]]
    looking = HttpClient(address, narrowed(log, "read:open_*", "metrics"))
    assert looking.ask("POST", "/v1/queries/made_up_000/stop").status in (403, 404)


def test_what_is_asked_for_stands_in_the_log(log: penstock.Log, client: HttpClient) -> None:
    queries = MadeUpQueries(log, 1, 1)
    queries.register()
    queries.report(2)
    (name,) = queries.names
    asked = client.ask("POST", f"/v1/queries/{name}/rescale", json.dumps({"workers": 3}))
    assert asked.status == 202
    assert client.ask("POST", f"/v1/queries/{name}/stop").status == 202
    said = [decode_message(one.payload) for one in log.client.read([control_tag(name)])]
    assert [type(one) for one in said] == [Rescale, Stop]
    assert isinstance(said[0], Rescale)
    assert said[0].workers == 3
    for body in ('{"workers": -1}', '{"workers": true}', "{}", '{"workers": "3"}', "[]"):
        assert client.ask("POST", f"/v1/queries/{name}/rescale", body).status in (400, 422), body
    assert client.ask("POST", f"/v1/queries/{name}/drop").status == 404
    assert client.ask("GET", f"/v1/queries/{name}/stop").status == 405


def test_who_is_connected_is_told_by_the_name_that_it_gives(own_log: penstock.Log) -> None:
    config = GatewayConfig(target=own_log.target, port=0)
    with (
        gateway_thread(config) as gateway,
        ui_thread(UiConfig(target=own_log.target, port=0)) as listening,
    ):
        asked = HttpClient(gateway, token_of(own_log)).ask("GET", "/v1/streams")
        assert asked.status == 200
        with events(HttpClient(listening, token_of(own_log)), "/v1/events") as found:
            page = next(pages(found))
    told = {one["name"]: one["connections"][1] for one in page["log"]["clients"]}
    assert {name.rpartition("-")[0] for name in told} == {"gateway", "page", "pid"}
    assert sum(told.values()) == dict(page["log"]["head"])["connections"][1]


def test_an_entry_is_explained_as_the_command_does(log: penstock.Log, client: HttpClient) -> None:
    stream = log.create_stream("explained", "price long")
    stream.append({"price": 7})
    lsn = log.bounds().tail - 1
    found = client.ask("GET", f"/v1/explain/{lsn}").json
    assert (found["lsn"], found["stream"], found["first_rows"]) == (
        lsn,
        "explained",
        [{"price": 7}],
    )
    assert client.ask("GET", f"/v1/explain/{lsn + 1000}").status == 404
    assert client.ask("GET", "/v1/explain/-1").status == 400


def test_an_entry_with_what_json_cannot_hold_is_explained(
    log: penstock.Log, client: HttpClient
) -> None:
    stream = log.create_stream("not_numbers", "price double, words string")
    stream.append({"price": float("nan"), "words": "a"})
    text = client.ask("GET", f"/v1/explain/{log.bounds().tail - 1}").body.decode()
    refused = AssertionError("no JSON of browsers has this")

    def no_number(name: str) -> Any:
        raise refused

    found = json.loads(text, parse_constant=no_number)
    assert found["first_rows"] == [{"price": "NaN", "words": "a"}]

    pulse = Pulse({"isActive": True, "name": "\ud800", "runId": "\ud800"})
    entry = NewEntry(encode_message(pulse), (pulse_tag("odd"), control_tag("odd")), Kind.CONTROL)
    log.client.append([entry])
    lsn = log.bounds().tail - 1
    assert client.ask("GET", f"/v1/explain/{lsn}").json["lsn"] == lsn


def test_a_ticket_that_is_no_ticket_is_refused_in_words(address: Address) -> None:
    client = HttpClient(address, None)
    for body, status in ((b"x" * 5_000, 413), (b"\xff", 401), (b"", 401)):
        answer = client.ask("POST", "/v1/ticket", body)
        assert (answer.status, set(answer.json)) == (
            status,
            {"type", "title", "status", "detail", "remedy"},
        )


# ---- updates


def test_facts_are_gathered_once_however_many_pages_look(
    log: penstock.Log, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[float] = []
    original = gather.Gatherer.gather

    def counting(self: gather.Gatherer) -> dict[str, Any]:
        gathered.append(time.monotonic())
        return original(self)

    monkeypatch.setattr(gather.Gatherer, "gather", counting)
    token = narrowed(log, "admin")  # nobody else looks with it
    alone = HttpClient(client.address, token)
    with (
        events(alone, "/v1/events") as one,
        events(alone, "/v1/events") as two,
        events(alone, "/v1/events") as three,
    ):
        looking = (one, two, three)
        seen = [[next(pages(each))["number"] for _ in range(3)] for each in looking]
    # Three pages took three updates each; had each page its own, there were nine.
    newest = max(max(each) for each in seen)
    assert len(gathered) <= newest + 1


def test_when_nobody_looks_nothing_is_gathered(
    log: penstock.Log, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LINGER_SECONDS", 0.0)
    token = make_token(token_of(log), "b1b2c3d4e5f60718", [allow_caveat(["admin"])])
    with events(HttpClient(client.address, token), "/v1/events") as found:
        next(pages(found))
    calls: list[int] = []

    def refused(self: gather.Gatherer) -> dict[str, Any]:
        calls.append(1)
        return {}

    time.sleep(2 * live.UPDATE_SECONDS)
    monkeypatch.setattr(gather.Gatherer, "gather", refused)
    time.sleep(2 * live.UPDATE_SECONDS)
    assert calls == []


def test_who_comes_back_is_not_shown_what_was_long_ago(
    log: penstock.Log, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(gather, "SELDOM", 1)
    token = make_token(token_of(log), "c1b2c3d4e5f60718", [allow_caveat(["admin"])])
    shown = HttpClient(client.address, token)
    with events(shown, "/v1/events") as found:
        next(pages(found))
    time.sleep(2 * live.UPDATE_SECONDS)
    log.create_stream("made_meanwhile", "price long")
    with events(shown, "/v1/events") as found:
        first = next(pages(found))
    assert "made_meanwhile" in [one["name"] for one in first["streams"]]


def test_how_far_a_query_is_behind_that_does_not_run_is_measured(
    own_log: penstock.Log,
) -> None:
    queries = MadeUpQueries(own_log, 1, 1)
    queries.register()
    own_log.stream("made_up_in").append([{"price": n} for n in range(5)])
    with ui_thread(UiConfig(target=own_log.target, port=0)) as listening:
        facts = HttpClient(listening, token_of(own_log)).ask("GET", "/v1/facts").json
        (lag,) = facts["idle_lags"][queries.names[0]].values()
        assert (lag["records"], lag["isLowerBound"]) == (5, False)

        # Whoever may run a query may report anything of it.
        for bad in ([{"description": 5, "endOffset": "x"}], {"a": 1}, [{}], "sources", None):
            own_log.client.append(
                [
                    NewEntry(
                        encode_message(Pulse({"isActive": False, "sources": bad})),
                        (pulse_tag(queries.names[0]),),
                        Kind.CONTROL,
                    )
                ]
            )
            shown = HttpClient(listening, token_of(own_log))
            facts = shown.ask("GET", "/v1/facts").json
            assert facts["queries"][0]["state"] == "stopped"
            with events(shown, f"/v1/events?query={queries.names[0]}") as found:
                assert next(pages(found))["query"]["state"] == "stopped"


def test_whatever_stands_under_a_name_hides_no_other(own_log: penstock.Log) -> None:
    queries = MadeUpQueries(own_log, 2, 1)
    queries.register()
    queries.report(3)
    evil = "<img src=x onerror=hit()>'\"&#"
    good, bad = queries.names
    value = own_log.client.get(query_key(good))
    assert value is not None
    known = json.loads(value.data)
    odd = {
        query_key(evil): {**known, "name": evil},
        query_key("cut"): "no object",
        query_key("far"): {**known, "name": "far", "starts": {"made_up_in": 2**80}},
        "stream/odd": {"version": 1},
        "deliver/odd": {**DELIVERY, "name": "odd", "start": 2**80},
        "deliver/old": {**DELIVERY, "name": "old"},
        "delivered/old": {**ACK, "time_ms": 2**80},
    }
    sets = [SetKey(key, json.dumps(told).encode()) for key, told in odd.items()]
    own_log.client.append([], sets=sets)
    over = NewEntry(encode_message(Pulse({"isActive": False})), (pulse_tag("far"),), Kind.CONTROL)
    own_log.client.append([over])
    with ui_thread(UiConfig(target=own_log.target, port=0)) as listening:
        client = HttpClient(listening, token_of(own_log))
        facts = client.ask("GET", "/v1/facts").json
        states = {one["name"]: one["state"] for one in facts["queries"]}
        assert states == {good: "running", bad: "running", evil: "new", "cut": None,
                          "far": "stopped"}  # fmt: skip
        assert {one["name"] for one in facts["deliveries"]} == {"odd", "old"}
        assert {one["name"] for one in facts["streams"]} == {"made_up_in", "odd"}
        # The page follows whatever was chosen on it.
        with events(client, f"/v1/events?query={quote(evil)}") as found:
            page = next(pages(found))
        assert (page["query"]["key"], page["query"]["state"]) == (evil, "new")
        assert client.ask("GET", f"/v1/events?query={'x' * 5_000}").status == 400


DELIVERY = {
    "format": 1, "name": "", "id": "an-id", "stream": "made_up_in", "query": None, "version": None,
    "key": [], "route": [0], "epoch": 1, "start": 0, "table": "t", "targets": ["sqlite:///x"],
    "strict": False, "dead_letter": None, "created_ms": 0,
}  # fmt: skip
ACK = {
    "format": 1, "term": 1, "positions": [0], "problems": [None], "rows": [0], "is_running": False,
    "error": None,
}  # fmt: skip


def test_clocks_that_differ_make_no_query_dead_or_alive(
    log: penstock.Log, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told that a query is lost starts it again, and stops the one that runs."""
    queries = MadeUpQueries(log, 1, 1)
    queries.register()
    queries.report(1)
    monkeypatch.setattr(query_facts, "now_ms", lambda: time.time_ns() // 1_000_000 + 600_000)
    ending = threading.Event()

    def report() -> None:
        number = 2
        while not ending.wait(0.25):
            queries.report(number)
            number += 1

    thread = threading.Thread(target=report)
    thread.start()
    # Nobody has looked with this token yet.
    token = make_token(token_of(log), "e1b2c3d4e5f60718", [allow_caveat(["admin"])])
    looking = HttpClient(address, token)
    with events(looking, f"/v1/events?query={queries.names[0]}") as found:
        following = pages(found)
        try:
            assert [next(following)["query"]["state"] for _ in range(4)] == ["running"] * 4
        finally:
            ending.set()
            thread.join()
        late = time.monotonic() + 45
        while next(following)["query"]["state"] != "lost":
            assert time.monotonic() < late, "the dead seem to live"


def test_a_token_that_expires_is_asked_for_anew(log: penstock.Log, address: Address) -> None:
    until = until_caveat(time.time_ns() // 1_000_000 + 2_500)
    token = make_token(token_of(log), "d1b2c3d4e5f60718", [allow_caveat(["admin"]), until])
    client = HttpClient(address, token)
    with events(client, "/v1/events") as found:
        assert next(pages(found))["health"]["level"]
        late, told = time.monotonic() + 45, None
        for name, data in found:
            assert time.monotonic() < late, "it is shown to whoever looked in time"
            told = (name, data.get("status"))
    assert told == ("problem", 401), "it ends with the reason"
    for method, path in ROUTES:
        assert client.ask(method, path).status == 401, path


def test_more_queries_than_are_shown_are_told_of(
    log: penstock.Log, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeUpQueries(log, 3, 1).register()
    monkeypatch.setattr(gather, "QUERIES_MAX", 2)
    facts = client.ask("GET", "/v1/facts").json
    assert (len(facts["queries"]), facts["queries_left_out"] > 0) == (2, True)
    book = Book()
    book.take(facts)
    told = [one["what"] for one in book.page(None, facts["at_ms"])["health"]["problems"]]
    assert any("more queries are registered than are shown" in one for one in told)


def test_a_page_that_takes_nothing_keeps_nobody_waiting(
    log: penstock.Log, client: HttpClient
) -> None:
    connection = client.connection()
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {client.token}"})
    assert isinstance(connection.getresponse(), http.client.HTTPResponse)  # and reads no further
    with events(client, "/v1/events") as found:
        numbers = [page["number"] for page, _ in zip(pages(found), range(3), strict=False)]
    assert numbers == sorted(set(numbers))
    connection.close()


@pytest.mark.parametrize("path", ["/v1/events", "/v1/streams/followed/tail"])
def test_no_more_are_let_in_than_there_is_room_for_however_they_come(
    log: penstock.Log, client: HttpClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(app, "PAGES_MAX", 3)
    log.create_stream("followed", "price long")
    headers = {"Authorization": f"Bearer {client.token}"}
    connections = [client.connection() for _ in range(12)]
    for connection in connections:
        connection.request("GET", path, headers=headers)
    answers = [connection.getresponse() for connection in connections]
    assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 9
    for answer, connection in zip(answers, connections, strict=True):
        answer.close()
        connection.close()

    def is_there_room() -> bool:
        connection = client.connection()
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            connection.close()
            return answer.status == 200

    wait_until(is_there_room, "who has gone is counted still")


def test_a_live_tail_is_filtered_and_says_what_it_leaves_out(
    log: penstock.Log, client: HttpClient
) -> None:
    stream = log.create_stream("tailed", "price long, item string")
    with events(client, "/v1/streams/tailed/tail?filter=NEEDLE") as found:
        next(found)
        rows = [{"price": n, "item": "needle" if n % 100 == 0 else "hay"} for n in range(1000)]
        stream.append(rows)
        came = 0
        shown: list[dict[str, Any]] = []
        while came < 1000:
            _, told = next(found)
            came += told["came"]
            shown += told["rows"]
    assert [json.loads(one["row"])["price"] for one in shown] == list(range(0, 1000, 100))

    with events(client, "/v1/streams/tailed/tail") as found:
        next(found)
        stream.append(rows)
        told = next(data for _, data in found if data["came"])
    assert (len(told["rows"]), told["left_out"]) == (40, told["came"] - 40)


def test_fifty_queries_and_five_hundred_tasks_are_kept_up_with(
    log: penstock.Log, client: HttpClient, record_property: Any
) -> None:
    """A report of each a second: every one of them is on the page before the next is due."""
    queries = MadeUpQueries(log, 50, 10)
    queries.register()
    queries.report(0)
    late: list[float] = []
    name = queries.names[7]
    with events(client, f"/v1/events?query={name}") as found:
        following = pages(found)
        for number in range(1, 6):
            queries.report(number)
            appended = time.monotonic()
            wanted = dict.fromkeys(queries.names, number)
            while {
                one["key"]: one["figures"]["lag rows"][1]
                for one in next(following)["queries"]
                if one["key"] in wanted
            } != wanted:
                assert time.monotonic() < appended + 45, "the page does not follow"
            late.append(time.monotonic() - appended)
        page = next(following)
    assert len(page["query"]["tasks"]) == 10
    record_property("seconds_until_shown", [round(one, 2) for one in late])
    # An update begins each second; what is late at every try has fallen behind.
    assert min(late) < 2.0, late


# ---- how it ends, what it refuses


def test_pages_end_when_the_server_stops(own_log: penstock.Log) -> None:
    ended = threading.Event()
    began = threading.Event()

    def look(client: HttpClient) -> None:
        with events(client, "/v1/events") as found:
            for _ in found:
                began.set()
        ended.set()

    with ui_thread(UiConfig(target=own_log.target, port=0)) as listening:
        thread = threading.Thread(target=look, args=(HttpClient(listening, token_of(own_log)),))
        thread.start()
        assert began.wait(45)
    thread.join(45)
    assert ended.is_set()


def test_the_command_serves_until_it_is_told_to_stop(own_log: penstock.Log) -> None:
    place = Path(own_log.target)
    with GatewayProcess(place, server="ui") as process:
        address = process.ready()
        client = HttpClient(address, token_of(own_log))
        assert client.ask("GET", "/healthz").json == {"status": "ok"}
        assert find_page(own_log.target) == f"http://127.0.0.1:{address.port}"
        with events(client, "/v1/events") as found:
            next(pages(found))
            code, said = process.stop()
            assert list(pages(found)) is not None  # it ends
        assert (code, said) == (0, "")
    assert find_page(own_log.target) is None


def test_a_log_that_is_down_is_not_started(own_log: penstock.Log) -> None:
    from embedded_server import stop_server

    from penstock.log.serving.directory import is_locked

    token, directory = token_of(own_log), Path(own_log.target)
    own_log.close()
    stop_server(directory)
    config = UiConfig(target=own_log.target, port=0, timeout_seconds=0.3)
    with ui_thread(config) as listening:
        answer = HttpClient(listening, token).ask("GET", "/v1/facts")
        assert answer.status == 503
        assert not is_locked(directory)
        with penstock.connect(directory) as opened:
            opened.create_stream("there_again", "price long")
            wait_until(
                lambda: HttpClient(listening, token).ask("GET", "/v1/facts").status == 200,
                "the page does not come back",
            )


def test_beyond_this_machine_only_with_tls() -> None:
    with pytest.raises(BadConfig, match=r"0\.0\.0\.0"):
        UiConfig(host="0.0.0.0").validate()
