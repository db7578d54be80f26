"""What narrowed tokens allow: every request has a rule, and more caveats never allow more."""

from __future__ import annotations

import pytest
from bad_identities import ID, REQUESTS, TASK, append, chain_of, entry, find_holes, sets, token
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.log.core import rights as r
from penstock.log.core.rights import ROOT, RULES, allow_caveat, log_caveat, read_rights
from penstock.log.group_format import Body
from penstock.log.records import Guard, Kind
from penstock.wire import messages as m
from penstock.wire.token import Chain

#: What servers say, and how a connection begins before there is anybody to have rights.
ANSWERS = {
    m.Welcome, m.AppendDone, m.Failed, m.Delivery, m.LastEntry, m.Position, m.Metadata, m.Producer,
    m.Status, m.LogBounds, m.Pong, m.Challenge, m.MetricsText,
}  # fmt: skip
BEFORE = {m.Meet, m.MeetAs}


def refusal(request_name: str, *rights: str) -> str | None:
    (request,) = (each for each in REQUESTS if each.name == request_name)
    return read_rights(Chain(ID, (allow_caveat(rights),))).refuse(request.message, request.group)


def test_every_message_is_a_request_with_a_rule_or_none_that_may_be_asked() -> None:
    assert set(RULES) | ANSWERS | BEFORE == set(m.MESSAGES.values())
    assert not set(RULES) & (ANSWERS | BEFORE)
    asked = {type(request.message) for request in REQUESTS}
    assert asked | {m.Hello} == set(RULES), "a request without a sample"


@pytest.mark.parametrize("message", [m.Pong(), m.Welcome(b"", 0, 0, 0), m.Meet(b"")])
def test_what_has_no_rule_is_refused(message: m.Message) -> None:
    rights = read_rights(chain_of(token("allow=append:* read:* run:* deliver:* metrics")))
    assert rights.refuse(message) is not None


def test_nobody_gets_more_than_they_were_given_and_nobody_less() -> None:
    assert list(find_holes()) == []


def test_the_root_token_and_an_administrator_may_everything() -> None:
    admin = read_rights(chain_of(token("allow=admin")))
    for request in REQUESTS:
        assert ROOT.refuse(request.message, request.group) is None
        assert admin.refuse(request.message, request.group) is None


ALLOWED_ONCE = {
    "append a marker": ("run:hot", "append:bids"),
    "append a change": ("run:hot",),
    "append a control message": ("run:hot",),
    "append rows as a task": ("run:hot", "append:bids"),
    "append rows between stages": ("run:hot",),
    "append a claim of a task": ("run:hot",),
    "append another run": ("run:hot",),
    "append a question": ("run:hot", "append:bids"),
    "append staged rows": ("run:spark/*", "append:bids"),
    "append a marker without a name": ("run:spark/*", "append:bids"),
    "append an ack": ("deliver:shop",),
    "append a claim of a player": ("deliver:shop",),
    "append another delivery": ("deliver:shop",),
    "read a query": ("run:hot",),
    "read the last marker": ("run:hot",),
    "a task's producer": ("run:hot",),
    "a query's definition": ("deliver:shop",),
    "append rows of two streams": ("append:*",),
    "read no tag of two": ("read:*",),
}


@pytest.mark.parametrize("name", ALLOWED_ONCE)
def test_a_right_allows_what_it_says_and_all_of_it_is_needed(name: str) -> None:
    rights = ALLOWED_ONCE[name]
    assert refusal(name, *rights) is None
    for left_out in rights:
        assert refusal(name, *(each for each in rights if each != left_out), "metrics") is not None


def test_a_stream_is_made_once_and_changed_by_nobody() -> None:
    rights = read_rights(Chain(ID, ("allow=append:bids",)))
    absent = append("", sets("stream/bids"), guards=(Guard("stream/bids", None),))
    other = append("", sets("stream/bids"), guards=(Guard("stream/trades", None),))
    changed = append("", sets("stream/bids"), guards=(Guard("stream/bids", b"as it was"),))

    assert rights.refuse(absent.message, absent.group) is None
    assert rights.refuse(other.message, other.group) is not None
    assert rights.refuse(changed.message, changed.group) is not None


@pytest.mark.parametrize("right", ["append:bids", "read:bids", "run:hot", "deliver:shop"])
def test_who_uses_the_log_sees_how_far_is_trimmed_and_never_says_so(right: str) -> None:
    rights = read_rights(Chain(ID, (allow_caveat([right]),)))
    said = append("", sets("trim"))

    assert rights.refuse(m.GetMetadata("trim", exact=True)) is None
    assert rights.refuse(said.message, said.group) == (
        f"it may not set metadata key trim: the token allows {right}"
    )
    assert read_rights(Chain(ID, (allow_caveat(["metrics"]),))).shows_key("trim") is False


def test_a_producer_of_one_stream_does_not_write_another() -> None:
    rights = read_rights(Chain(ID, ("allow=append:bids append:trades",)))
    crossed = append("", entry(Kind.DATA, "s/trades"), producer="bids/till")
    assert rights.refuse(crossed.message, crossed.group) is not None


def test_an_anonymous_producer_is_its_tokens_own() -> None:
    mine = read_rights(Chain(ID, ("allow=append:bids",)))
    theirs = read_rights(Chain("00000000000000cc", ("allow=append:bids",)))
    rows = append("", entry(Kind.DATA, "s/bids"), producer=f"anon-{ID}-77")

    assert mine.refuse(rows.message, rows.group) is None
    assert theirs.refuse(rows.message, rows.group) is not None


