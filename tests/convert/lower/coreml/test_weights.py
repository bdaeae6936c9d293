"""Weights in fewer bits: written, read back, evaluated from the saved package."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgeinfer
from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.program import Constant
from edgeinfer.backends.engines import import_coremltools
from edgeinfer.convert.lower.coreml.package import quiet
from edgeinfer.convert.lower.coreml.readback import weighted
from edgeinfer.convert.lower.coreml.target import CoreMLTarget
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.convert.quantize.calibration import Quantizer, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.errors import UnsupportedError, UsageError, VerifyError
from edgeinfer.types import Array
from tests.convert.lower.coreml.run import floats

CHANNELS, CLASSES = 48, 60


def net(rows: int = CHANNELS, *, zeros: float = 0.0) -> onnx.ModelProto:
    """A convolution and a product with weights beyond the smallest that are packed."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.1, (rows, 16, 3, 3)), rng.normal(0, 0.2, (rows, CLASSES))]
    weights = [np.where(rng.random(w.shape) < zeros, 0, w) for w in weights]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [
            numpy_helper.from_array(w.astype(np.float32), n)
            for w, n in zip(weights, "wm", strict=True)
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def export(folder: Path, precision: str, system: str = "iOS18", **more: Any) -> ExportResult:
    model = more.pop("model", None) or net()
    return edgeinfer.export(
        model,
        f"{folder}/net.edge/",
        targets=["ios"],
        precision=precision,
        deployment=system,
        name="net",
        **more,
    )


def package(made: ExportResult) -> Path:
    return made.path / made.manifest.variants[0].files[0].path


def written(folder: Path, precision: str, model: onnx.ModelProto, system: str = "iOS18") -> Path:
    """Quantize and lower, without the gate; returns the package's manifest."""
    asked, profile = recipe(precision), profiles.load("ios")
    normal = normalise(ir.serde.deserialize_model(model)).model
    if asked.is_integer:
        normal = Quantizer(normal, asked).write(limits_of(profile, "mlprogram")).model
    options = LowerOptions("fp16" if asked.half else "fp32", recipe=precision, deployment=system)
    return CoreMLTarget().lower(normal, profile, options, folder).files[0]


FORMS = [
    ("weight_only_wp1_afp32", "iOS16", "p1"),
    ("weight_only_wp2_afp16", "iOS16", "p2"),
    ("weight_only_wp3_afp16", "iOS18", "p3"),
    ("weight_only_wp4_afp16", "iOS17", "p4"),
    ("weight_only_wp6_afp32", "iOS16", "p6"),
    ("weight_only_wp8_afp16", "iOS18", "p8"),
    ("weight_only_wp4g12_afp16", "iOS18", "p4g12"),
    ("weight_only_wp4i8_afp16", "iOS18", "p4i8"),
    ("weight_only_ws30_afp16", "iOS16", "s"),
    ("weight_only_ws30p6_afp16", "iOS18", "sp6"),
    ("weight_only_ws30i8_afp32", "iOS18", "si8"),
    ("weight_only_wi8_afp16", "iOS16", "int8"),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("precision", "system", "stored"), FORMS)
def test_every_form_is_written_and_gives_what_its_weights_stand_for(
    precision: str, system: str, stored: str, tmp_path: Path
) -> None:
    asked = recipe(precision)
    made = written(tmp_path, precision, net(), system)
    rows = weighted(made.parent)
    assert [w.stored for w in rows] == [stored, stored]
    assert all(w.activations == ("fp16" if asked.half else "fp32") for w in rows)
    assert all((w.zeros > 0.29) == (stored[0] == "s") for w in rows)
    x = floats(1, 16, 8, 8)
    got = _run(made, x)
    np.testing.assert_allclose(got, _run(_decompressed(made, tmp_path), x), rtol=2e-3, atol=2e-3)


def _decompressed(manifest: Path, folder: Path) -> Path:
    """What coremltools makes of it: the same program with plain weights."""
    ct = import_coremltools()
    with quiet():
        model = ct.models.MLModel(str(manifest.parent), skip_model_load=True)
        plain = ct.optimize.coreml.decompress_weights(model)
        plain.save(str(folder / "plain.mlpackage"))
    return folder / "plain.mlpackage" / "Manifest.json"


def _run(manifest: Path, x: Array) -> Array:
    artifact = Artifact("mlprogram", manifest, (), ())
    return CoreMLReferenceBackend().load(artifact, LoadOptions()).run({"x": x})["y"]


def test_the_gate_judges_and_the_report_tells_each_layer(tmp_path: Path) -> None:
    made = export(tmp_path, "weight_only_wp6_afp16", "iOS17")
    (variant,) = made.manifest.variants
    assert variant.precision == "weight_only_wp6_afp16"
    told = made.report.to_json()["quantization"]["variants"]["ios (mlprogram)"]
    assert told["weighted_layers"] == {"fp16/p6": 2}
    assert [y["weights"] for y in told["layers"]] == ["p6", "p6"]
    assert told["bytes"] < 0.35 * told["source_bytes"]
    notes = made.report.variants[0].notes
    assert any(n.startswith("0.04 MB of weights became 0.01 MB") for n in notes)


def test_what_loses_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="largest error"):
        export(tmp_path, "weight_only_ws95_afp16", "iOS17")


