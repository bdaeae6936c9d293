"""Mixed requests for long: every reply belongs to its request, memory and descriptors stay.

``EDGEINFER_SOAK`` is the count of requests, 20,000 where it is not set; the whole of it is
``python -m benchmarks.serving_soak``: two million requests or half an hour, whichever is longer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.serving_soak import (
    KINDS,
    Ask,
    Connection,
    WrongReplyError,
    bundles,
    check,
    serving,
    soak,
)
from tests.runtime.serve import weighed

REQUESTS = int(os.environ.get("EDGEINFER_SOAK", "20000"))
EACH = 1000
"""Requests between two weighings, of one kind."""

BYTES = 150
"""A request may leave fewer. Tables that fill up take 90 at most, at first."""

pytestmark = pytest.mark.slow


@pytest.mark.timeout(4 * 3600)
def test_nothing_is_mixed_up() -> None:
    found = soak(
        argparse.Namespace(count=REQUESTS, minutes=0, clients=4, kill_every=2000, chat=None)
    )
    assert found.count >= REQUESTS
    assert found.killed > 0


def test_a_wrong_reply_is_one() -> None:
    check(True)
    with pytest.raises(WrongReplyError):
        check(False, "told")


Served = tuple[int, "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = bundles(tmp_path_factory.mktemp("models"), None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = {**os.environ, **weighed.ENVIRONMENT}
    with serving(models, ("-m", weighed.__name__), env=env, **pipes) as made:
        yield made


async def ask(kind: Ask, port: int, count: int) -> None:
    """Ask over several connections, each time the same: new shapes have their place in tables."""

    async def asking(seed: int) -> None:
        rng, to, numbers = (
            random.Random(seed),
            Connection(port, False),
            itertools.count(seed * EACH),
        )
        done = 0
        while done < count // 8:
            done += await kind(to, rng, next(numbers))
        to.close()

    await asyncio.gather(*map(asking, range(8)))


def weigh(server: subprocess.Popen[str]) -> int:
    """Return the bytes that the server holds, once it holds no more than it needs."""
    assert server.stdin is not None
    assert server.stdout is not None
    before = sys.maxsize
    while True:
        server.stdin.write("\n")
        server.stdin.flush()
        now = int(server.stdout.readline())
        if now >= before:
            return before
        before = now
        time.sleep(0.5)


@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="mallinfo2 is of glibc")
@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.__name__)
def test_a_request_leaves_nothing(kind: Ask, served: Served) -> None:
    port, server = served
    asyncio.run(ask(kind, port, EACH))
    files, held = psutil.Process(server.pid).num_fds(), [weigh(server)]
    for _ in range(3):
        asyncio.run(ask(kind, port, EACH))
        held.append(weigh(server))
    # A leak is in each of them; what fills up, or is still being closed, is not.
    assert min(b - a for a, b in itertools.pairwise(held)) < BYTES * EACH, held
    end = time.monotonic() + 60
    while (now := psutil.Process(server.pid).num_fds()) > files:
        assert time.monotonic() < end, (files, now)
        time.sleep(0.1)
