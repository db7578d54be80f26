"""What all connections of Kafka's clients to one gateway share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.errors import Unauthorized
from penstock.gateway.bodies import Budget
from penstock.gateway.kafka.errors import Code, code_of
from penstock.gateway.kafka.fetching import Room
from penstock.gateway.kafka.metrics import KafkaMetrics
from penstock.gateway.sessions import Sessions
from penstock.log.serving.directory import Address

logger = logging.getLogger(__name__)


class Shared:
    """Bounds and counts."""

    def __init__(
        self, sessions: Sessions, budget: Budget, advertised: Address | None = None
    ) -> None:
        self.advertised = advertised
        self.sessions = sessions
        self.budget = budget
        self.metrics = KafkaMetrics()
        self.room = Room()
        self.stopping = asyncio.Event()
        #: One: however many large batches wait, one of them is being unfolded.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="penstock-kafka")

    async def beside_if(self, large: bool, work: Callable[..., Any], *given: object) -> Any:
        """On a thread if it takes long, so that others are served meanwhile."""
        if not large:
            return work(*given)
        return await asyncio.get_running_loop().run_in_executor(self._beside, work, *given)

    def count(self, error: Exception) -> None:
        code = code_of(error)
        if isinstance(error, Unauthorized):
            self.metrics.unauthorized += 1
        elif code == Code.UNKNOWN_SERVER_ERROR:
            self.metrics.failed += 1
            logger.error("a request of a Kafka client failed cause=%r", error, exc_info=error)
        else:
            self.metrics.refused += 1

    def close(self) -> None:
        self._beside.shutdown(wait=False)