@pytest.mark.parametrize(
    ("precision", "system", "newer"),
    [
        ("weight_only_wi8_afp32", "iOS15", "iOS16"),
        ("weight_only_wp4_afp16", "iOS15", "iOS16"),
        ("weight_only_ws50_afp16", "iOS15", "iOS16"),
        ("weight_only_wp4g8_afp16", "iOS17", "iOS18"),
        ("weight_only_wp3_afp16", "iOS17", "iOS18"),
        ("weight_only_wp4i8_afp16", "iOS17", "iOS18"),
        ("weight_only_ws50p4_afp16", "iOS17", "iOS18"),
        ("weight_only_wi4b32_afp16", "iOS17", "iOS18"),
    ],
)
def test_older_systems_are_refused_with_the_one_that_can(
    precision: str, system: str, newer: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        written(tmp_path, precision, net(), system)
    assert [p.hint.startswith(f"deployment target {newer}/") for p in caught.value.problems] == [
        True
    ]


@pytest.mark.parametrize("weights", ["wp5", "ws50p4i8", "wi8g4", "ws0", "w"])
def test_forms_that_are_none(weights: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown"):
        export(tmp_path, f"weight_only_{weights}_afp16")


def test_other_targets_take_no_palettes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not possible on cpu"):
        edgeinfer.export(
            net(), tmp_path / "a.edge", targets=["cpu"], precision="weight_only_wp4_afp16"
        )


def test_weights_that_are_sparse_already_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = written(tmp_path / "plain", "fp32", net(zeros=0.7), "iOS16")
    sparse = written(tmp_path, "weight_only_ws50_afp32", net(zeros=0.7), "iOS16")
    assert [w.zeros > 0.68 for w in weighted(sparse.parent)] == [True, True]
    x = floats(1, 16, 8, 8)
    np.testing.assert_array_equal(_run(sparse, x), _run(plain, x))


def test_weights_in_half_precision_beside_single(tmp_path: Path) -> None:
    made = export(tmp_path, "fp32", "iOS16", compress_weights=True)
    (variant,) = made.manifest.variants
    assert variant.precision == "fp16+fp32"
    rows = weighted(package(made).parent)
    assert [(w.activations, w.stored) for w in rows] == [("fp32", "fp16")] * 2
    (file,) = package(made).parent.rglob("weight.bin")
    weights = sum(numpy_helper.to_array(i).size for i in net().graph.initializer)
    assert 2 * weights <= file.stat().st_size < 2 * weights + 512
    with pytest.raises(UnsupportedError, match="iOS16"):
        export(tmp_path, "fp32", "iOS15", compress_weights=True, overwrite=True)


def test_same_model_gives_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in "ab":
        (tmp_path / name).mkdir()
        folder = written(tmp_path / name, "weight_only_ws40p4_afp16", net()).parent
        contents.append([p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()])
    assert contents[0] == contents[1]


def blocks(manifest: Path) -> tuple[Array, Array, str]:
    """Integers, scales and type of the one operator that unpacks blocks."""
    every = [
        [op.inputs[name][0] for name in ("data", "scale")]
        for op in open_package(manifest).function().block.operations
        if op.type == "constexpr_blockwise_shift_scale"
    ]
    (found,) = ([_value(c) for c in pair] for pair in every if _value(pair[0])[1] == "int4")
    return found[0][0], found[1][0], found[0][1]


def _value(argument: Any) -> tuple[Array, str]:
    assert isinstance(argument, Constant)
    assert isinstance(argument.value, np.ndarray)
    return argument.value, argument.dtype


def by_coremltools(weights: Array, folder: Path) -> Path:
    """A product whose weights coremltools' own quantizer packs in blocks of 32."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813

    columns = weights.shape[1]

    @mb.program(  # type: ignore[untyped-decorator]
        input_specs=[mb.TensorSpec(shape=(1, columns))], opset_version=ct.target.iOS18
    )
    def program(x: Any) -> Any:
        return mb.linear(x=x, weight=weights, name="y")

    cto = ct.optimize.coreml
    config = cto.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=32
    )
    with quiet():
        model = ct.convert(
            program,
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
        )
        packed = cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=config))
        packed.save(str(folder / "theirs.mlpackage"))
    return folder / "theirs.mlpackage" / "Manifest.json"


def test_blocks_lie_in_the_file_as_coremltools_puts_them(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(0, 0.1, (40, 128)).astype(np.float32)
    theirs = by_coremltools(weights, tmp_path)
    data, scale, kind = blocks(theirs)
    assert (kind, data.shape, scale.shape) == ("int4", (40, 128), (40, 4))
    low, high = (data.reshape(-1)[i::2].astype(np.uint8) & 15 for i in (0, 1))
    nibbles = (low | high << 4).tobytes()
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=32),
            helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
        ],
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 40])],
        [
            helper.make_tensor("q", TensorProto.INT4, (40, 128), nibbles, raw=True),
            numpy_helper.from_array(scale.astype(np.float32), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    ours = written(tmp_path, "fp32", model)
    again = blocks(ours)
    np.testing.assert_array_equal(again[0], data)
    np.testing.assert_array_equal(again[1], scale)
    assert again[2] == kind
    for manifest in (theirs, ours):
        (file,) = manifest.parent.rglob("weight.bin")
        assert nibbles in file.read_bytes()


@pytest.mark.parametrize("rows", [64, 100])
@pytest.mark.parametrize("rest", ["afp16", "afp32"])
def test_four_bits_are_off_by_half_a_step_at_most(rows: int, rest: str, tmp_path: Path) -> None:
    made = written(tmp_path, f"weight_only_wi4b32_{rest}", net(rows))
    data, scale, kind = blocks(made)
    size = 32 if rows == 64 else 25
    assert (kind, data.shape, scale.shape) == ("int4", (rows, CLASSES), (rows // size, CLASSES))
    steps = np.repeat(scale.astype(np.float64), size, axis=0)
    weights = numpy_helper.to_array(net(rows).graph.initializer[1])
    assert (np.abs(data * steps - weights) <= 0.5001 * np.abs(steps)).all()


def test_where_no_block_fits_channels_get_eight_bits(tmp_path: Path) -> None:
    made = written(tmp_path, "weight_only_wi4b32_afp16", net(97))
    assert [w.stored for w in weighted(made.parent)] == ["int8", "int8"]
