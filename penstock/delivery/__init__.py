"""Committed rows of a stream in databases, in order, exactly once.

api.py            what a batch is, and what a target must do with it
fold.py           what a batch changes in a table: at most one change per key
messages.py       what player and hosts of targets say to each other
routing.py        which shard a row belongs to
target_queue.py   what is to be sent to one target
player_core.py    the player: what to read, what to send to whom, when to try again
acks.py           how far the targets are, for the log: what is written, and when
moves.py          rows that move to another shard, added up
letters.py        rows that a target refuses, for the dead-letter stream
status.py         how a delivery stands, in words and as JSON
metrics.py        what a player counts
source.py         the committed rows of a stream, or of one query in it, as the log brings them
claim.py          the delivery's name in the log: all that a player writes there
host.py           what a player asks of a host of targets
local_host.py     targets inside the player's process, each on a thread of its own
player.py         the player at work
player_thread.py  the thread on which a player runs
registration.py   a delivery in the log's registry: made, found again, changed, removed
resharding.py     other targets for a delivery
deliver.py        penstock.deliver, and the delivery as a user holds it
targets/          databases that rows are delivered to
remote/           targets in other processes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.delivery.remote.serve import serve_targets

__all__ = ["serve_targets"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: servers are not what most who deliver need."""
    if name == "serve_targets":
        from penstock.delivery.remote.serve import serve_targets

        return serve_targets
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
