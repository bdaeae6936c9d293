"""What engines take for the operators of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.tiny import MLP, save
from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert import sources
from edgeinfer.convert.tuning import costs
from edgeinfer.convert.tuning.costs import Costs
from edgeinfer.kernels.tuning.task import Task

STEPS = (
    (frozenset({"a", "relu"}), 6.0),
    (frozenset({"b", "c"}), 4.0),
    (frozenset({"c_nchwc"}), 1.0),
    (frozenset({"of nobody"}), 9.0),
)


def _task(key: str, *nodes: str) -> Task:
    return Task(key, key, "", "", nodes=list(nodes))


def test_a_step_is_shared_out_among_its_workloads() -> None:
    found = Costs("e", 20.0, STEPS).of([_task("1", "a"), _task("2", "b"), _task("3", "c", "d")])
    assert found == {"1": 6.0, "2": 2.0, "3": 3.0}


def test_a_name_that_only_begins_alike_is_another_one() -> None:
    assert Costs("e", 1.0, ((frozenset({"Conv_17"}), 5.0),)).of([_task("1", "Conv_1")]) == {}
    assert Costs("e", 1.0, ((frozenset({""}), 5.0),)).of([_task("1", "")]) == {}


def test_the_fastest_engine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    from edgeinfer.backends.operators import Operator, OperatorProfile

    def profile(engine: str, *_: object) -> OperatorProfile | None:
        if engine == "broken":
            return None
        us = {"quick": 3.0, "slow": 5.0}[engine]
        step = Operator("y", "FullyConnected", "cpu", us)
        return OperatorProfile("clock", (step,), 1, us, us)

    save(MLP, tmp_path / "net.onnx")
    model = sources.read(tmp_path / "net.onnx").model
    last = model.graph.outputs[0].producer()
    assert last is not None
    last.name = "last"
    model.graph.outputs[0].name = "y"
    monkeypatch.setattr(costs, "_profile", profile)
    monkeypatch.setattr(costs, "ENGINES", ("slow", "broken", "quick"))
    found = costs.best(costs.written(model, tmp_path), "cpu", 1)
    assert found == Costs("quick", 3.0, ((frozenset({"last"}), 3.0),))
    monkeypatch.setattr(costs, "ENGINES", ("broken",))
    assert costs.best(costs.written(model, tmp_path), "cpu", 1) is None


def test_weights_that_lie_in_the_source_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    net = graph(
        "(float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }", w=np.ones((64, 64), np.float32)
    )
    net.graph.node[0].name = "only"
    there = tmp_path / "there"
    there.mkdir()
    ir.save(ir.from_proto(net), there / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    monkeypatch.setattr(costs, "ENGINES", ("onnxruntime",))
    model = sources.read(there / "m.onnx").model
    found = costs.best(costs.written(model, tmp_path), "cpu", 1)
    assert found is not None
    assert found.of([_task("k", "only")])["k"] > 0


def test_what_nothing_is_tuned_for_is_told_the_longest_first() -> None:
    found = Costs("e", 20.0, STEPS)
    assert found.others([_task("1", "a")]) == [("of nobody", 9.0), ("b", 4.0), ("c_nchwc", 1.0)]
    assert found.others([_task("1", "c")]) == [("of nobody", 9.0), ("a", 6.0)]
    assert found.steps_us == 20.0
