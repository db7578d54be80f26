"""One life of a storage node, as proxies see it; the network and the simulator implement it.

`add` takes a callback and not an await: it is the hot path. Every other call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from penstock.errors import PenstockError
from penstock.ids import BlockId, NodeId
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import SegmentKey


class Found(IntEnum):
    """What a node says of a block (the numbers are on the wire)."""

    HERE = 0
    #: Not durable yet, as far as this node knows.
    LATER = 1
    #: It has it not; after a recovery read, it never will have it from an older epoch.
    ABSENT = 2
    #: It may have had it: no answer at all, and never to be counted as one (R04, R05).
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Fence:
    """What a node knew of a segment when it fenced it."""

    #: All blocks below were acknowledged.
    durable_block: BlockId
    #: The first block that it never had.
    next_block: BlockId


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole blocks, one after the other from the one asked for; not checked yet."""

    found: Found
    durable_block: BlockId
    data: Buffer = b""


#: Called once, on the loop: None after the fsync; Fenced; or Unavailable, which says nothing.
Added = Callable[[PenstockError | None], None]


class NodeClient(Protocol):
    """See the module's docstring. Raises Unavailable, DeadlineExceeded, Fenced, Overloaded."""

    @property
    def node(self) -> NodeId: ...

    def add(self, key: SegmentKey, epoch: int, block: Sequence[Buffer], added: Added) -> None:
        """Store a block (header and body, as buffers that never change)."""

    async def fence(self, key: SegmentKey, epoch: int) -> Fence: ...

    async def read(
        self,
        key: SegmentKey,
        first: int,
        *,
        durable_block: int = 0,
        bytes_max: int = ...,
        fence_epoch: int = 0,
        wait_ms: int = 0,
    ) -> Blocks:
        """See `node_messages.ReadBlocks`."""

    async def list_blocks(self, key: SegmentKey, first: int, end: int) -> list[tuple[int, int]]:
        """Ranges of blocks that it has, whole and durable."""


class Nodes(Protocol):
    """All storage nodes."""

    def client(self, node: NodeId) -> NodeClient | None:
        """The node, if it can be reached: in this very life, or in a former one, to read only."""

    def alive(self) -> dict[NodeId, NodeInfo]:
        """The nodes that are registered now."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when nodes come, go, or lose their connection to us."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a storage node says of itself in the metadata, at /nodes/<name>."""

    name: str
    cookie: str
    host: str
    port: int
    tls: bool = False
    region: str = "default"
    rack: str = "default"
    #: It is being emptied: nothing new is placed on it.
    draining: bool = False
    #: Former lives: under these it shows what it still has, and denies nothing.
    past_cookies: tuple[str, ...] = ()

    @property
    def id(self) -> NodeId:
        return NodeId(f"{self.name}:{self.cookie}")
