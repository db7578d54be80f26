"""Numbers that bound everything, and the relations between them, asserted where they are stated.

Law (I19): whatever is read from a socket or a file is checked against a number here before anything
is allocated for it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: One payload. Arrow batches of a stream are split to stay below it. Precedent: Kafka and NATS, 1
#: MiB.
PAYLOAD_BYTES_MAX: Final = 1 * MIB
#: One group: an atomic append is held in memory by both sides, so it must stay small.
GROUP_BYTES_MAX: Final = 4 * MIB
#: Entries of one group; their LSNs are allocated in one step.
GROUP_ENTRIES_MAX: Final = 10_000
#: Some entries of a group, for a reader that wants only those: each brings its place of 4 bytes.
SLICE_BYTES_MAX: Final = GROUP_BYTES_MAX + 4 * GROUP_ENTRIES_MAX
#: Tags of one entry, and different tags in one group.
ENTRY_TAGS_MAX: Final = 64
#: Parts of a stream between stages: an entry has a tag for each that it holds rows of.
VIRTUAL_NODES_MAX: Final = ENTRY_TAGS_MAX
GROUP_TAGS_MAX: Final = 20_000
TAG_BYTES_MAX: Final = 256
PRODUCER_BYTES_MAX: Final = 200
#: Metadata: keys become the tag `m/<key>`, hence four bytes shorter than a tag.
KEY_BYTES_MAX: Final = TAG_BYTES_MAX - 4
VALUE_BYTES_MAX: Final = 256 * KIB
GUARDS_MAX: Final = 64
SUBSCRIPTION_TAGS_MAX: Final = 10_000
#: LSNs and append times stay below this; a reader without an end has it as its end.
POSITION_MAX: Final = 2**62
#: How long a group may wait for others to share its fsync; clients give up long after it.
FLUSH_MS_MAX: Final = 10_000

#: One frame: a group, plus the head of the message that carries it.
FRAME_HEAD_BYTES_MAX: Final = 4 * MIB
#: A delivery holds whole records and stops at the first that brings it beyond DELIVERY_BYTES.
DELIVERY_BYTES: Final = 1 * MIB
FRAME_BODY_BYTES_MAX: Final = DELIVERY_BYTES + GROUP_BYTES_MAX + 64 * KIB
#: Before the token is accepted, nothing larger than a HELLO is read (checklist 4.2).
PREAUTH_FRAME_BYTES_MAX: Final = 16 * KIB

#: What a group costs in memory beyond its bytes: the parsed table and what points to it. Counted
#: wherever groups are held, so that a flood of tiny ones stays within the same bounds.
GROUP_OVERHEAD_BYTES: Final = 2 * KIB

#: Bytes that a server holds for one connection's unanswered appends, and for all connections.
CONNECTION_INFLIGHT_BYTES_MAX: Final = 32 * MIB
SERVER_INFLIGHT_BYTES_MAX: Final = 256 * MIB
#: Bytes of one replicated log's writes that may be on their way to its nodes; the last may be above
#: it. Further groups wait in the sequencer, where the limits above bound them.
LOG_INFLIGHT_BYTES_MAX: Final = 16 * MIB
#: Bytes of answers and deliveries that wait in one socket before its next requests wait too; above
#: one reader's default credit, so that a client that reads never meets it.
CONNECTION_OUTPUT_BYTES_MAX: Final = 8 * MIB
#: Requests of one connection that may be read from disk at once; each may answer with a payload.
CONNECTION_READS_MAX: Final = 4
#: Requests of one connection that may wait for an answer before its next ones wait too.
CONNECTION_WAITING_MAX: Final = 64
CONNECTIONS_MAX: Final = 4096
#: Connections that have not shown a token yet, in TLS handshakes too; for a further one the oldest
#: is closed.
PREAUTH_CONNECTIONS_MAX: Final = 512
PREAUTH_SECONDS_MAX: Final = 5.0
SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 1024
#: Tags of all subscriptions of one connection; each costs some 400 bytes.
CONNECTION_TAGS_MAX: Final = 10 * SUBSCRIPTION_TAGS_MAX
#: Credit that one subscription may hold, however much its reader gives.
CREDIT_BYTES_MAX: Final = 64 * MIB
CREDIT_BYTES_DEFAULT: Final = 4 * MIB

#: Groups of one producer that may be unacknowledged at once. The producer table remembers as many
#: first LSNs, so a retry of anything unacknowledged is answered from memory.
PRODUCER_INFLIGHT_GROUPS_MAX: Final = 32
PRODUCER_RECENT_GROUPS: Final = 32

#: One block: the groups of one write, up to the first that brings it beyond DELIVERY_BYTES.
BLOCK_BYTES_MAX: Final = DELIVERY_BYTES + GROUP_BYTES_MAX + 32 * KIB

#: Shares of a stream that tasks read side by side (stream/lanes.py), if nothing else is said.
LANES_DEFAULT: Final = 16
LANES_MAX: Final = VIRTUAL_NODES_MAX

#: Positions inside a segment file are stored as u32 in its index.
SEGMENT_BYTES_MAX: Final = 2_000 * MIB
SEGMENT_BYTES_MIN: Final = 64 * KIB
#: Append times inside a segment are stored as u32 milliseconds since its first.
SEGMENT_MS_MAX: Final = 30 * 24 * 3600 * 1000

# A group with the largest allowed payload fits, with room for its table.
assert PAYLOAD_BYTES_MAX * 2 <= GROUP_BYTES_MAX
assert GROUP_BYTES_MAX < FRAME_BODY_BYTES_MAX < CONNECTION_INFLIGHT_BYTES_MAX
# A delivery that had nearly DELIVERY_BYTES takes one more slice, with its record header.
assert DELIVERY_BYTES + SLICE_BYTES_MAX + KIB <= FRAME_BODY_BYTES_MAX
# A block travels in one frame.
assert BLOCK_BYTES_MAX <= FRAME_BODY_BYTES_MAX
# One log alone never fills the connection to a node.
assert LOG_INFLIGHT_BYTES_MAX + BLOCK_BYTES_MAX <= CONNECTION_INFLIGHT_BYTES_MAX
# Tag references in a group are u16.
assert GROUP_TAGS_MAX < 2**16
assert ENTRY_TAGS_MAX < 2**16
# Retries never need a group that the producer table has forgotten.
assert PRODUCER_RECENT_GROUPS >= PRODUCER_INFLIGHT_GROUPS_MAX
# A segment may overshoot its size by one group, and must stay addressable.
assert SEGMENT_BYTES_MAX + GROUP_BYTES_MAX < 2**32
assert SEGMENT_MS_MAX < 2**32
# A client that only tails is never kept from asking.
assert CREDIT_BYTES_DEFAULT < CONNECTION_OUTPUT_BYTES_MAX
# One full group is always deliverable on a fresh subscription.
assert CREDIT_BYTES_DEFAULT >= GROUP_BYTES_MAX
