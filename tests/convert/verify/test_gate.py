"""The gate passes sound artifacts and refuses every kind of unsound one."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from edgeinfer.backends.base import (
    Artifact,
    Bound,
    Capabilities,
    Device,
    DeviceKind,
    Executable,
    LoadOptions,
    Probe,
)
from edgeinfer.convert.verify import Answer, Expected, VariantResult, Vector, verify_variant
from edgeinfer.convert.verify.gate import judge_answers
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.machine import cuda
from edgeinfer.metrics import WIDENED, OutputMetrics, budget_for, compare
from edgeinfer.types import Array, Feeds, TensorSpec

X = TensorSpec("x", "float32", ("N", 4))
Y = TensorSpec("y", "float32", ("N", 4))
Function = Callable[[Array], Array]


class FakeExecutable:
    inputs: tuple[TensorSpec, ...] = (X,)
    outputs: tuple[TensorSpec, ...] = (Y,)

    def __init__(self, function: Function) -> None:
        self._function = function

    def run(self, feeds: Feeds) -> dict[str, Array]:
        return {self.outputs[0].name: self._function(feeds["x"])}

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        raise NotImplementedError

    def close(self) -> None:
        pass


class FakeBackend:
    name: ClassVar[str] = "fake"

    def __init__(self, function: Function, here: bool = True) -> None:
        self._function, self._here = function, here
        self.devices: tuple[Device, ...] = (Device("cpu", "test"),)
        self.threads: list[int | None] = []

    def probe(self) -> Probe:
        devices = self.devices if self._here else ()
        return Probe("fake", "1.2", devices, "" if self._here else "fake is not installed")

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"onnx"}), frozenset({"float32"}))

    def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
        self.threads.append(options.threads)
        return FakeExecutable(self._function)


def rows() -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 4)).astype(np.float32) for n in (1, 2)]


def verify(
    function: Function,
    tmp_path: Path,
    precision: str = "fp32",
    *,
    backend: FakeBackend | None = None,
    edge: bool = False,
    spread: OutputMetrics | None = None,
    outputs: tuple[TensorSpec, ...] = (Y,),
    timed: bool = True,
    size: float = 1.0,
    device: DeviceKind = "cpu",
    form: str = "onnx",
) -> VariantResult:
    (tmp_path / "m.onnx").write_bytes(b"12345")
    inputs = [np.float32(size) * x for x in rows()]
    vectors = [Vector({"x": x}, f"synthetic:{i}", edge and i == 1) for i, x in enumerate(inputs)]
    both = ("onnxruntime", "float64")
    answers = [
        Answer({"y": v.feeds["x"] * 2}, "onnxruntime", both, {"y": spread} if spread else {})
        for v in vectors
    ]
    return verify_variant(
        "cpu-onnx-fp32",
        Artifact(form, tmp_path / "m.onnx", (X,), outputs),
        [backend or FakeBackend(function)],
        vectors,
        Expected(tuple(answers), ()),
        precision=precision,
        ops={"Mul": 1},
        timed=timed,
        device=device,
    )


def double(x: Array) -> Array:
    return x * 2


@pytest.mark.parametrize(("form", "level"), [("onnx", "data"), ("tvm", "native")])
def test_the_level_of_trust_is_the_formats(form: str, level: str, tmp_path: Path) -> None:
    assert verify(double, tmp_path, form=form).level == level


def test_a_sound_artifact_passes(tmp_path: Path) -> None:
    backend = FakeBackend(double)
    result = verify(double, tmp_path, backend=backend)
    assert result.passed
    assert result.verdict == "pass"
    assert result.failure() == ""
    assert result.size_bytes == 5
    assert backend.threads == [None, 1]
    engine = result.engines[0]
    assert set(engine.latency_ms) == {0, 1}
    assert engine.outputs[0].metrics.count == 12
    assert result.accuracy()["y"]["max_abs"] == 0.0


def test_where_times_say_nothing_each_vector_is_run_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def function(x: Array) -> Array:
        seen.append(len(x))
        return x * 2

    backend = FakeBackend(function)
    result = verify(function, tmp_path, backend=backend, timed=False)
    assert result.passed
    assert backend.threads == [None, 1]
    # Both vectors, the first again, and the first on one thread.
    assert seen == [1, 2, 1, 1]
    assert result.engines[0].latency_ms == {}


def test_one_thread_is_judged_where_times_say_nothing(tmp_path: Path) -> None:
    calls = iter([1.0, 1.0, 1.0, 1.1])
    result = verify(lambda x: x * 2 * next(calls), tmp_path, timed=False)
    assert result.failure().endswith("(vector 0, synthetic:0), with one thread")


def test_wrong_numbers_are_refused_with_the_vector(tmp_path: Path) -> None:
    result = verify(lambda x: x * 2.1, tmp_path)
    assert result.verdict == "fail"
    output = result.engines[0].outputs[0]
    assert output.vector == 0
    assert result.failure().startswith("fake: output 'y': largest error")
    assert "of the largest value, allowed 0.002 (vector 0, synthetic:0)" in result.failure()


def test_wrong_in_one_vector_only(tmp_path: Path) -> None:
    result = verify(lambda x: x * 2 if len(x) == 1 else x * 2.1, tmp_path)
    assert result.engines[0].outputs[0].vector == 1


def test_a_coarser_precision_has_a_wider_budget(tmp_path: Path) -> None:
    assert not verify(lambda x: x * 2.005, tmp_path).passed
    assert verify(lambda x: x * 2.005, tmp_path, "fp16").passed


def test_extremes_are_judged_at_fp32_only(tmp_path: Path) -> None:
    def overflow(x: Array) -> Array:
        return x * 2 if len(x) == 1 else np.full_like(x, np.inf)

    assert not verify(overflow, tmp_path, edge=True).passed
    assert verify(overflow, tmp_path, "fp16", edge=True).passed
    assert not verify(overflow, tmp_path, "fp16").passed


def test_state_that_leaks_between_runs_is_refused(tmp_path: Path) -> None:
    calls = itertools.count()
    result = verify(lambda x: x * 2 + np.float32(1e-3) * next(calls), tmp_path, "bf16")
    assert "differs between two runs on the same input" in result.engines[0].problems[0]
    assert not result.passed


def test_only_wrong_with_one_thread(tmp_path: Path) -> None:
    class OneThread(FakeBackend):
        def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
            return FakeExecutable(double if options.threads is None else lambda x: x * 3)

    result = verify(double, tmp_path, backend=OneThread(double))
    assert result.failure().endswith("with one thread")


def test_another_shape_or_type_is_a_breach(tmp_path: Path) -> None:
    assert "shape [4, 1] instead of [1, 4]" in verify(lambda x: (x * 2).T, tmp_path).failure()
    got = verify(lambda x: (x * 2).astype(np.float64), tmp_path)
    assert "element type float64 instead of float32" in got.failure()


def test_another_interface_is_a_problem(tmp_path: Path) -> None:
    ids = TensorSpec("y", "int64", ("N",))
    problems = verify(double, tmp_path, outputs=(ids,)).engines[0].problems
    assert problems == ("output 'y' is float32 instead of int64",)
    other = TensorSpec("z", "float32", ("N",))
    problems = verify(double, tmp_path, outputs=(other,)).engines[0].problems
    assert problems == ("output 'z' is missing", "output 'y' is not in the source model")


def test_an_engine_that_is_not_here_is_not_a_pass(tmp_path: Path) -> None:
    result = verify(double, tmp_path, backend=FakeBackend(double, here=False))
    assert result.verdict == "not run"
    assert not result.passed
    assert result.failure() == "no engine here could run it (fake: fake is not installed)"


@pytest.mark.parametrize("error", [LoadError("broken file"), RunError("kernel failed")])
def test_an_engine_that_fails_is_a_problem_not_a_crash(
    tmp_path: Path, error: LoadError | RunError
) -> None:
    def fail(x: Array) -> Array:
        raise error

    result = verify(fail, tmp_path)
    assert result.verdict == "fail"
    assert result.failure() == f"fake: {error}"


def test_no_device_for_it_is_skipped(tmp_path: Path) -> None:
    class NoDevice(FakeBackend):
        def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
            raise NotAvailableError("no device")

    assert verify(double, tmp_path, backend=NoDevice(double)).verdict == "not run"


def test_what_rounding_alone_moves_gets_room_and_a_note(tmp_path: Path) -> None:
    x = rows()[1]
    spread = compare(x, x * np.float32(1.0003))
    assert not verify(lambda x: x * 2.002, tmp_path).passed
    result = verify(lambda x: x * 2.002, tmp_path, spread=spread)
    assert result.passed
    assert "sensitive to rounding" in result.engines[0].outputs[0].note
    assert not verify(lambda x: x * 2.02, tmp_path, spread=spread).passed


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-30])
def test_an_output_is_judged_however_small_it_is(tmp_path: Path, size: float) -> None:
    lost = verify(np.zeros_like, tmp_path, "static_wi8_ai8", size=size)
    assert not lost.passed
    assert "is 1 of the largest value" in lost.failure()
    kept = verify(double, tmp_path, "static_wi8_ai8", size=size)
    assert kept.passed
    assert kept.engines[0].outputs[0].note == ""


def test_where_zeros_are_expected_errors_have_nothing_to_be_held_against(tmp_path: Path) -> None:
    found = verify(lambda x: x * 0 + np.float32(1e-3), tmp_path, "static_wi8_ai8", size=0.0)
    assert found.passed
    assert "is 0 at most on all vectors" in found.engines[0].outputs[0].note
    assert "errors up to 0.005 are not judged" in found.engines[0].outputs[0].note
    assert not verify(
        lambda x: x * 0 + np.float32(0.1), tmp_path, "static_wi8_ai8", size=0.0
    ).passed


def test_an_engine_that_hands_out_its_own_buffer_is_measured_on_what_it_gave(
    tmp_path: Path,
) -> None:
    buffer = np.zeros((2, 4), np.float32)

    def shared(x: Array) -> Array:
        buffer[: len(x)] = x * 2
        return buffer[: len(x)]

    assert verify(shared, tmp_path).passed


def test_json(tmp_path: Path) -> None:
    for function in (double, lambda x: x * np.inf):
        data = json.loads(json.dumps(verify(function, tmp_path).to_json(), allow_nan=False))
        assert data["id"] == "cpu-onnx-fp32"
        assert data["engines"][0]["outputs"][0]["name"] == "y"
    quantized = verify(double, tmp_path, "static_wi8_ai8").to_json()
    json.dumps(quantized, allow_nan=False)


@pytest.mark.parametrize("function", [lambda x: -x, lambda x: x * 1.9])
def test_a_budget_that_would_refuse_nothing_is_none(function: Function, tmp_path: Path) -> None:
    """Thirty times of what two evaluations part by would be any answer: nothing can be judged."""
    spread = OutputMetrics(count=4, max_abs=0.97, max_rel=0.97, sqnr_db=25.0)
    result = verify(function, tmp_path, spread=spread)
    assert result.verdict == "fail"
    assert "nothing of it can be judged: give --data" in result.failure()
    assert verify(double, tmp_path, spread=spread).verdict == "pass"


def test_vectors_that_the_artifact_refuses_are_not_judged(tmp_path: Path) -> None:
    def lose_nan(x: Array) -> Array:
        finite: Array = np.nan_to_num(x * 2)
        return finite

    (tmp_path / "m.onnx").write_bytes(b"12345")
    rows_of = {"good": np.ones((1, 4), np.float32), "bad": np.full((1, 4), np.nan, np.float32)}

    def judge(*names: str) -> VariantResult:
        vectors = [Vector({"x": rows_of[name]}, "user", False) for name in names]
        both = ("onnxruntime", "float64")
        answers = [Answer({"y": v.feeds["x"] * 2}, "onnxruntime", both, {}) for v in vectors]
        return verify_variant(
            "openvino-openvino_ir-fp32",
            Artifact("onnx", tmp_path / "m.onnx", (X,), (Y,)),
            [FakeBackend(lose_nan)],
            vectors,
            Expected(tuple(answers), ()),
            precision="fp32",
            constraints={"inputs": "not_nan"},
        )

    mixed = judge("good", "bad")
    assert mixed.passed
    assert mixed.notes == ("1 of the vectors hold values that it refuses",)
    assert mixed.engines[0].outputs[0].metrics.count == 4
    none_left = judge("bad")
    assert not none_left.passed
    assert "every vector holds values for which" in none_left.failure()


def test_a_few_vectors_are_held_against_what_the_output_usually_is() -> None:
    small, large = np.full((1, 4), 1e-3, np.float32), np.ones((1, 4), np.float32)
    answers = [Answer({"y": a}, "onnxruntime", ("onnxruntime",), {}) for a in (small, large)]
    vectors = [Vector({"x": small}, "synthetic:0")]
    expected, budget = Expected((answers[0],), ()), budget_for("static_wi8_ai8")
    given = [{"y": small * 3}]
    (alone,) = judge_answers(given, vectors, expected, budget)
    assert alone.breaches
    assert alone.floor == pytest.approx(5e-6)
    (among,) = judge_answers(given, vectors, expected, budget, usual=answers)
    assert not among.breaches
    assert among.floor == 5e-3


def test_an_evaluator_is_asked_as_often_and_not_timed(tmp_path: Path) -> None:
    class Evaluator(FakeBackend):
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities(), keeps_time=False)

    runs: list[int] = []

    def function(x: Array) -> Array:
        runs.append(len(x))
        return x * 2

    result = verify(function, tmp_path, backend=Evaluator(function))
    assert result.passed
    assert result.engines[0].latency_ms == {}
    # Both vectors, both again in turn, and both on one thread.
    assert runs == [1, 2, 2, 1, 1, 2]


class TestDevices:
    """What ran is the pair of engine and unit; another unit stands in and never passes for it."""

    def test_another_unit_is_no_pass(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda, "cuda_devices", lambda: ())
        found = verify(double, tmp_path, device="gpu")
        absent, instead = found.engines
        assert (absent.device, absent.verdict) == ("gpu", "not run")
        assert absent.skipped == "no NVIDIA device here"
        assert (instead.device, instead.stands_in, instead.verdict) == ("cpu", True, "pass")
        assert instead.latency_ms == {}, "the CPU's time is not the device's"
        assert found.verdict == "not run"
        assert found.passed, "its numbers are right, so it may be written"
        assert found.unverified == (
            "not run: fake (gpu): no NVIDIA device here; its numbers are right on fake (cpu)"
        )

    def test_wrong_numbers_fail_on_any_unit(self, tmp_path: Path) -> None:
        found = verify(lambda x: x * 3, tmp_path, device="gpu")
        assert (found.verdict, found.passed) == ("fail", False)

    def test_an_engine_with_the_unit_runs_on_it(self, tmp_path: Path) -> None:
        backend = FakeBackend(double)
        backend.devices = (Device("gpu", "test"), Device("cpu", "test"))
        found = verify(double, tmp_path, device="gpu", backend=backend)
        assert [(e.device, e.stands_in) for e in found.engines] == [("gpu", False)]
        assert (found.verdict, found.unverified) == ("pass", "")


def test_a_widened_budget_is_a_verdict_of_its_own(tmp_path: Path) -> None:
    x = rows()[0]
    spread = compare(x, x * np.float32(1.0003))
    found = verify(lambda x: x * 2.002, tmp_path, spread=spread)
    assert found.passed
    assert found.verdict == WIDENED
    (output,) = found.engines[0].outputs
    assert "by the plain budget: signal to error" in output.note
    assert output.hardest in (0, 1)
    assert found.hardest == {output.hardest}
    assert verify(double, tmp_path, spread=spread).verdict == "pass"
