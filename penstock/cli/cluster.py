"""`penstock cluster …`: run a replicated log, look at it, check it, take nodes out of it."""

from __future__ import annotations

import click

from penstock.cli.groups import LazyGroup, Place

_COMMANDS = {
    "decommission": Place(
        "penstock.cli.cluster_decommission",
        "Empty storage NODE of the cluster at ADDRESS, and say when it can be stopped for good.",
    ),
    "node": Place("penstock.cli.cluster_node", "Run one storage node until SIGTERM or Ctrl-C."),
    "proxy": Place("penstock.cli.cluster_proxy", "Run one proxy until SIGTERM or Ctrl-C."),
    "status": Place(
        "penstock.cli.cluster_status",
        "How a cluster is: nodes, proxies, logs, and what is wrong.",
    ),
    "up": Place(
        "penstock.cli.cluster_up",
        "Run a cluster on this machine until Ctrl-C: ZooKeeper, storage nodes, proxies.",
    ),
    "verify": Place(
        "penstock.cli.cluster_verify",
        "Read every block of every sealed segment from every node that should have it.",
    ),
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def cluster() -> None:
    """A replicated log: storage nodes, proxies, and how they are."""
