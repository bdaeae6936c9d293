"""Where ONNX Runtime says its operators run, and what its profile says they cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.backends.onnxruntime.operators import (
    RECORD_OPTION,
    is_for_fallback,
    placement,
    read,
)
from edgeinfer.backends.operators import undisturbed

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
Write = Callable[[str], Artifact]


def event(name: str, kind: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    told = {"op_name": kind, "provider": CPU, "node_index": name, **args}
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "ts": ts,
        "dur": dur,
        "tid": 1,
        "args": told,
    }


def run(ts: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 100, "args": {}}


def test_runs_that_warm_up_are_left_out() -> None:
    events = [run(0), event("a", "Conv", 1, 90), run(100), event("a", "Conv", 101, 10)]
    (op,), note = read(events, warm=1)
    assert (op.name, op.kind, op.unit, op.us) == ("a", "Conv", "CPU", 10)
    assert note == ""


def test_the_same_runs_count_for_all_and_one_that_skips_an_operator_is_zero_there() -> None:
    events: list[dict[str, Any]] = []
    for start, us in ((0, 10), (100, 12), (200, 99)):
        events += [run(start), event("a", "Conv", start + 1, us)]
    events.append(event("b", "Mul", 290, 6))
    ops, _ = read(events, warm=0, kept=[0, 1])
    assert {op.name: op.us for op in ops} == {"a": 11, "b": 0}
    ops, _ = read(events, warm=0, kept=[1, 2])
    assert {op.name: op.us for op in ops} == {"a": 55.5, "b": 3}


def test_the_quicker_half_is_undisturbed() -> None:
    assert undisturbed([5, 1, 9, 2]) == [1, 3]
    assert undisturbed([5, 1, 9]) == [0, 1]
    assert undisturbed([5]) == [0]


def test_what_runs_inside_another_is_not_counted_twice() -> None:
    events = [
        run(0),
        event("if", "If", 10, 50),
        event("loop", "Loop", 15, 30),
        event("mul", "Mul", 20, 10),
        event("add", "Add", 70, 5),
    ]
    ops, _ = read(events, warm=0)
    assert {op.name: op.us for op in ops} == {"if": 20, "loop": 20, "mul": 10, "add": 5}
    assert sum(op.us or 0 for op in ops) == 55


def test_equal_names_in_one_graph_stay_apart() -> None:
    events = [
        run(0),
        event("x", "Conv", 10, 5, node_index="1"),
        event("x", "Conv", 20, 7, node_index="2"),
    ]
    ops, _ = read(events, warm=0)
    assert [op.us for op in ops] == [5, 7]


def test_roles_precision_and_nodes() -> None:
    shape: dict[str, Any] = {"output_type_shape": [{"float": [1]}]}
    events = [
        run(0),
        event("c_nchwc", "Conv", 1, 1, **shape),
        event("r", "ReorderInput", 2, 1, **shape),
        event("t", "Transpose", 3, 1, **shape),
        event("m", "MemcpyToHost", 4, 1, **shape),
        event("q", "Cast", 5, 1, output_type_shape=[{"float16": [1]}]),
    ]
    ops, _ = read(events, warm=0)
    assert [op.role for op in ops] == ["compute", "reorder", "transpose", "copy", "convert"]
    assert [op.precision for op in ops] == ["float32"] * 4 + ["float16"]
    assert [op.nodes for op in ops] == [("c",), (), ("t",), (), ("q",)]


def test_kernels_on_a_gpu_count_instead_of_starting_them() -> None:
    kernel = {"cat": "Kernel", "ts": 30, "dur": 40, "args": {"parent_name": "a_kernel_time"}}
    launch = event("a", "Conv", 10, 3, provider=CUDA)
    (op,), note = read([run(0), launch, kernel], warm=0)
    assert (op.unit, op.us, note) == ("CUDA", 40, "")
    (op,), note = read([run(0), launch], warm=0)
    assert op.us == 3
    assert "times to start the work" in note


def test_profile_of_a_real_model_adds_up_and_leaves_no_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write(
        "(float[64, 512] x) => (float[512, 64] z) <float[512, 512] w = {0}> "
        "{ y = MatMul (x, w) z = Transpose <perm = [1, 0]> (y) }".replace(
            "= {0}", "= {" + ", ".join(["0.5"] * 512 * 512) + "}"
        )
    )
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    x = np.ones((64, 512), np.float32)
    profile = OnnxRuntimeBackend().profile(artifact, LoadOptions(threads=1), {"x": x}, runs=10)
    kinds = {op.kind: op for op in profile.operators}
    assert {"MatMul", "Transpose"} <= kinds.keys() or "FusedMatMul" in kinds
    assert profile.tool == "ONNX Runtime's profiler"
    assert profile.runs == 10
    assert all(op.us is not None for op in profile.operators)
    assert 0.5 < profile.covered <= 1.05
    assert [*place.iterdir()] == []


def test_operators_off_the_device_are_named(write: Write) -> None:
    engine = import_onnxruntime()
    settings = engine.SessionOptions()
    settings.add_session_config_entry(RECORD_OPTION, "1")
    path = str(write("(float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }").path)
    session = engine.InferenceSession(path, settings, providers=[CPU])
    found = placement(session, (CUDA,))
    assert found is not None
    assert (found.unit, found.ops, len(found.elsewhere)) == ("CUDA", 2, 2)
    assert {e.kind for e in found.elsewhere} == {"Neg", "Abs"}
    assert {e.unit for e in found.elsewhere} == {"CPU"}
    assert "2 of 2 operators do not run on CUDA" in str(found)
    assert "the CUDA provider has not taken it" in str(found)
    here = placement(session, (CPU,))
    assert here is not None
    assert str(here) == "all 2 operators run on CPU, by ONNX Runtime's assignment"


def test_session_without_the_record_tells_nothing(write: Write) -> None:
    engine = import_onnxruntime()
    path = str(write("(float[2] x) => (float[2] y) { y = Neg (x) }").path)
    assert placement(engine.InferenceSession(path, providers=[CPU]), (CPU,)) is None
    assert placement(object(), (CPU,)) is None


def test_refusal_of_the_engine_is_known_by_its_words(write: Write) -> None:
    """The provider cannot be created here, so every operator would run on the CPU."""
    engine = import_onnxruntime()
    settings = engine.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    path = str(write("(float[2] x) => (float[2] y) { y = Neg (x) }").path)
    with (
        pytest.raises(Exception, match="fallback") as caught,
        pytest.warns(UserWarning, match="provider"),
    ):
        engine.InferenceSession(path, settings, providers=[CUDA], enable_fallback=0)
    assert is_for_fallback(caught.value)
    assert not is_for_fallback(ValueError("another"))
