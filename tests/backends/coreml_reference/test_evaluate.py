"""Programs as a whole: rounding, control flow, lists, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.coreml_reference import evaluate
from edgeinfer.backends.coreml_reference.evaluate import ProgramEvaluator
from edgeinfer.backends.coreml_reference.program import (
    Block,
    Constant,
    Operation,
    ProgramFunction,
    StateType,
    TensorType,
    Variable,
)
from edgeinfer.errors import LoadError, RunError
from edgeinfer.types import Array

F16 = "float16"


def tensor(name: str, dtype: str = "float32", shape: tuple[int | None, ...] = (3,)) -> Variable:
    return Variable(name, TensorType(dtype, shape))


def value(array: Any, dtype: str = "float32") -> Constant:
    return Constant(np.asarray(array, dtype), dtype)


def operation(
    kind: str, outputs: list[Variable], *blocks: Block, **inputs: str | Constant | list[Any]
) -> Operation:
    bound = {k: tuple(v) if isinstance(v, list) else (v,) for k, v in inputs.items()}
    name = outputs[0].name if outputs else kind
    return Operation(kind, name, bound, tuple(outputs), blocks)


def function(inputs: list[Variable], operations: list[Operation], *outputs: str) -> ProgramFunction:
    return ProgramFunction("main", tuple(inputs), Block((), tuple(operations), outputs), "CoreML7")


def run(made: ProgramFunction, **feeds: Array) -> dict[str, Any]:
    return ProgramEvaluator(made).run(feeds)


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "real_div", "pow", "maximum"])
def test_each_result_is_rounded_as_numpy_rounds_float16(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.standard_normal(20000) * np.exp(rng.uniform(-20, 11, 20000)))
    y = np.abs(rng.standard_normal(20000) * np.exp(rng.uniform(-20, 3, 20000)))
    half = {"x": x.astype(np.float16), "y": y.astype(np.float16)}
    functions = {"real_div": np.divide, "sub": np.subtract, "mul": np.multiply, "pow": np.power}
    compute = functions.get(kind, getattr(np, kind, None))
    assert compute is not None
    ins = [tensor("x", F16, (20000,)), tensor("y", F16, (20000,))]
    made = function(ins, [operation(kind, [tensor("z", F16, (20000,))], x="x", y="y")], "z")
    with np.errstate(all="ignore"):
        wide = compute(half["x"].astype(np.float32), half["y"].astype(np.float32))
        expected = wide.astype(np.float16)
    found = run(made, **half)["z"]
    assert found.dtype == np.float16
    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))
    assert np.isfinite(found).any()


def test_rounding_happens_after_every_operation() -> None:
    """2048 + 1 + 1 is 2048 in float16, one operation after the other."""
    made = function(
        [tensor("x", F16, ())],
        [
            operation("add", [tensor("a", F16, ())], x="x", y=value(1, F16)),
            operation("add", [tensor("b", F16, ())], x="a", y=value(1, F16)),
        ],
        "b",
    )
    assert run(made, x=np.array(2048, np.float16))["b"] == 2048
    smooth = ProgramEvaluator(made, rounding=False).run({"x": np.array(2048, np.float16)})
    assert smooth["b"] == 2050


def test_float16_overflows_to_infinity_and_keeps_small_numbers() -> None:
    made = function(
        [tensor("x", F16, (2,))],
        [operation("mul", [tensor("y", F16, (2,))], x="x", y=value(2, F16))],
        "y",
    )
    found = run(made, x=np.array([60000, 3e-8], np.float16))["y"]
    assert np.isinf(found[0])
    assert found[1] == np.float16(3e-8) * 2 > 0


def test_integers_wrap_around() -> None:
    made = function(
        [tensor("x", "int32", (2,))],
        [operation("mul", [tensor("y", "int32", (2,))], x="x", y=value(2, "int32"))],
        "y",
    )
    assert run(made, x=np.array([2**30, -5], np.int32))["y"].tolist() == [-(2**31), -10]


@pytest.mark.parametrize(("sign", "expected"), [(1, 11), (-1, -20)])
def test_cond_takes_one_branch(sign: int, expected: int) -> None:
    plus = Block((), (operation("add", [tensor("p")], x="x", y=value(10)),), ("p",))
    times = Block((), (operation("mul", [tensor("t")], x="x", y=value(20)),), ("t",))
    test = operation("greater", [tensor("c", "bool", ())], x="s", y=value(0))
    made = function(
        [tensor("x"), tensor("s", shape=())],
        [test, operation("cond", [tensor("y")], plus, times, pred="c")],
        "y",
    )
    x = np.full(3, sign, np.float32)
    assert run(made, x=x, s=np.array(sign, np.float32))["y"].tolist() == [expected] * 3


def _doubling(limit: float) -> ProgramFunction:
    """Double ``x`` until its sum is above a limit, and count."""
    loop = (tensor("v"), tensor("n", "int32", ()))
    total = operation(
        "reduce_sum", [tensor("s", shape=())], x="v", axes=value([0], "int32"),
        keep_dims=value(False, "bool"),
    )  # fmt: skip
    more = operation("less_equal", [tensor("m", "bool", ())], x="s", y=value(limit))
    body = (
        operation("mul", [tensor("v2")], x="v", y=value(2)),
        operation("add", [tensor("n2", "int32", ())], x="n", y=value(1, "int32")),
    )
    outputs = [tensor("y"), tensor("count", "int32", ())]
    blocks = Block(loop, (total, more), ("m",)), Block(loop, body, ("v2", "n2"))
    repeat = operation("while_loop", outputs, *blocks, loop_vars=["x", value(0, "int32")])
    return function([tensor("x")], [repeat], "y", "count")


def test_while_loop_runs_until_its_test_fails() -> None:
    found = run(_doubling(100), x=np.ones(3, np.float32))
    assert found["y"].tolist() == [64, 64, 64]
    assert found["count"] == 6
    assert run(_doubling(1), x=np.ones(3, np.float32))["count"] == 0


@pytest.mark.parametrize("most", [22, 400])
def test_loops_of_a_run_compute_so_many_operations(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of zeros no sum is ever large enough: the test of the loop always holds."""
    monkeypatch.setattr(evaluate, "_MOST_STEPS", most)
    endless = np.zeros(3, np.float32)
    with pytest.raises(RunError, match=f"the loops of a run compute more than {most} operations"):
        run(_doubling(100), x=endless)
    # Each run has as many as any other.
    made = ProgramEvaluator(_doubling(4))
    if most > 22:
        for _ in range(100):
            made.run({"x": np.ones(3, np.float32)})