def test_a_query_of_a_longer_name_is_another_one() -> None:
    rights = read_rights(Chain(ID, ("allow=run:hot append:bids",)))
    forged = append("", entry(Kind.MARKER, "T/hotter.1/0/0", "s/bids"), producer=TASK.producer)
    assert "T/hotter.1/0/0" in (rights.refuse(forged.message, forged.group) or "")


def test_a_list_of_metadata_shows_what_may_be_read() -> None:
    rights = read_rights(Chain(ID, ("allow=read:bids run:hot", "allow=read:* run:* admin")))
    shown = ["stream/bids", "run/hot", "query/hot"]
    hidden = ["stream/bids2", "writers/bids", "run/hot2", "deliver/x", "revoked/x", "other"]

    assert [key for key in shown + hidden if rights.shows_key(key)] == shown


_RIGHTS = st.sampled_from(
    [
        *("append:bids", "append:b*", "append:*", "append:trades", "read:bids", "read:*"),
        *("read:bi*", "read:trades", "run:hot", "run:h*", "run:*", "run:spark/*", "run:cold"),
        *("deliver:shop", "deliver:*", "metrics", "admin"),
    ]
)
_CAVEAT = st.lists(_RIGHTS, min_size=1, max_size=4).map(allow_caveat)
_CAVEATS = st.lists(st.one_of(_CAVEAT, st.sampled_from(["log=orders", "until=5"])), max_size=4)


def test_who_only_appends_sees_no_offsets_of_readers() -> None:
    writer, reader = (
        read_rights(Chain(ID, (allow_caveat([right]),))) for right in ("append:bids", "read:bids")
    )
    assert not writer.shows_key("kafka/offset/bids/0/shop")
    assert reader.shows_key("kafka/offset/bids/0/shop")
    assert writer.shows_key("kafka/seq/bids/7/0") and not reader.shows_key("kafka/seq/bids/7/0")


def check_one_caveat_more(caveats: list[str], more: str) -> None:
    before = read_rights(Chain(ID, tuple(caveats)))
    after = read_rights(Chain(ID, (*caveats, more)))
    for request in REQUESTS:
        if after.refuse(request.message, request.group) is None:
            assert before.refuse(request.message, request.group) is None, request.name
    for key in ("stream/bids", "run/hot", "deliver/shop", "other"):
        assert before.shows_key(key) or not after.shows_key(key)
    for now_ms in (4, 5, 6):
        assert after.is_over(now_ms) or not before.is_over(now_ms)
    for log in ("orders", "other", ""):
        assert before.refuse_log(log) is None or after.refuse_log(log) is not None


@given(_CAVEATS, st.one_of(_CAVEAT, st.just("log=other"), st.just("until=4")))
def test_one_caveat_more_never_allows_more(caveats: list[str], more: str) -> None:
    check_one_caveat_more(caveats, more)


@given(_CAVEATS)
def test_the_order_of_caveats_does_not_matter_to_what_they_allow(caveats: list[str]) -> None:
    forth = read_rights(Chain(ID, tuple(caveats)))
    back = read_rights(Chain(ID, tuple(reversed(caveats))))
    for request in REQUESTS:
        message, body = request.message, request.group
        assert (forth.refuse(message, body) is None) == (back.refuse(message, body) is None)


@pytest.mark.parametrize(
    "caveat",
    [
        *("allow=", "allow=append", "allow=append:", "allow=read:a*b", "allow=read:a  read:b"),
        *("allow=all", "allow=append:a,b", "Allow=admin", "until=", "until=-1", "until=soon"),
        *("log=", "logs=x", "x"),
    ],
)
def test_a_caveat_that_cannot_be_read_makes_the_token_useless(caveat: str) -> None:
    with pytest.raises(BadRequest):
        read_rights(Chain(ID, (caveat,)))


def test_caveats_are_made_of_rights_and_logs_that_can_be_read() -> None:
    for bad in ([], ["append:*x"], ["everything"]):
        with pytest.raises(BadRequest):
            allow_caveat(bad)
    with pytest.raises(BadRequest):
        log_caveat("a b")


# ---- mistakes on purpose: each is noticed by a check above

MUTANTS = {
    "one request is not looked at": ("RULES", {**RULES, m.Trim: r._always}),
    "tags are not looked at": ("_subscribe", None),
    "a name matches all that it begins": (
        "Patterns.match",
        lambda self, name: name.startswith((*self._names, *self._starts)),
    ),
    "kinds are not looked at": (
        "Allowed.writes",
        lambda self, producer, kind, tag: self._judge(producer, Kind.DATA, tag),
    ),
    "producers are not looked at": ("Allowed.produces", lambda self, producer: True),
    "keys are not looked at": ("Allowed.sets_key", lambda self, change, guards: True),
    "guards are not looked at": ("Allowed.reads_key", lambda self, key: True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_the_rights_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wrong = MUTANTS[name]
    if place == "_subscribe":
        place, wrong = "RULES", {**RULES, m.Subscribe: r._use}
    monkeypatch.setattr(f"penstock.log.core.rights.{place}", wrong)

    assert list(find_holes()), "nobody noticed"


def test_caveats_that_add_up_instead_of_meeting_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: r.Rights, message: m.Message, body: Body | None = None) -> str | None:
        reasons = [allowed.refuse(message, body) for allowed in self.allowed]
        return None if None in reasons or not reasons else reasons[0]

    monkeypatch.setattr(r.Rights, "refuse", refuse)
    assert list(find_holes())
    with pytest.raises(AssertionError):
        check_one_caveat_more(["allow=read:bids"], "allow=append:bids")


def test_an_expiry_that_only_the_last_caveat_says_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(r, "min", lambda old, new: new, raising=False)
    with pytest.raises(AssertionError):
        check_one_caveat_more(["until=4"], "until=5")
