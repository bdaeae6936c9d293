"""Answers that are kept: the same inputs get them, others never, and memory has an end."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve.answers import ARRAY_BYTES, ENTRY_BYTES, Answers
from tests.runtime.serve.conftest import KEY, Start
from tests.runtime.serve.test_keys import OTHER
from tests.runtime.serve.test_v2 import URL, body

X = np.zeros((2, 3), np.float32)


def different() -> Iterator[dict[str, Any]]:
    yield {"x": X}
    yield {"y": X}
    yield {"x": X.astype(np.float64)}
    yield {"x": X.reshape(3, 2)}
    yield {"x": X + 1}
    yield {"x": X, "y": X}
    yield {"x": np.array(["ab", "c"], object)}
    yield {"x": np.array(["a", "bc"], object)}
    yield {"x": np.array(["abc", ""], object)}


def test_what_differs_has_another_key() -> None:
    answers = Answers(1000)
    keys = [answers.key("m", 0, feeds) for feeds in different()]
    keys += [answers.key("other", 0, {"x": X}), answers.key("m", 1, {"x": X})]
    keys += [answers.key("m", 0, {"x": X}, owner) for owner in (b"one", b"another")]
    assert len(set(keys)) == len(keys)
    assert answers.key("m", 0, {"x": np.asfortranarray(X)}) == keys[0]
    assert answers.key("m", 0, {"y": X, "x": X}) == answers.key("m", 0, {"x": X, "y": X})


def test_the_oldest_goes_first_and_copies_stay() -> None:
    size = ENTRY_BYTES + ARRAY_BYTES + 40
    answers, made = Answers(2 * size + 20), np.arange(10, dtype=np.float32)
    keys = [answers.key("m", n, {"x": X}) for n in range(4)]
    for key in keys[:2]:
        answers.put(key, {"y": made})
    made += 1
    found = answers.get(keys[0])
    assert found is not None
    assert found["y"].tolist() == list(range(10))
    with pytest.raises(ValueError, match="read-only"):
        found["y"] += 1
    answers.put(keys[2], {"y": made})
    assert answers.used == 2 * size
    # The second was used least recently.
    assert [answers.get(key) is None for key in keys[:3]] == [False, True, False]
    answers.put(keys[3], {"y": np.zeros(1000)})
    assert answers.get(keys[3]) is None
    assert answers.used == 2 * size


@pytest.mark.parametrize(
    "made", [np.zeros(1, np.float32), np.zeros((0, 4)), np.array(["a"] * 40, object)]
)
def test_small_answers_take_what_they_are_counted_for(made: Any) -> None:
    limit = 200_000
    answers = Answers(limit)
    tracemalloc.start()
    try:
        for n in range(2000):
            feeds = {"x": np.array([n])}
            # Each text is its own, as an engine makes them.
            new = np.array([f"{n}:{i}" for i in range(made.size)], object)
            answer = new if made.dtype == object else made
            answers.put(answers.key("m", 0, feeds), {"y": answer})
        del feeds, new, answer
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answers.used <= limit
    assert limit / 4 < taken < 1.1 * limit


def test_the_same_inputs_get_the_same_answer(start: Start, fakes: Any) -> None:
    server = start(answers_mb=1.0)
    first = server.client.post(URL, json=body()).json()
    # Another bundle would answer this now.
    fakes["fake"].bias = 5.0
    assert server.client.post(URL, json=body()).json()["outputs"] == first["outputs"]
    other = body()
    other["inputs"][0]["data"] = [1, 2, 3, 4, 5, 7]
    assert server.client.post(URL, json=other).json()["outputs"][0]["data"][0] == 7
    metrics = server.client.get("/metrics").text
    assert 'edgeinfer_answer_cache_hits_total{model="double"} 1.0' in metrics
    assert 'nv_cache_num_misses_per_model{model="double",version="1"} 2.0' in metrics
    for what in ("unload", "load"):
        server.client.post(f"/v2/repository/models/double/{what}")
    found = server.client.post(URL, json=body()).json()
    assert found["outputs"][0]["data"][0] == 7


def test_an_answer_is_for_the_key_that_asked(start: Start, fakes: Any) -> None:
    """Or its time told what another key asked."""
    server = start(answers_mb=1.0, keys=(KEY, OTHER))
    for key in (KEY, OTHER, OTHER):
        sent = server.client.post(URL, json=body(), headers={"authorization": f"Bearer {key}"})
        assert sent.status_code == 200
    headers = {"authorization": f"Bearer {KEY}"}
    metrics = server.client.get("/metrics", headers=headers).text
    assert 'nv_cache_num_misses_per_model{model="double",version="1"} 2.0' in metrics
    assert 'edgeinfer_answer_cache_hits_total{model="double"} 1.0' in metrics


def test_nothing_is_kept_unless_asked_for(start: Start, fakes: Any) -> None:
    server = start()
    first = server.client.post(URL, json=body()).json()
    fakes["fake"].bias = 5.0
    assert server.client.post(URL, json=body()).json()["outputs"] != first["outputs"]


def test_errors_are_not_kept(start: Start, fakes: Any) -> None:
    server = start(answers_mb=1.0)
    fakes["fake"].run_error = "broken"
    assert server.client.post(URL, json=body()).status_code == 500
    fakes["fake"].run_error = ""
    assert server.client.post(URL, json=body()).status_code == 200
