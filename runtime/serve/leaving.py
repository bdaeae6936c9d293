"""Runs on threads whose client may leave meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from edgeinfer.runtime.bell import awaited
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.runtime.serve.http import DisconnectedError

Left = Callable[[], Awaitable[None]]
"""Returns when a client has left."""

SOON_S = 0.02
"""A request that is answered sooner is not watched for a client that leaves."""


async def until_left(running: Future[Outputs], left: Left | None) -> Outputs:
    """Wait for a run on a thread, or until the client is gone.

    Args:
        running: Future of the run.
        left: returns when the client is gone; None where the task is cancelled then.

    Raises:
        DisconnectedError: the client left; what had not begun is not run.
    """
    future = awaited(running)
    try:
        done, _ = await asyncio.wait((future,), timeout=SOON_S)
        if not done and left is not None:
            watch = asyncio.ensure_future(left())
            try:
                await asyncio.wait((future, watch), return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
            if not future.done():
                raise DisconnectedError
        return await future
    finally:
        future.cancel()
        # An error that it holds would hold it, by this frame.
        del future, running
