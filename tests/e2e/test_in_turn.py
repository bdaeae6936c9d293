"""One session, inputs of changing sizes in turn, zero among them: nothing stays from run to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.errors import RunError
from edgeinfer.machine.host import host
from edgeinfer.types import Array
from tests.convert.lower.tflite.together import joined

TARGETS = {
    **{"onnxruntime": "cpu", "openvino": "cpu", "litert": "rpi4", "coreml-reference": "ios"},
    "tvm": "tvm-x86-64-v3",
}
"""By backend, whose artifact it runs."""

LOOP = """<ir_version: 10, opset_import: ["": 20]>
g (float[4] s, float[3] v0) => (float[3] vf, float[n,3] rows)
<bool c = {1}, float limit = {0}> {
    below = Less(s, limit)
    ones = Cast<to = 7>(below)
    turns = ReduceSum<keepdims = 0>(ones)
    vf, rows = Loop(turns, c, v0) <body = b (int64 i, bool ci, float[3] v)
        => (bool co, float[3] vo, float[3] so) <float two = {2}> {
        vo = Mul(v, two)
        co = Identity(ci)
        so = Identity(vo)
    }>
}"""

WHILE = """<ir_version: 10, opset_import: ["": 20]>
g (float[2] x) => (float[2] last, float[n,2] rows)
<float limit = {8}, float two = {2}, int64 most = {50}> {
    sum = ReduceSum<keepdims = 0>(x)
    go = Less(sum, limit)
    last, rows = Loop(most, go, x) <body = b (int64 i, bool ci, float[2] v)
        => (bool co, float[2] vo, float[2] so) {
        vo = Mul(v, two)
        so = Add(vo, vo)
        total = ReduceSum<keepdims = 0>(vo)
        co = Less(total, limit)
    }>
}"""

FOUND = """<ir_version: 10, opset_import: ["": 20]>
g (float[6] x) => (int64[1,k] found)
<float zero = {0}> {
    above = Greater(x, zero)
    found = NonZero(above)
}"""

OPEN = """<ir_version: 10, opset_import: ["": 20]>
g (float[n,3] x) => (float[n,3] y, float[m,3] twice)
{
    z = Relu(x)
    y = Softmax<axis = 1>(z)
    twice = Concat<axis = 0>(y, x)
}"""


def loop(s: Array, v0: Array) -> tuple[Array, ...]:
    turns = int((s < 0).sum())
    rows = [v0 * 2.0**k for k in range(1, turns + 1)]
    return v0 * 2.0**turns, np.array(rows, np.float32).reshape(turns, 3)


def while_(x: Array) -> tuple[Array, ...]:
    rows: list[Array] = []
    while x.sum() < 8:
        x = x * 2
        rows.append(x + x)
    return x, np.array(rows, np.float32).reshape(len(rows), 2)


def found(x: Array) -> tuple[Array, ...]:
    return (np.array(np.nonzero(x > 0)),)


def open_(x: Array) -> tuple[Array, ...]:
    e = np.exp(np.maximum(x, 0) - np.maximum(x, 0).max(axis=1, keepdims=True, initial=0))
    y = e / e.sum(axis=1, keepdims=True)
    return y, np.concatenate([y, x])


def _turns(*counts: int) -> list[tuple[Array, ...]]:
    rng = np.random.default_rng(0)
    made = [(np.arange(4) < n, rng.standard_normal(3).astype(np.float32)) for n in counts]
    return [(np.where(below, -1, 1).astype(np.float32), v0) for below, v0 in made]


def _rows(*counts: int) -> list[tuple[Array, ...]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n, 3)).astype(np.float32),) for n in counts]


def _found(*counts: int) -> list[tuple[Array, ...]]:
    return [(np.where(np.arange(6) < n, 1, -1).astype(np.float32),) for n in counts]


def _sums(*firsts: float) -> list[tuple[Array, ...]]:
    return [(np.array([first, 0.5], np.float32),) for first in firsts]


Right = Callable[..., tuple[Array, ...]]
Case = tuple[str, Right, Sequence[tuple[Array, ...]]]

CASES: dict[str, Case] = {
    "loop": (LOOP, loop, _turns(0, 4, 0, 2, 0, 0, 3, 1, 0, 4)),
    "while": (WHILE, while_, _sums(9, 1, 9, 3, 20, 0.5, 9, 9, 1)),
    "found": (FOUND, found, _found(0, 6, 0, 2, 0, 0, 3, 1, 6)),
    "open": (OPEN, open_, _rows(3, 0, 5, 1, 0, 0, 4, 3)),
}


def _missing(backend: str) -> str:
    """Say why nothing of this backend runs here; empty where it does."""
    if backend == "tvm" and not host().is_kind(profiles.load(TARGETS[backend])):
        return "code for this processor is another target's"
    probe = registry.get(backend).probe()
    return "" if probe.available else probe.reason


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give all cases as one model, for all backends: it is read and understood once."""
    folder = tmp_path_factory.mktemp("turns")
    models = [onnx.parser.parse_model(text) for text, _, _ in CASES.values()]
    onnx.save(joined(models), folder / "model.onnx")
    targets = dict.fromkeys(target for backend, target in TARGETS.items() if not _missing(backend))
    made = edgeinfer.export(folder / "model.onnx", folder / "model.edge", targets=list(targets))
    return made.path


@pytest.mark.parametrize("backend", TARGETS)
def test_each_answer_is_the_one_of_its_own_input(backend: str, bundle: Path) -> None:
    if reason := _missing(backend):
        pytest.skip(reason)
    with edgeinfer.load(bundle, backend=backend, measure=False) as session:
        for number in range(2 * max(len(runs) for _, _, runs in CASES.values())):
            given = [runs[number % len(runs)] for _, _, runs in CASES.values()]
            names = iter(spec.name for spec in session.inputs)
            feeds = {next(names): array for inputs in given for array in inputs}
            if backend == "coreml-reference" and not all(array.size for array in feeds.values()):
                # Core ML's open sizes begin with one.
                with pytest.raises(RunError, match="is outside of"):
                    session.run(feeds)
                continue
            answers = iter(session.run(feeds).items())
            for (_, right, _), inputs in zip(CASES.values(), given, strict=True):
                for y in right(*inputs):
                    name, actual = next(answers)
                    assert actual.shape == y.shape, (number, name)
                    np.testing.assert_allclose(actual, y, rtol=1e-5, atol=1e-6, err_msg=name)
            assert not list(answers)
