"""Everything that can be asked of a log, and everybody who may not ask it.

Owns samples: of each request of the protocol, about one stream and one query, what somebody who
means harm would send; and tokens that are wrong in each way that we know of. `find_holes` says what
of it the pure rights let through; tests send the same to live servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.limits import MIB
from penstock.log.core.owners import revoked_key
from penstock.log.core.rights import read_rights
from penstock.log.group_format import CLAIM, RETIRE, Body, decode_body, encode_body, meta_entry
from penstock.log.records import Guard, Kind, NewEntry, SetKey
from penstock.protocol.names import TaskId
from penstock.wire import messages as m
from penstock.wire.token import Chain, make_token, split_token

ROOT = "5e" * 32
OTHER_ROOT = "0c" * 32
ID, REVOKED_ID = "00000000000000aa", "00000000000000bb"
LOG = "orders"
NOW_MS = 1_800_000_000_000
TASK = TaskId("hot", 1, 0, 0)
OTHER_TASK = TaskId("hotter", 1, 0, 0)


@dataclass(frozen=True)
class Request:
    """One thing to ask for."""

    name: str
    message: m.Message
    body: bytes = b""
    #: Tells of positions or of nobody's secrets: whoever may use the log at all may ask it.
    is_harmless: bool = False

    @property
    def group(self) -> Body | None:
        return decode_body(self.body) if self.body else None


def append(
    name: str,
    *entries: NewEntry,
    producer: str = f"anon-{ID}-0",
    guards: tuple[Guard, ...] = (),
    flags: int = 0,
) -> Request:
    body = encode_body(producer=producer, instance=1, first_seq=0, entries=entries, flags=flags)
    return Request(f"append {name}", m.Append(guards, 0), body)


def entry(kind: Kind, *tags: str) -> NewEntry:
    return NewEntry(b"payload!", tags, kind)


def sets(key: str, value: bytes | None = b"forged") -> NewEntry:
    return meta_entry([SetKey(key, value)])


#: About stream bids, query hot and delivery shop. Each request of the protocol is here.
REQUESTS = [
    append("rows", entry(Kind.DATA, "s/bids")),
    append("rows in a lane", entry(Kind.DATA, "s/bids", "l/bids/3"), producer="bids/till"),
    append("rows of two streams", entry(Kind.DATA, "s/trades", "s/bids")),
    append("rows as another's producer", entry(Kind.DATA, "s/bids"), producer="anon-00ff"),
    append("rows as a task", entry(Kind.DATA, "s/bids"), producer=TASK.producer),
    append("a marker", entry(Kind.MARKER, TASK.marker_tag, "s/bids"), producer=TASK.producer),
    append("a marker without a name", entry(Kind.MARKER, "s/bids", "M/bids")),
    append("a marker of a neighbour", entry(Kind.MARKER, OTHER_TASK.marker_tag)),
    append("a change", entry(Kind.CHANGE, TASK.change_tag), producer=TASK.producer),
    append("a control message", entry(Kind.CONTROL, "ctl/hot")),
    append("staged rows", entry(Kind.STAGED, "s/bids")),
    append("rows between stages", entry(Kind.DATA, "k/hot.1/0/7"), producer=TASK.producer),
    append("an ack", entry(Kind.CONTROL, "D/shop"), producer="@deliver/shop"),
    append("an entry without a tag", entry(Kind.DATA)),
    append("an entry of nobody", entry(Kind.DATA, "nobody's")),
    append("a claim", entry(Kind.CONTROL), producer="bids/till", flags=CLAIM),
    append("a claim of a task", entry(Kind.CONTROL), producer=TASK.producer, flags=CLAIM),
    append("a claim of a player", entry(Kind.CONTROL), producer="@deliver/shop", flags=CLAIM),
    append("a retirement", entry(Kind.CONTROL), producer="bids/till", flags=RETIRE),
    append("another schema", sets("stream/bids")),
    append("no schema", sets("stream/bids", None), guards=(Guard("stream/bids", b"x"),)),
    append("another run", sets("run/hot")),
    append("another delivery", sets("deliver/shop")),
    append("a key of nobody", sets("nobody's")),
    append("a revocation taken back", sets(revoked_key(REVOKED_ID), None)),
    append("a question", entry(Kind.DATA, "s/bids"), guards=(Guard("query/hot", None),)),
    Request("read the stream", m.Subscribe(9, ("s/bids",), 0, 2**62, MIB)),
    Request("read a lane", m.Subscribe(9, ("l/bids/0",), 0, 2**62, MIB)),
    Request("read everything", m.Subscribe(9, None, 0, 2**62, MIB)),
    Request("read a query", m.Subscribe(9, ("ctl/hot", TASK.marker_tag), 0, 2**62, MIB)),
    Request("read a definition's changes", m.Subscribe(9, ("m/stream/bids",), 0, 2**62, MIB)),
    Request("read no tag of two", m.Subscribe(9, ("s/trades", "s/bids"), 0, 2**62, MIB)),
    Request("read the last entry", m.ReadLast("s/bids", 2**62)),
    Request("read the last marker", m.ReadLast(TASK.marker_tag, 2**62)),
    Request("a definition", m.GetMetadata("stream/bids", True)),
    Request("a query's definition", m.GetMetadata("query/hot", True)),
    Request("what was revoked", m.GetMetadata(revoked_key(REVOKED_ID), True)),
    Request("a producer", m.GetProducer("bids/till")),
    Request("a task's producer", m.GetProducer(TASK.producer)),
    Request("trim", m.Trim(1)),
    Request("status", m.GetStatus()),
    Request("metrics", m.GetMetrics()),
    Request("a list", m.GetMetadata("", False), is_harmless=True),
    Request("time", m.FindTime(0), is_harmless=True),
    Request("bounds", m.GetBounds(), is_harmless=True),
    Request("credit", m.Credit(9, 1), is_harmless=True),
    Request("unsubscribe", m.Unsubscribe(9), is_harmless=True),
    Request("ping", m.Ping(), is_harmless=True),
]


@dataclass(frozen=True)
class Identity:
    """Somebody, and what of REQUESTS they may do all the same."""

    name: str
    token: str
    #: The server knows who it is, and refuses each request by itself.
    is_known: bool = False
    may: frozenset[str] = field(default=frozenset())


def token(*caveats: str, id: str = ID, root: str = ROOT) -> str:
    return make_token(root, id, caveats)


def chain_of(text: str) -> Chain:
    return split_token(text)[0]


def changed_chain(text: str, *caveats: str) -> str:
    """A token with other caveats under the mac that it had."""
    chain, mac = split_token(text)
    return f"{Chain(chain.id, caveats).text}.{mac.hex()}"


_LIMITED = token("until=1900000000000", "allow=read:bids")
_USER = "allow=append:bids read:bids"
_OF_USER = frozenset(
    (
        *("append rows", "append rows in a lane", "append a claim", "append a retirement"),
        "read a definition's changes",
        *("a producer", "read the stream", "read a lane", "read the last entry", "a definition"),
    )
)

#: The root token of REQUESTS' log is ROOT. Two more ways to be nobody need no token at all: no
#: challenge, and a proof that was recorded.
IDENTITIES = [
    Identity("no token", ""),
    Identity("a wrong token", OTHER_ROOT),
    Identity("a part of the token", ROOT[:-1]),
    Identity("another server's token", token(_USER, root=OTHER_ROOT)),
    Identity("a caveat taken away", changed_chain(_LIMITED, "until=1900000000000")),
    Identity("all caveats taken away", changed_chain(_LIMITED)),
    Identity(
        "caveats in another order",
        changed_chain(_LIMITED, "allow=read:bids", "until=1900000000000"),
    ),
    Identity("a caveat changed", changed_chain(_LIMITED, "until=1900000000000", "allow=admin")),
    Identity(
        "a caveat added by hand", changed_chain(_LIMITED, "until=1900000000000", _USER, _USER)
    ),
    Identity("a mac of zeros", f"{chain_of(_LIMITED).text}.{'0' * 64}"),
    Identity("an unknown caveat", token(_USER, "from=10.0.0.1")),
    Identity("expired", token(_USER, f"until={NOW_MS}")),
    Identity("another log", token(_USER, "log=other")),
    Identity("revoked", token(_USER, id=REVOKED_ID)),
    Identity("no right to the log", token("allow=metrics"), True, frozenset({"status", "metrics"})),
    Identity("rights to another stream", token("allow=append:trades read:trades"), True),
    Identity(
        "rights to a shorter name",
        token("allow=append:bid read:bid run:ho deliver:sho"),
        True,
        frozenset({"a query's definition"}),
    ),
    Identity("rights to a longer name", token("allow=append:bids2 read:bids2 run:hot2"), True),
    Identity("a user", token(_USER), True, _OF_USER),
    Identity("two rights that do not meet", token("allow=append:bids", "allow=read:trades"), True),
    Identity("a right narrowed away", token("allow=admin", "allow=read:trades"), True),
]


def find_holes() -> Iterator[str]:
    """What the rights let through, though it is nobody's business; or do not, though it is."""
    for who in IDENTITIES:
        if not who.is_known:
            continue
        rights = read_rights(chain_of(who.token))
        for request in REQUESTS:
            reason = rights.refuse(request.message, request.group)
            if request.is_harmless or request.name in who.may:
                if reason is not None and who.name != "no right to the log":
                    yield f"{who.name}: {request.name} is refused: {reason}"
            elif reason is None:
                yield f"{who.name}: {request.name} is allowed"
