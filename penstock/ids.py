"""The identifiers of the system, one NewType each, so that a type checker keeps them apart."""

from __future__ import annotations

from typing import NewType

#: Position of an entry in the log: dense, from 0, one per entry. A *tail* is the first unwritten
#: one.
Lsn = NewType("Lsn", int)

#: Fencing number of a log's owner; larger wins. Every opening of a log takes the next one.
Epoch = NewType("Epoch", int)

#: Number of a segment within its log, from 0, never reused.
SegmentId = NewType("SegmentId", int)

#: Number of a block within its segment: dense, from 0. A block is what one replicated write makes.
BlockId = NewType("BlockId", int)

#: One life of a storage node, `name:cookie`. A node that lost its disk comes back as another one.
NodeId = NewType("NodeId", str)
