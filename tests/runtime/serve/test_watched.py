"""Who looks at a server sees all models, why runs began and who waits; and changes nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import Fakes, write_bundle
from tests.runtime.serve.conftest import Server, Start
from tests.runtime.serve.test_metrics import figures
from tests.runtime.serve.test_v2 import URL, body

LOOKS = (
    *("/metrics", "/health/run", "/v2", "/v2/health/ready", "/v2/models/stats", "/v1/models"),
    *(f"/v2/models/double{what}" for what in ("", "/ready", "/stats", "/config")),
    *("/v1/pipelines", "/"),
)


def value(server: Server, name: str, **labels: str) -> float:
    return sum(v for told, v in figures(server)[name] if labels.items() <= told.items())


def test_to_look_wakes_nothing(start: Start, fakes: Fakes) -> None:
    server = start()
    assert server.client.post("/v2/repository/models/double/unload").status_code == 200
    loads = fakes["fake"].loads
    for address in LOOKS:
        server.client.get(address)
    server.client.post("/v2/repository/index")
    assert (fakes["fake"].loads, fakes["fake"].open) == (loads, [])
    assert server.hub.models["double"].state == "unloaded"


@pytest.mark.usefixtures("on_threads")
def test_runs_say_why_they_began_and_who_waits_for_how_long(start: Start, fakes: Fakes) -> None:
    server = start(batch=1, threads=1)
    model = {"model": "double"}
    before = {
        why: value(server, "edgeinfer_batches_total", reason=why, **model)
        for why in ("idle", "waited", "full")
    }
    assert value(server, "edgeinfer_oldest_wait_seconds", **model) == 0
    gate = fakes["fake"].gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(server.client.post, URL, json=body()) for _ in range(2)]
        try:
            while (first := value(server, "edgeinfer_oldest_wait_seconds", **model)) == 0:
                pass
            while value(server, "edgeinfer_oldest_wait_seconds", **model) <= first:
                pass
        finally:
            gate.set()
        assert [each.result().status_code for each in asked] == [200, 200]
    assert value(server, "edgeinfer_oldest_wait_seconds", **model) == 0
    for why, more in (("idle", 1), ("waited", 1), ("full", 0)):
        found = value(server, "edgeinfer_batches_total", reason=why, **model)
        assert found == before[why] + more, why


def test_sequences_and_caches_of_all_models_are_in_one_view(server: Server) -> None:
    given = {"model": "tiny", "prompt": "the cat", "max_tokens": 100, "ignore_eos": True}

    def view() -> dict[str, Any]:
        found = server.client.get("/v2/models/stats").json()["model_stats"]
        assert {model["name"] for model in found} == {"double", "tiny"}
        return {model["name"]: model for model in found}

    llm = server.hub.models["tiny"].text
    assert llm is not None
    thread, seen = llm.engine, threading.Event()
    executor: Any = thread.call(lambda engine: engine._cache.executor).result()
    step = executor.step

    def waits(batch: Any) -> Any:
        """Take each step once somebody asks for a view, which comes between two of them."""
        while not (thread._commands or seen.wait(0.001)):
            pass
        return step(batch)

    executor.step = waits
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.client.post, "/v1/completions", json=given)
            while not (engine := view()["tiny"]["engine"])["running"]:
                assert not asked.done()
            seen.set()
            assert asked.result().status_code == 200
    finally:
        seen.set()
        executor.step = step
    assert 0 < engine["pages_used"] <= engine["pages"]
    assert engine["oldest_wait_s"] == 0
    assert view()["tiny"]["engine"]["running"] == 0


def test_a_model_is_ready_when_it_has_run(start: Start, fakes: Fakes, tmp_path: Path) -> None:
    """What its first run takes, no request waits for."""
    late, gate = fakes.add("late"), threading.Event()
    late.gate = gate
    bundle = write_bundle(tmp_path / "late.edge", "late")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start, str(bundle), only=True)
        while not any(e.inside for e in late.open):  # type: ignore[attr-defined] # of a fake
            time.sleep(0.001)
        assert not starting.done()
        gate.set()
        server = starting.result()
    assert server.client.get("/v2/health/ready").status_code == 200
