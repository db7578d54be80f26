"""The messages between proxies and storage nodes, as frames; kinds 64 and up.

A connection begins as one to a log server does: `messages.Meet`, `Challenge` (proof.py). It is to
one life of a node: `NodeHello` names the cookie that the caller believes in.
After a `NodeWelcome` with `trusted` false the node has lost something since (a disk, a piece of its
journal): it may still show what it has, but takes nothing and never says that it has not (R05).

Failures are `messages.Failed`, with the same codes as a log server's.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import BadFormat
from penstock.wire.messages import Challenge, Failed, Meet, decode_as, encode_as


@dataclass(frozen=True, slots=True)
class NodeHello:
    """`cookie` empty: for status only, nothing of segments is answered.

    The frame's body proves the token.
    """

    KIND: ClassVar = 64
    name: str
    cookie: str


@dataclass(frozen=True, slots=True)
class NodeWelcome:
    KIND: ClassVar = 65
    name: str
    cookie: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class AddBlock:
    """The frame's body is one block. Answered by `BlockAdded` after its fsync.

    `part` is 0 for the segment's own blocks and 1 for its index.
    """

    KIND: ClassVar = 66
    log: str
    segment: int
    part: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BlockAdded:
    KIND: ClassVar = 67


@dataclass(frozen=True, slots=True)
class FenceSegment:
    """Take no block of an epoch below this one from now on. Answered after its fsync."""

    KIND: ClassVar = 68
    log: str
    segment: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SegmentFenced:
    """The largest durable block that this node has heard of, and the first it never had."""

    KIND: ClassVar = 69
    durable_block: int
    next_block: int


@dataclass(frozen=True, slots=True)
class ReadBlocks:
    """Blocks from `first` on, as many as follow each other here, about `bytes_max` of them.

    `durable_block`: what the reader knows to be durable; with what the node knows, it bounds what
    is shown. `fence_epoch` above 0 makes it a recovery read: the segment is fenced first, and
    blocks beyond the durable ones are shown. With `wait_ms` the answer waits until `first` is
    durable.
    """

    KIND: ClassVar = 70
    log: str
    segment: int
    part: int
    first: int
    durable_block: int
    bytes_max: int
    fence_epoch: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class BlocksRead:
    """The frame's body is whole blocks. Without any, `outcome` says why.

    0 found · 1 not durable yet, as far as this node knows · 2 the node has it not, and after a
    recovery read never will have it from an older epoch · 3 unknown: it may have had it.
    """

    KIND: ClassVar = 71
    outcome: int
    durable_block: int


@dataclass(frozen=True, slots=True)
class ListBlocks:
    """Which blocks in [first, end) are here, whole and durable?"""

    KIND: ClassVar = 72
    log: str
    segment: int
    part: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class BlocksListed:
    """Pairs of first and end, ascending."""

    KIND: ClassVar = 73
    ranges: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GetNodeStatus:
    KIND: ClassVar = 74


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """JSON for people and tools."""

    KIND: ClassVar = 75
    json: str


NodeMessage = (
    NodeHello
    | NodeWelcome
    | AddBlock
    | BlockAdded
    | FenceSegment
    | SegmentFenced
    | ReadBlocks
    | BlocksRead
    | ListBlocks
    | BlocksListed
    | GetNodeStatus
    | NodeStatus
    | Failed
    | Meet
    | Challenge
)

NODE_MESSAGES: dict[int, type[NodeMessage]] = {
    cls.KIND: cls for cls in typing.get_args(NodeMessage)
}


def encode_node_message(message: NodeMessage) -> bytes:
    return encode_as(type(message), message)


def decode_node_message(kind: int, head: bytes) -> NodeMessage:
    cls = NODE_MESSAGES.get(kind)
    if cls is None:
        raise BadFormat(f"message kind {kind} is not known")
    return typing.cast(NodeMessage, decode_as(cls, head))
