"""A run that Ctrl-C ended: what follows is right, nothing waits for ever, nothing stays held."""

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.runtime.fleet import Runtime
from edgeinfer.types import Array
from tests.interrupts import PLACES, interrupted

MakeBundle = Callable[..., Path]
X: dict[str, Array] = {"x": np.full((1, 3), 2, np.float32), "k": np.arange(1)}


def _soon(function: Callable[[], Any]) -> Any:
    """Call it in another thread, where no Ctrl-C arrives, and wait for a while."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for ever"
    return found[0]


def _is_right(outputs: Any) -> bool:
    return bool(np.array_equal(outputs["double"], X["x"] * 2))


@pytest.mark.parametrize("way", ["run", "submit", "run while another waits"])
def test_a_model_of_a_runtime(fakes: Any, make_bundle: MakeBundle, way: str) -> None:
    fake = fakes.add("fake")
    path = make_bundle("fake", vectors=0)
    with Runtime(threads=1) as runtime:
        model = runtime.add(path)
        model.run(X)

        def act() -> None:
            if way == "run":
                model.run(X)
            elif way == "submit":
                model.submit(X).result()
            else:
                waiting = model.submit(X)
                model.run(X)
                waiting.result()

        for number in count():
            there = interrupted(act, number)
            assert _is_right(_soon(lambda: model.submit(X).result(60))), PLACES[-1:]
            assert _is_right(_soon(lambda: model.run(X))), PLACES[-1:]
            assert model.engine.is_idle, PLACES[-1:]
            if not there:
                break
        assert number > 20
    assert fake.open == []


@pytest.mark.parametrize("way", ["run", "bound", "async"])
def test_a_session(fakes: Any, make_bundle: MakeBundle, way: str) -> None:
    fake = fakes.add("fake", concurrent=False)
    path = make_bundle("fake", vectors=0)
    number = 0
    while _session_goes_on(path, way, number):
        assert fake.open == [], PLACES[-1:]
        number += 1
    assert number > 5


def _session_goes_on(path: Path, way: str, number: int) -> bool:
    with edgeinfer.load(path) as session:
        bound = session.bind({name: array.copy() for name, array in X.items()})
        acts: dict[str, Callable[[], object]] = {
            "run": lambda: session.run(X),
            "bound": bound,
            "async": lambda: session.run_async(X).result(),
        }
        there = interrupted(acts[way], number)
        assert _is_right(_soon(lambda: session.run(X))), PLACES[-1:]
        assert _is_right(_soon(lambda: session.run_async(X).result(60))), PLACES[-1:]
        assert _is_right(_soon(bound)), PLACES[-1:]
    return there
