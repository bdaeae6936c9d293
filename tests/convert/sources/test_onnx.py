"""Opsets, damaged graphs and models in memory."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from edgeinfer.convert.sources import old, read
from edgeinfer.errors import EdgeInferError, SourceError, UsageError

NEWEST = onnx.defs.onnx_opset_version()


def relu(opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["":{opset}]> g (float[2] x) => (float[2] y) '
        "{ [n] y = Relu(x) }"
    )


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_supported_opset_is_kept_as_given(opset: int) -> None:
    source = read(relu(opset))
    assert source.model.opset_imports == {"": opset}
    assert source.notes.lines == []


def test_newer_opsets_are_refused_naming_both(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(relu(NEWEST + 1).SerializeToString())
    with pytest.raises(SourceError, match=f"opset {NEWEST + 1}, supported are 7 to {NEWEST};"):
        read(path)


def test_graphs_of_an_older_opset_are_refused_naming_both() -> None:
    with pytest.raises(SourceError, match=f"opset 6, supported are 7 to {NEWEST};"):
        read(ir.from_proto(relu(6)))


def test_in_memory_models_and_files_give_the_same_graph(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(relu(17).SerializeToString())
    sources = [read(str(path)), read(path), read(relu(17)), read(ir.from_proto(relu(17)))]
    protos = [ir.to_proto(source.model) for source in sources]
    assert all(proto == protos[0] for proto in protos)
    assert [s.record.name for s in sources] == ["m.onnx", "m.onnx", "g", "g"]
    assert {s.record.format for s in sources} == {"onnx"}
    assert sources[2].record.sha256 == sources[3].record.sha256


def test_fingerprint_tells_models_apart() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["":17]> g (float[2] x) => (float[2] y) '
        "<float[2] w = {1, 2}> { [n] y = Mul(x, w) }"
    )
    first = read(model).record.sha256
    assert read(model).record.sha256 == first
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer[0].float_data[1] = 3
    assert read(changed).record.sha256 != first
    changed.CopyFrom(model)
    changed.opset_import[0].version = 18
    assert read(changed).record.sha256 != first
    changed.CopyFrom(model)
    changed.graph.node[0].op_type = "Add"
    assert read(changed).record.sha256 != first


def test_given_ir_model_is_not_modified() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["":17]> g (float[2] x) => (float[3] y) '
        "<float[2] unused = {1, 2}> { y = Relu(x) }"
    )
    given = ir.from_proto(model)
    before = ir.to_proto(given)
    assert len(read(given).notes.lines) == 3
    assert ir.to_proto(given) == before


def test_name_can_be_chosen() -> None:
    assert read(relu(17), name="mine").record.name == "mine"


def test_model_beyond_2_gb_in_one_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    whole = relu(17).SerializeToString()
    # An unknown field of 2 GB after the model, sparse on disk.
    length = 1 << 31
    field = b"\xf2\x01" + bytes([0x80, 0x80, 0x80, 0x80, 0x08])
    with path.open("wb") as file:
        file.write(whole + field)
        file.truncate(len(whole) + len(field) + length)
    with pytest.raises(SourceError, match=r"2\.0 GB in one file.*save_as_external_data"):
        read(path)


def test_random_damage_never_escapes_as_a_traceback(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["":17]> g (float[N, 2] x, bool c) => (float[N, 2] y) '
        "<float[2] w = {1, 2}> { t = Mul(x, w) y = If (c) <"
        "then_branch = a () => (float[N, 2] p) { p = Neg(t) },"
        "else_branch = b () => (float[N, 2] q) { q = Abs(t) }> }"
    )
    whole = np.frombuffer(model.SerializeToString(), np.uint8)
    path = tmp_path / "m.onnx"
    refused = 0
    for _ in range(300):
        damaged = whole.copy()
        places = rng.integers(0, len(whole), 3)
        damaged[places] = rng.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            read(path)
        except EdgeInferError:
            refused += 1
    assert refused > 50


def test_arguments_for_pytorch_are_refused() -> None:
    with pytest.raises(UsageError, match="example_inputs is for PyTorch models"):
        read(relu(17), example_inputs=())
    with pytest.raises(UsageError, match="dynamic_shapes is for PyTorch models"):
        read(relu(17), dynamic_shapes={"x": {0: "n"}})


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(SourceError, match="received int"):
        read(5)


def test_oldest_opset_is_documented() -> None:
    assert old.OLDEST_OPSET == 7