def test_runs_in_several_threads_do_not_meet() -> None:
    evaluator = ProgramEvaluator(_doubling(1e6))
    starts = [np.full(3, n, np.float32) for n in range(1, 40)]
    alone = [evaluator.run({"x": x})["count"] for x in starts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda x: evaluator.run({"x": x})["count"], starts))
    assert together == alone
    assert len(set(map(int, alone))) > 3


def test_state_is_read_and_written() -> None:
    kept = Variable("k", StateType(TensorType(F16, (2,))))
    made = function(
        [tensor("x", F16, (2,)), kept],
        [
            operation("read_state", [tensor("old", F16, (2,))], input="k"),
            operation("add", [tensor("new", F16, (2,))], x="old", y="x"),
            operation("write_state", [], input="k", data="new"),
        ],
        "old",
    )
    evaluator = ProgramEvaluator(made)
    state = evaluator.make_state()
    x = np.array([1, 0.1], np.float16)
    seen = [evaluator.run({"x": x}, state)["old"] for _ in range(3)]
    tenth = np.float16(0.1)
    assert [s[0] for s in seen] == [0, 1, 2]
    assert [s[1] for s in seen] == [0, tenth, np.float16(tenth + tenth)]
    assert evaluator.run({"x": x})["old"].tolist() == [0, 0]


