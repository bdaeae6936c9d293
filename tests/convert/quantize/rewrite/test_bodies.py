"""Weights in bodies of If, Loop and Scan are stored as integers, or the report says why not."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.cli.convert import _quantized
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibration import Quantizer, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.bodies import candidates, left, store_bodies, summary

ENGINES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino_ir"),
    "litert": ("rpi4", "tflite"),
    "coreml-reference": ("ios", "mlprogram"),
}
FLOAT = TensorProto.FLOAT


def weights(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return np.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), np.float32)


def info(name: str, *shape: int, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def net(name: str) -> ir.Model:
    """A recurrent step in a loop or scan, or a product in either branch; weights only in there."""
    constants = {"u": weights(32, 64), "w": weights(64, 64), "zero": np.zeros((1, 64), np.float32)}
    step = [
        helper.make_node("MatMul", ["xi", "u"], ["xu"], name="of_input"),
        helper.make_node("MatMul", ["s", "w"], ["sw"], name="of_state"),
        helper.make_node("Add", ["xu", "sw"], ["p"]),
        helper.make_node("Tanh", ["p"], ["s2"]),
    ]
    if name == "loop":
        constants |= {"yes": np.array(True), "turns": np.array(9)}
        take = helper.make_node("Gather", ["x", "i"], ["xi"], axis=0)
        go = helper.make_node("Identity", ["c"], ["c2"])
        flags = [info("i", kind=TensorProto.INT64), info("c", kind=TensorProto.BOOL)]
        goes = info("c2", kind=TensorProto.BOOL)
        body = helper.make_graph(
            [go, take, *step], "body", [*flags, info("s", 1, 64)], [goes, info("s2", 1, 64)]
        )
        node = helper.make_node("Loop", ["turns", "yes", "zero"], ["y"], body=body)
        nodes, x = [node], info("x", 9, 1, 32)
    elif name == "scan":
        state, row = info("s", 1, 64), info("xi", 1, 32)
        body = helper.make_graph(step, "body", [state, row], [info("s2", 1, 64)])
        node = helper.make_node("Scan", ["zero", "x"], ["y"], body=body, num_scan_inputs=1)
        nodes, x = [node], info("x", 9, 1, 32)
    else:
        constants |= {"v": weights(32, 64)[::-1].copy(), "none": np.array(0.0, np.float32)}
        branches = {}
        for branch, weight in (("then", "u"), ("else", "v")):
            product = helper.make_node("MatMul", ["x", weight], [f"{branch}_y"], name=branch)
            branches[f"{branch}_branch"] = helper.make_graph(
                [product], branch, [], [info(f"{branch}_y", 1, 64)]
            )
        nodes = [
            helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
            helper.make_node("Greater", ["mean", "none"], ["more"]),
            helper.make_node("If", ["more"], ["y"], **branches),
        ]
        x = info("x", 1, 32)
    kept = [n for n in constants if any(n in str(node) for node in nodes)]
    made = helper.make_graph(
        *(nodes, name, [x], [info("y", 1, 64)]),
        [numpy_helper.from_array(constants[n], n) for n in kept],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = ir.from_proto(helper.make_model(made, opset_imports=opsets, ir_version=9))
    return passes.normalise(model).model


def feeds(model: ir.Model) -> list[dict[str, np.ndarray]]:
    shape = [int(d) for d in passes.input_specs(model)[0].shape or () if isinstance(d, int)]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return [{"x": values - 0.5}, {"x": values + 0.5}]


def run(model: ir.Model, engine: str, folder: Path) -> tuple[list[np.ndarray], int, str]:
    profile, format = ENGINES[engine]
    specs = passes.input_specs(model), passes.output_specs(model)
    folder.mkdir()
    lowered = target_for(format).lower(model, profiles.load(profile), LowerOptions("fp32"), folder)
    artifact = Artifact(format, lowered.files[0], *specs)
    executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
    answers = [np.array(executable.run(f)["y"]) for f in feeds(model)]
    executable.close()
    size = sum(f.stat().st_size for f in lowered.files)
    found = readback.layers(lowered.files[0], format)
    return answers, size, readback.precision_name(found, lowered.precision)


@functools.cache
def quantized(name: str, engine: str, precision: str = "weight_only_wi8_afp32") -> ir.Model:
    profile, format = ENGINES[engine]
    quantizer = Quantizer(net(name), recipe(precision))
    return quantizer.write(limits_of(profiles.load(profile), format)).model


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((n, e) for n in ("loop", "if") for e in ENGINES),
        ("scan", "onnxruntime"),
        ("scan", "openvino"),
    ],
)
def test_stored_weights_run_in_bodies(name: str, engine: str, tmp_path: Path) -> None:
    model = net(name)
    wanted, whole, _ = run(model, engine, tmp_path / "float")
    answers, size, precision = run(quantized(name, engine), engine, tmp_path / "stored")
    # 16 to 24 kB of weights become a quarter; OpenVINO's text has more operators.
    assert size < whole - 8_000
    assert precision == "weight_only_wi8_afp32"
    for right, answer in zip(wanted, answers, strict=True):
        assert 0 < np.abs(answer - right).max() < 0.03 * np.abs(right).max()


@pytest.mark.parametrize("name", ["loop", "scan"])
def test_floats_are_made_once_for_all_turns_where_the_engine_makes_them_each_time(
    name: str,
) -> None:
    before, inside = quantized(name, "onnxruntime"), quantized(name, "openvino")
    assert [n.op_type for n in before.graph][:2] == ["DequantizeLinear"] * 2
    assert "DequantizeLinear" not in {n.op_type for n in inside.graph}


def test_a_branch_that_is_not_taken_makes_no_floats() -> None:
    model = quantized("if", "onnxruntime")
    assert "DequantizeLinear" not in {n.op_type for n in model.graph}
    for body in [g for g in model.graphs() if g is not model.graph]:
        assert [n.op_type for n in body] == ["DequantizeLinear", "MatMul"]
        # ONNX Runtime looks for what it packs in the graph of the product.
        assert len(body.initializers) == 3


def test_what_stays_float_is_counted_with_the_reason() -> None:
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    model = net("loop")
    assert [n.name for n in candidates(model, limits)] == ["of_input", "of_state"]
    kept = frozenset({"of_state"})
    stored = model.clone()
    assert store_bodies(stored, limits, kept=kept) == 1
    found = left(stored, limits, kept)
    assert [(x.node, x.op, x.body, x.nbytes) for x in found] == [
        ("of_state", "MatMul", "Loop", 64 * 64 * 4),
    ]
    assert summary(found) == (
        "16,384 bytes of weights in bodies of Loop stayed float: the accuracy budget needs them "
        "(MatMul, 16,384 bytes)"
    )
    nowhere = replace(limits, bodies="")
    assert candidates(model, nowhere) == []
    assert store_bodies(model, nowhere, kept=frozenset()) == 0
    lines = {x.why for x in left(model, nowhere)}
    assert lines == {"the profile names no form in which its engine runs stored weights in a body"}
    assert sum(x.nbytes for x in left(model, nowhere)) == (32 + 64) * 64 * 4
    assert summary(left(stored, replace(limits, bodies=""))).startswith("16,384 bytes")


def test_each_reason_is_told() -> None:
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    model = net("if")
    product = next(n for g in model.graphs() for n in g if n.op_type == "MatMul")
    table = product.inputs[1]
    assert table is not None
    product.replace_input_with(1, product.inputs[0])
    body = product.graph
    assert body is not None
    body.insert_before(product, ir.node("Gather", [table, table], name="rows"))
    whys = {x.node: x.why for x in left(model, limits)}
    assert whys["rows"] == "Gather has stored weights in the main graph only"
    assert left(quantized("if", "onnxruntime"), limits) == ()


def test_the_report_and_the_command_name_what_stayed_float(tmp_path: Path) -> None:
    folder = Path(profiles.__file__).parent
    source = (folder / "onnxruntime.toml").read_text(encoding="utf-8")
    table = (folder / "quantization" / "onnxruntime.toml").read_text(encoding="utf-8")
    assert 'bodies = "before"\n' in table
    place = tmp_path / "other.toml"
    text = source.replace('quantization = ["onnxruntime"]\n', "").replace(
        'name = "onnxruntime"', 'name = "other"', 1
    )
    text += "\n[[quantization]]\n" + table.replace('bodies = "before"\n', "")
    place.write_text(text, encoding="utf-8")
    model = tmp_path / "if.onnx"
    ir.save(net("if"), model)
    made = export(
        *(model, f"{tmp_path}/if.edge/"), targets=[str(place)], precision="weight_only_wi8_afp32"
    )
    found = made.report.quantization
    assert found is not None
    (variant,) = found["variants"].values()
    assert [x["bytes"] for x in variant["float_in_bodies"]] == [32 * 64 * 4] * 2
    line = "16,384 bytes of weights in bodies of If stayed float: the profile names no form"
    assert variant["left"].startswith(line)
    assert any(line in told for told in _quantized(found))
    assert any(note.startswith(line) for v in made.report.variants for note in v.notes)
    assert line in (tmp_path / "if.edge" / "report.html").read_text(encoding="utf-8")
