"""Freed memory goes back after requests, and nothing is done while nobody asks."""

from __future__ import annotations

import threading
import time

import pytest

from edgeinfer.runtime.serve import tidying
from tests.runtime.serve.conftest import Start
from tests.runtime.serve.test_v2 import URL, body


def test_memory_is_given_back_once_after_requests(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Semaphore(0)
    monkeypatch.setattr(tidying, "TIDY_S", 0.02)
    monkeypatch.setattr(tidying, "trim", trimmed.release)
    server = start()
    for _ in range(2):
        assert server.client.post(URL, json=body()).status_code == 200
        assert trimmed.acquire(timeout=60)
        # A second look after the same request is none.
        time.sleep(0.1)
        assert not trimmed.acquire(blocking=False)
