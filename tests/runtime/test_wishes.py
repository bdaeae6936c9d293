"""What a session is requested reaches every engine, its race and what is remembered."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.backends.base import LoadOptions

MakeBundle = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("clock")


def opened(engine: Any) -> LoadOptions:
    options: LoadOptions = engine.open[-1].options
    return options


@pytest.mark.parametrize("spinning", [False, True])
def test_threads_spin_where_that_is_asked_for(
    fakes: Any, make_bundle: MakeBundle, spinning: bool
) -> None:
    engine = fakes.add("engine")
    with edgeinfer.load(make_bundle("engine"), spinning=spinning):
        assert opened(engine).spinning is spinning


def test_spinning_is_measured_by_itself(fakes: Any, make_bundle: MakeBundle) -> None:
    one, two = fakes.add("one", delay_s=0.003), fakes.add("two")
    path = make_bundle(("one", "two"))
    edgeinfer.load(path).close()
    one.delay_s, two.delay_s = 0.0, 0.003
    with edgeinfer.load(path, spinning=True) as session:
        assert session.report().backend == "one"
    with edgeinfer.load(path) as session:
        assert session.report().backend == "two"


@pytest.mark.parametrize(("policy", "divided"), [("latency", False), ("throughput", True)])
def test_for_throughput_threads_are_divided(
    fakes: Any, make_bundle: MakeBundle, policy: Any, divided: bool
) -> None:
    engine = fakes.add("engine")
    with edgeinfer.load(make_bundle("engine"), policy=policy):
        options = opened(engine)
    assert options.callers == (options.threads if divided else 1)
