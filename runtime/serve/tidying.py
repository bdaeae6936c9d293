"""Memory that requests have freed goes back to the system a few seconds after them."""

from __future__ import annotations

import asyncio
import contextlib

from edgeinfer.errors import QueueFullError
from edgeinfer.machine.pages import trim
from edgeinfer.runtime.serve.hub import Hub

TIDY_S = 10.0


async def tidy(hub: Hub) -> None:
    """Give freed memory back now and then, where something was answered meanwhile.

    Args:
        hub: the models.
    """
    before = 0.0
    while True:
        await asyncio.sleep(TIDY_S)
        now = sum(counters.seconds for counters in hub.metrics.models.values())
        if now != before:
            before = now
            # Outside the loop, which would stand still for a millisecond; where too much waits
            # there it is done the next time.
            with contextlib.suppress(QueueFullError):
                await hub.facts.run(trim)