def test_inputs_are_left_alone_and_outputs_are_new() -> None:
    made = function([tensor("x")], [operation("identity", [tensor("y")], x="x")], "y", "x")
    x = np.ones(3, np.float32)
    found = run(made, x=x)
    found["y"][:] = 5
    found["x"][:] = 7
    assert x.tolist() == [1, 1, 1]


def test_everything_unknown_is_named_at_once() -> None:
    inner = Block((), (operation("frobnicate", [tensor("i")], x="x"),), ("i",))
    made = function(
        [tensor("x"), tensor("c", "bool", ())],
        [
            operation("teleport", [tensor("a")], x="x"),
            operation("teleport", [tensor("b")], x="x"),
            operation("relu", [tensor("d")], x="x", slope=value(1)),
            operation("cond", [tensor("e")], inner, inner, pred="c"),
            operation("conv", [tensor("f")], x="x"),
        ],
        "a",
    )
    with pytest.raises(LoadError) as caught:
        ProgramEvaluator(made)
    assert str(caught.value) == (
        "function 'main' of the program has the operation 'teleport', which is not known, "
        "inputs ['slope'] of 'relu', which are not known, "
        "the operation 'frobnicate', which is not known, a 'conv' without ['weight']"
    )


def test_a_result_of_another_shape_than_declared_is_an_error() -> None:
    made = function([tensor("x")], [operation("relu", [tensor("y", shape=(4,))], x="x")], "y")
    with pytest.raises(RunError, match=r"operation 'relu' \(y\): .*\(3,\), .* declares \(4,\)"):
        run(made, x=np.ones(3, np.float32))


def test_what_fails_inside_names_the_operation() -> None:
    made = function(
        [tensor("x"), tensor("i", "int32", (1,))],
        [operation("gather", [tensor("y", shape=(1,))], x="x", indices="i")],
        "y",
    )
    assert run(made, x=np.arange(3, dtype=np.float32), i=np.array([-1], np.int32))["y"] == [2]
    with pytest.raises(RunError, match=r"operation 'gather' \(y\): IndexError: indices 3 to 3"):
        run(made, x=np.ones(3, np.float32), i=np.array([3], np.int32))


def test_inputs_must_be_there_and_fit() -> None:
    made = function([tensor("x")], [operation("relu", [tensor("y")], x="x")], "y")
    with pytest.raises(RunError, match=r"input 'x' is missing, received \['z'\]"):
        run(made, z=np.ones(3, np.float32))
    with pytest.raises(RunError, match=r"input 'x': expected shape \(3,\), received \(2,\)"):
        run(made, x=np.ones(2, np.float32))


def test_a_hook_sees_every_result() -> None:
    made = function(
        [tensor("x")],
        [
            operation("relu", [tensor("a")], x="x"),
            operation("square", [tensor("b")], x="a"),
        ],
        "b",
    )
    seen: dict[str, list[float]] = {}

    def hook(op: Operation, results: tuple[Any, ...]) -> None:
        seen[op.name] = results[0].tolist()

    ProgramEvaluator(made).run({"x": np.array([-1, 2, 3], np.float32)}, None, hook)
    assert seen == {"a": [0, 2, 3], "b": [0, 4, 9]}


def test_values_nobody_reads_again_are_freed() -> None:
    """A chain of 200 results of 8 MB would be 1.6 GB."""
    import tracemalloc

    size = 1 << 21
    chain = [
        operation("add", [tensor(f"v{n + 1}", shape=(size,))], x=f"v{n}", y=value(1))
        for n in range(200)
    ]
    made = function([tensor("v0", shape=(size,))], chain, "v200")
    x = np.zeros(size, np.float32)
    tracemalloc.start()
    found = run(made, v0=x)["v200"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == 200
    assert peak < 6 * x.nbytes
