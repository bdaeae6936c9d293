"""What so many do at once: a place that nobody takes goes to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from edgeinfer.runtime.serve import turns
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.turns import Turns


@pytest.mark.parametrize("share", [b"", b"key"])
@pytest.mark.parametrize("comes_first", ["place", "leave"])
def test_who_leaves_as_a_place_comes_hands_it_on(share: bytes, comes_first: str) -> None:
    async def run() -> None:
        slots = Turns(1, "calls are there")
        await slots.take(share)
        leaves, stays = (asyncio.ensure_future(slots.take(share)) for _ in range(2))
        await asyncio.sleep(0)
        both: list[Callable[[], object]] = [lambda: slots.give(share), leaves.cancel]
        for each in both if comes_first == "place" else both[::-1]:
            each()
        await asyncio.wait_for(stays, 30)
        with pytest.raises(asyncio.CancelledError):
            await leaves
        slots.give(share)
        # Neither is one lost, nor one more there.
        await asyncio.wait_for(slots.take(share), 30)
        late = asyncio.ensure_future(slots.take(share))
        await asyncio.sleep(0)
        assert not late.done()
        slots.give(share)
        await asyncio.wait_for(late, 30)

    asyncio.run(run())


@pytest.mark.parametrize(("share", "status"), [(b"", 503), (b"key", 429)])
def test_who_waits_for_too_long_is_told_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, share: bytes, status: int
) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.01)

    async def run() -> None:
        slots = Turns(1, "calls are there")
        await slots.take(share)
        with pytest.raises(RequestError, match="too many calls are there") as caught:
            await slots.take(share)
        assert caught.value.status == status
        slots.give(share)
        await asyncio.wait_for(slots.take(share), 30)

    asyncio.run(run())
