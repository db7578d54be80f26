"""What a cluster says of itself, for the page of one of its logs.

Asked as `penstock cluster status` does: proxies with the token of who looks; nodes with the token
that PENSTOCK_NODE_TOKEN_FILE names to this process, if it names one, or else not at all. Law: who
may not look at the log's server (the right `metrics`) is told nothing of the cluster.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from penstock.cli.cluster_facts import Facts, find_facts
from penstock.cli.cluster_target import Cluster, resolve_target
from penstock.errors import PenstockError
from penstock.log.client.client import AsyncLog
from penstock.wire import messages as m


def is_cluster(target: str | None) -> bool:
    """Whether an address names a cluster, as clients tell it."""
    return target is not None and "://" in target and "/" in target.partition("://")[2].strip("/")


class ClusterLooker:
    """Of one log and one token. On the loop only; opened when it is first asked."""

    def __init__(
        self, log: AsyncLog, target: str, token: str, tls_ca: Path | None, timeout: float
    ) -> None:
        self._log = log
        self._token = token
        self._target = resolve_target(
            target, token_file=None, node_token_file=None, auth_file=None, tls_ca=tls_ca,
            timeout=timeout,
        )  # fmt: skip
        self._open: AsyncExitStack | None = None
        self._cluster: Cluster | None = None

    async def facts(self) -> Facts:
        """What cannot be told is told as such, under `why`."""
        try:
            await self._log.call(m.GetStatus(), m.Status)
            return await find_facts(await self._opened())
        except PenstockError as error:
            await self.close()
            return {"why": str(error)}

    async def _opened(self) -> Cluster:
        if self._cluster is None:
            self._open = AsyncExitStack()
            found = await self._open.enter_async_context(self._target.open())
            self._cluster = replace(found, token=self._token)
        return self._cluster

    async def close(self) -> None:
        """It may be asked again, and is then opened anew."""
        opened, self._open, self._cluster = self._open, None, None
        if opened is not None:
            await opened.aclose()
