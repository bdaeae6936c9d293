"""Kernels from records: which are used, and that their numbers are right."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from edgeinfer.backends.base import LoadOptions
from edgeinfer.backends.testing.cases import graph
from edgeinfer.backends.tvm.backend import TvmBackend
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.lower.tvm.target import TvmTarget, workloads
from edgeinfer.convert.lower.tvm.tuned import Tuning, for_machine
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import UsageError
from edgeinfer.kernels.tuning import processor, workload
from edgeinfer.kernels.tuning import records as tuning_records
from edgeinfer.kernels.tuning.database import FINAL, TRIED, Database, Record
from edgeinfer.kernels.tuning.task import Task
from tests.convert.lower.tvm.run import MACHINE, profile

RNG = np.random.default_rng(0)


def _weights(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


NETS = {
    "matmul": graph(
        "(float[4,24] x) => (float[4,10] y) { a = MatMul(x, w) c = Add(a, b) y = Relu(c) }",
        w=_weights(24, 10),
        b=_weights(10),
    ),
    "batched": graph(
        "(float[2,3,8] x, float[2,8,5] z) => (float[2,3,5] y) { a = MatMul(x, z) y = Tanh(a) }"
    ),
    "conv": graph(
        "(float[1,4,9,9] x) => (float[1,6,5,5] y) {"
        " c = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b) s = Sigmoid(c) y = Mul(c, s) }",
        w=_weights(6, 4, 3, 3),
        b=_weights(6),
    ),
    "depthwise": graph(
        "(float[1,6,8,8] x) => (float[1,6,8,8] y) { y = Conv<group=6, pads=[0,1,2,1]>(x, w) }",
        w=_weights(6, 1, 3, 3),
    ),
    "conv over time": graph(
        "(float[1,4,16] x) => (float[1,6,14] y) { y = Conv(x, w) }", w=_weights(6, 4, 3)
    ),
    "residual": graph(
        "(float[1,4,6,6] x) => (float[1,4,6,6] y) { c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, x) }",
        w=_weights(4, 4, 3, 3),
    ),
    "softmax": graph("(float[40,3] x) => (float[40,3] y) { y = Softmax<axis=0>(x) }"),
}


def _normal(model: Any) -> Any:
    import onnx_ir as ir

    return normalise(ir.from_proto(model)).model


def _collect(model: Any) -> list[Task]:
    _, tasks, _ = workloads(_normal(model), profile(), LowerOptions())
    return tasks


@cache
def _tasks(name: str) -> list[Task]:
    return _collect(NETS[name])


def _trace(task: Task) -> Any:
    """An order that every kernel can have: the outer loop of its last block is cut in two."""
    import tvm
    from tvm import s_tir

    sch = s_tir.Schedule(tvm.IRModule({workload.NAME: workload.load(task.text)}))
    block = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    loop = max(sch.get_loops(block), key=lambda x: int(sch.get(x).extent.value))
    sch.split(loop, [None, 2])
    return _plain(sch.trace.as_json())


def _plain(value: Any) -> Any:
    from edgeinfer.kernels.tuning.search import _plain as plain

    return plain(value)


def _record(task: Task, **changes: Any) -> Record:
    found = Record(
        *(FINAL, task.key, MACHINE, "some CPU", 1, task.title, _trace(task), 1.0, 0.0, 21, 2.0)
    )
    return replace(found, **{"sure": 1.9, **changes})


def _lower(model: Any, folder: Path, *records: Record) -> Lowered:
    file = folder / "records.jsonl"
    file.touch()
    for record in records:
        Database(file).add(record)
    options = LowerOptions(records=(str(file),))
    return TvmTarget().lower(_normal(model), profile(), options, folder)


def _right(model: Any, made: Lowered) -> None:
    from edgeinfer.backends.base import Artifact
    from edgeinfer.backends.engines import import_onnxruntime

    session = import_onnxruntime().InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {i.name: _weights(*i.shape) for i in session.get_inputs()}
    executable = TvmBackend().load(
        Artifact("tvm", made.files[0], (), ()), LoadOptions(extra={"trial": "off"})
    )
    for name, right in zip(
        [o.name for o in session.get_outputs()], session.run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(executable.run(feeds)[name], right, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NETS)
def test_a_tuned_kernel_is_used_and_right(name: str, tmp_path: Path) -> None:
    tasks = _tasks(name)
    assert tasks
    made = _lower(NETS[name], tmp_path, *map(_record, tasks))
    (line,) = [n for n in made.notes if "tuned on some CPU" in n]
    assert line.startswith(f"{sum(t.calls for t in tasks)} kernels")
    _right(NETS[name], made)


def test_the_same_workload_has_the_same_key_in_another_process() -> None:
    (task,) = _tasks("matmul")
    # Changes with TVM's way of writing functions down; records made before are then of no use.
    assert task.key == workload.key_of(workload.load(task.text))
    assert task.title == "matmul 4x24 24x10 +2"
    assert _collect(NETS["matmul"])[0].key == task.key


def test_what_is_slower_or_of_another_machine_is_not_used(tmp_path: Path) -> None:
    (task,) = _tasks("matmul")
    for index, record in enumerate(
        (
            _record(task, us=1.99),
            _record(task, sure=1.03),
            _record(task, sure=0.0),
            _record(task, machine="x86-64-v4"),
            _record(task, kind=TRIED),
            _record(task, key="other"),
            _record(task, trace=None, us=None, error="wrong numbers"),
        )
    ):
        assert not _takes(task, record, tmp_path / f"{index}.jsonl")
    assert _takes(task, _record(task), tmp_path / "right.jsonl")


def test_code_of_a_record_that_lost_is_the_converters_own(tmp_path: Path) -> None:
    (task,) = _tasks("matmul")
    made = _lower(NETS["matmul"], tmp_path, _record(task, us=1.99))
    assert not [n for n in made.notes if "tuned" in n]


def _takes(task: Task, record: Record, file: Path) -> bool:
    """Whether a lowering would take the record for the workload."""
    Database(file).add(record)
    tuning = for_machine(machine(MACHINE), (str(file),))
    return _chosen(tuning, task) is not None


def _chosen(tuning: Tuning, task: Task) -> Any:
    function = workload.load(task.text)
    return tuning.choose(function, lambda: function, task.title, "node")


def test_a_record_that_does_not_fit_is_told_and_not_used(tmp_path: Path) -> None:
    (task,) = _tasks("matmul")
    trace = [[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []]
    made = _lower(NETS["matmul"], tmp_path, _record(task, trace=trace))
    (line,) = [n for n in made.notes if "record" in n]
    assert line.startswith("a record was not used: matmul 4x24 24x10 +2: the order does not fit")
    _right(NETS["matmul"], made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": "cortex-a76"}, "no tuned kernel for x86-64-v3, only for cortex-a76"),
        ({"kind": TRIED}, "no tuned kernel for x86-64-v3$"),
        ({"us": 1.99}, "no order in it is faster than the converter's own kernels"),
        ({"key": "other"}, "none of its 1 tuned kernels is one of this model's"),
    ],
)
def test_a_file_of_which_nothing_is_used_is_told(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (task,) = _tasks("matmul")
    made = _lower(NETS["matmul"], tmp_path, _record(task, **change))
    (line,) = [n for n in made.notes if "records.jsonl" in n]
    assert re.search(said, line)


def test_lines_that_are_no_records_are_told(tmp_path: Path) -> None:
    (task,) = _tasks("matmul")
    file = tmp_path / "records.jsonl"
    file.write_text('{"cut sh\n')
    made = _lower(NETS["matmul"], tmp_path, _record(task))
    assert [n for n in made.notes if "1 lines of it are no records" in n]
    assert [n for n in made.notes if "tuned on some CPU" in n]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    options = LowerOptions(records=(str(tmp_path / "none.jsonl"),))
    with pytest.raises(UsageError, match="no such file"):
        TvmTarget().lower(_normal(NETS["matmul"]), profile(), options, tmp_path)


@pytest.mark.parametrize("name", ["conv", "softmax"])
def test_the_virtual_machine_runs_tuned_kernels_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.convert.lower.tvm import build

    monkeypatch.setattr(build, "DIRECT_UP_TO", 0)
    made = _lower(NETS[name], tmp_path, *map(_record, _tasks(name)))
    assert [n for n in made.notes if "virtual machine" in n]
    assert [n for n in made.notes if "tuned on some CPU" in n]
    _right(NETS[name], made)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("measured", "here", "used"),
    [
        ("AMD EPYC 9R14, family 25 model 17", "AMD EPYC, family 25 model 17", True),
        ("AMD EPYC, family 25 model 1", "AMD EPYC, family 25 model 17", False),
        ("Intel(R) Xeon(R), family 6 model 207", "AMD EPYC, family 25 model 17", False),
        ("Hygon, family 25 model 17", "AMD EPYC, family 25 model 17", False),
    ],
)
def test_shipped_records_are_for_processors_of_their_design(
    measured: str, here: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = _tasks("matmul")
    shipped = Database(tmp_path / "shipped" / MACHINE / "some.jsonl")
    shipped.add(_record(task, cpu=measured))
    shipped.add(_record(task, cpu=here, sure=1.0, us=0.1))
    monkeypatch.setattr(tuning_records, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(processor, "name", lambda: here)
    tuning_records._shipped.cache_clear()
    try:
        tuning = for_machine(machine(MACHINE), ())
        assert (_chosen(tuning, task) is not None) == used
        (line,) = [n for n in tuning.lines() if measured in n]
    finally:
        tuning_records._shipped.cache_clear()
    right = "1 kernels as they were tuned on" if used else "1 kernels have records of another"
    assert line.startswith(right)


def test_equal_operators_are_one_workload() -> None:
    net = graph(
        "(float[2,8] x) => (float[2,8] y) { a = MatMul(x, w) b = MatMul(a, v) y = MatMul(b, w) }",
        w=_weights(8, 8),
        v=_weights(8, 8),
    )
    (task,) = _collect(net)
    assert (task.calls, len(task.nodes)) == (3, 3)


def test_kernels_of_open_sizes_are_counted() -> None:
    model = graph(
        "(float[N,8] x) => (float[N,4] y) { m = MatMul(x, w) y = Relu(m) }", w=_weights(8, 4)
    )
    _, tasks, left = workloads(_normal(model), profile(), LowerOptions())
    assert (tasks, left) == ([], 1)
    assert workloads(_normal(NETS["softmax"]), profile(), LowerOptions())[2] == 0
