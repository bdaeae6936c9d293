"""An executable that is not trusted with what it keeps."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, Bound, Capabilities, Executable, LoadOptions, Probe
from edgeinfer.backends.process import guard
from edgeinfer.errors import ClosedError, InputError, LoadError, RunError
from edgeinfer.types import Array, Feeds, TensorSpec
from tests.forked import in_fork

INPUTS = (TensorSpec("x", "float32", ("n", 2)),)
OUTPUTS = (TensorSpec("y", "float32", ("n", 2)),)


class Keeper:
    """Gives what it was first requested once a run failed, as an engine was seen to do."""

    def __init__(self, owner: "KeeperBackend") -> None:
        self.inputs: tuple[TensorSpec, ...] = INPUTS
        self.outputs: tuple[TensorSpec, ...] = OUTPUTS
        self.owner = owner
        self.kept: Array | None = None
        self.closed = False

    def run(self, feeds: Feeds) -> dict[str, Array]:
        if self.closed:
            raise ClosedError("keeper: closed")
        x = feeds["x"]
        if x.size and x[0, 0] == -1:
            raise InputError("x", "no -1", "-1")
        if x.size and x[0, 0] < 0:
            self.kept = x * 2
            raise self.owner.error
        return {"y": (x * 2 if self.kept is None else self.kept) if self.owner.right else x[:1]}

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        class Buffers:
            def __init__(self, keeper: Keeper) -> None:
                self.keeper, self.inputs, self.outputs = keeper, inputs, outputs

            def __call__(self) -> None:
                self.outputs["y"][...] = self.keeper.run(self.inputs)["y"]

        return Buffers(self)

    def close(self) -> None:
        self.closed = True


class KeeperBackend:
    name: ClassVar[str] = "keeper"

    def __init__(self) -> None:
        self.opened: list[Keeper] = []
        self.error: BaseException = RunError("keeper: out of memory")
        self.fails = ""
        self.right = True

    def probe(self) -> Probe:
        return Probe(self.name, "1")

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"f"}), frozenset({"float32"}), forks=True)

    def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
        if self.fails:
            raise LoadError(self.fails)
        assert all(keeper.closed for keeper in self.opened), "memory may be short"
        self.opened.append(Keeper(self))
        return self.opened[-1]


def opened(backend: KeeperBackend, examples: Iterable[tuple[Feeds, Feeds]] = ()) -> guard.Guarded:
    artifact = Artifact("f", Path("model"), INPUTS, OUTPUTS)
    loaded = guard.load(backend, artifact, LoadOptions(), examples=lambda: examples)
    assert isinstance(loaded, guard.Guarded)
    return loaded


def x(value: float, rows: int = 1) -> dict[str, Array]:
    return {"x": np.full((rows, 2), value, np.float32)}


@pytest.mark.parametrize(
    "error", [RunError("no"), MemoryError(), ValueError("odd"), KeyboardInterrupt()]
)
def test_a_failed_run_has_the_next_one_open_the_artifact_anew(error: BaseException) -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    backend.error = error
    with pytest.raises((RunError, KeyboardInterrupt)):
        loaded.run(x(-3, rows=4))
    for value in (1, 2):
        np.testing.assert_array_equal(loaded.run(x(value))["y"], x(2 * value)["x"])
    assert len(backend.opened) == 2


def test_an_input_that_the_engine_never_saw_changes_nothing() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    with pytest.raises(InputError):
        loaded.run(x(-1))
    loaded.run(x(1))
    assert len(backend.opened) == 1


def test_bound_buffers_are_bound_again() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    feeds, results = x(-3), {"y": np.zeros((1, 2), np.float32)}
    bound, other = loaded.bind(feeds, results), loaded.bind(x(5), {"y": results["y"].copy()})
    with pytest.raises(RunError):
        bound()
    feeds["x"][...] = 1
    bound()
    other()
    np.testing.assert_array_equal(results["y"], [[2, 2]])
    np.testing.assert_array_equal(other.outputs["y"], [[10, 10]])
    assert len(backend.opened) == 2


def test_one_that_cannot_be_opened_now_is_tried_again_by_the_next_run() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    with pytest.raises(RunError):
        loaded.run(x(-3))
    backend.fails = "keeper: no memory"
    with pytest.raises(RunError, match="after a run that failed: keeper: no memory; the next run"):
        loaded.run(x(1))
    backend.fails = ""
    np.testing.assert_array_equal(loaded.run(x(1))["y"], [[2, 2]])


def test_a_closed_one_stays_closed() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    with pytest.raises(RunError):
        loaded.run(x(-3))
    loaded.close()
    with pytest.raises(ClosedError):
        loaded.run(x(1))


def test_an_output_has_the_size_that_its_input_gives_it() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    loaded.run(x(1, rows=3))
    loaded.run(x(1, rows=1))
    backend.right = False
    with pytest.raises(RunError, match=r"output 'y': expected n = 3 in axis 0, as in input 'x'"):
        loaded.run(x(1, rows=3))
    backend.right = True
    loaded.run(x(1, rows=3))
    assert len(backend.opened) == 2


def test_a_name_that_right_answers_contradict_holds_nobody_to_it() -> None:
    backend = KeeperBackend()
    backend.right = False
    loaded = opened(backend, [(x(1, rows=3), {"y": np.zeros((1, 2), np.float32)})])
    assert loaded.run(x(1, rows=3))["y"].shape == (1, 2)


def test_a_forked_process_opens_the_artifact_for_itself() -> None:
    backend = KeeperBackend()
    loaded = opened(backend)
    backend.opened[0].kept = x(9)["x"]
    results = {"y": np.zeros((1, 2), np.float32)}
    bound = loaded.bind(x(4), results)
    # The fake keeps a list of what was opened, the parent's among it.
    backend.opened[0].close = lambda: None  # type: ignore[method-assign]

    def run() -> tuple[float, float, bool]:
        backend.opened.clear()
        bound()
        y = loaded.run(x(1))["y"]
        loaded.close()
        return float(y[0, 0]), float(results["y"][0, 0]), backend.opened[0].closed

    assert in_fork(run) == (2.0, 8.0, True)
    assert loaded.run(x(1))["y"][0, 0] == 9
    assert not backend.opened[0].closed
