"""Reading packages: manifests, weights of every width, compressed weights, damaged files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools")

from edgeinfer.backends.coreml_reference.evaluate import ProgramEvaluator
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.program import _immediate, packed_size, unpack
from edgeinfer.errors import LoadError
from edgeinfer.types import Array
from tests.backends.coreml_reference import mil

WEIGHT = np.random.default_rng(0).standard_normal((64, 32, 3, 3)).astype(np.float32)


def _conv(mb: Any, x: Any) -> Any:
    return mb.conv(x=x, weight=WEIGHT, pad_type="valid", name="y")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    return mil.package(folder / "m.mlpackage", _conv, {"x": (1, 32, 5, 5)}, precision="fp32")


@pytest.fixture
def package(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "m.mlpackage"))


def weight_of(path: Path) -> Array:
    found: dict[str, Array] = {}
    function = open_package(path).function()
    for operation in function.block.operations:
        for constants in operation.inputs.values():
            for item in constants:
                if not isinstance(item, str) and isinstance(item.value, np.ndarray):
                    found[operation.name] = item.value
    return max(found.values(), key=lambda a: a.size)


def test_weights_are_read_bit_for_bit(package: Path) -> None:
    assert np.array_equal(weight_of(package), WEIGHT)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_narrow_numbers_lie_lowest_bit_first(bits: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**bits, 37)
    packed = sum(int(v) << (bits * i) for i, v in enumerate(values))
    size = packed_size(f"uint{bits}", 37)
    assert size == -(-37 * bits // 8)
    assert unpack(packed.to_bytes(size, "little"), f"uint{bits}", 37).tolist() == values.tolist()


def test_int4_is_signed() -> None:
    assert unpack(bytes([0x8F, 0x70]), "int4", 4).tolist() == [-1, -8, 0, 7]


def _quantized(model: Any, opt: Any) -> Any:
    config = opt.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8")
    return opt.linear_quantize_weights(model, opt.OptimizationConfig(global_config=config))


def _blocks(model: Any, opt: Any) -> Any:
    config = opt.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=16
    )
    return opt.linear_quantize_weights(model, opt.OptimizationConfig(global_config=config))


def _palette(model: Any, opt: Any) -> Any:
    config = opt.OpPalettizerConfig(mode="uniform", nbits=4)
    return opt.palettize_weights(model, opt.OptimizationConfig(global_config=config))


def _pruned(model: Any, opt: Any) -> Any:
    config = opt.OpMagnitudePrunerConfig(target_sparsity=0.6)
    return opt.prune_weights(model, opt.OptimizationConfig(global_config=config))


COMPRESSIONS = {
    "int8": (_quantized, "iOS16", "constexpr_affine_dequantize"),
    "int8 iOS18": (_quantized, "iOS18", "constexpr_blockwise_shift_scale"),
    "int4 blocks": (_blocks, "iOS18", "constexpr_blockwise_shift_scale"),
    "palette": (_palette, "iOS16", "constexpr_lut_to_dense"),
    "palette iOS18": (_palette, "iOS18", "constexpr_lut_to_dense"),
    "sparse": (_pruned, "iOS16", "constexpr_sparse_to_dense"),
    "sparse iOS18": (_pruned, "iOS18", "constexpr_sparse_to_dense"),
}


@pytest.mark.parametrize("kind", sorted(COMPRESSIONS))
def test_compressed_weights_are_what_coremltools_makes_of_them(kind: str, tmp_path: Path) -> None:
    import coremltools as ct
    import coremltools.optimize.coreml as opt

    compress, target, operation = COMPRESSIONS[kind]
    inputs = {"x": (1, 32, 5, 5)}
    path = mil.package(tmp_path / "a.mlpackage", _conv, inputs, target=target, precision="fp32")
    small = compress(ct.models.MLModel(str(path), skip_model_load=True), opt)
    small.save(str(tmp_path / "b.mlpackage"))
    function = open_package(tmp_path / "b.mlpackage").function()
    assert operation in {o.type for o in function.block.operations}
    plain = opt.decompress_weights(small)
    plain.save(str(tmp_path / "c.mlpackage"))
    expected = weight_of(tmp_path / "c.mlpackage")
    # An impulse at each channel reads the weights out of the convolution.
    evaluator = ProgramEvaluator(function)
    for channel in (0, 13, 31):
        x = np.zeros((1, 32, 5, 5), np.float32)
        x[0, channel, 2, 2] = 1
        found = evaluator.run({"x": x})["y"][0, :, ::-1, ::-1]
        np.testing.assert_allclose(found, expected[:, channel], rtol=1e-6, atol=1e-7)
    assert np.abs(expected - WEIGHT).max() > 1e-4


def test_a_neural_network_is_refused_with_what_to_do(tmp_path: Path) -> None:
    import coremltools as ct

    program = mil.program(lambda mb, x: mb.relu(x=x), {"x": (2,)}, target="iOS14")
    model = ct.convert(program, convert_to="neuralnetwork", skip_model_load=True)
    path = tmp_path / "old.mlmodel"
    model.save(str(path))
    with pytest.raises(LoadError, match=r"type 'neuralNetwork'.*convert_to='mlprogram'"):
        open_package(path)


def test_a_bare_model_file_is_opened(package: Path) -> None:
    spec = next(package.rglob("model.mlmodel"))
    assert np.array_equal(weight_of(spec), WEIGHT)


def _edit(package: Path, key: str, value: Any) -> None:
    manifest = package / "Manifest.json"
    content = json.loads(manifest.read_text())
    entry = content["itemInfoEntries"][content["rootModelIdentifier"]]
    entry[key] = value
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize("path", ["../../outside.mlmodel", "/etc/passwd", ""])
def test_a_manifest_cannot_lead_out_of_its_package(package: Path, path: str) -> None:
    _edit(package, "path", path)
    with pytest.raises(LoadError, match="lies outside of the package"):
        open_package(package)


def test_a_link_cannot_lead_out_of_its_package(package: Path, tmp_path: Path) -> None:
    weights = next(package.rglob("weight.bin"))
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LoadError, match="is a link that leads out of the package"):
        weight_of(package)


def test_one_value_for_all_takes_no_memory() -> None:
    from coremltools.proto import MIL_pb2

    written = MIL_pb2.TensorValue(floats=MIL_pb2.TensorValue.RepeatedFloats(values=[1.5]))
    array = _immediate(written, "float32", 1 << 40)
    assert array.shape == (1 << 40,)
    assert array[-1] == 1.5


def test_damaged_packages_are_refused_in_words(package: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        open_package(tmp_path / "none.mlpackage")
    with pytest.raises(LoadError, match=r"has no Manifest\.json"):
        open_package(tmp_path)
    _edit(package, "path", "com.apple.CoreML/other.mlmodel")
    with pytest.raises(LoadError, match="as its model, which is not there"):
        open_package(package)
    (package / "Manifest.json").write_text("[]")
    with pytest.raises(LoadError, match="is not a package's manifest"):
        open_package(package)
    spec = next(package.rglob("model.mlmodel"))
    spec.write_bytes(b"\xff" * 100)
    with pytest.raises(LoadError, match="is not a Core ML model"):
        open_package(spec)
    spec.write_bytes(b"")
    with pytest.raises(LoadError, match="holds no model"):
        open_package(spec)


def test_damaged_weights_are_refused_in_words(package: Path) -> None:
    weights = next(package.rglob("weight.bin"))
    good = weights.read_bytes()
    for bad, message in (
        (good[:100], "ends before the weight at 64|bytes at 64 for 18432 values"),
        (good[:5000], "bytes at 64 for 18432 values of float32"),
        (good[:64] + b"\0\0\0\0" + good[68:], "has no weight at 64"),
        (good[:68] + b"\1\0\0\0" + good[72:], "has float16 at 64, the program says float32"),
        (b"", "ends before the weight at 64"),
    ):
        weights.write_bytes(bad)
        with pytest.raises(LoadError, match=message):
            open_package(package).function()
    weights.unlink()
    with pytest.raises(LoadError, match=r"weights file .*weight\.bin is not there"):
        open_package(package).function()
