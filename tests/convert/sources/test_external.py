"""Weights next to the model: lazy, complete and inside its folder."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from edgeinfer.convert.sources import read
from edgeinfer.convert.sources.external import external_tensors
from edgeinfer.errors import SourceError


def external(name: str, location: str, dims: list[int], **extra: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **extra}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor


def model_with(*weights: TensorProto) -> onnx.ModelProto:
    """A model that adds its weights to ``x``, one after the other."""
    nodes, last = [], "x"
    for index, weight in enumerate(weights):
        nodes.append(helper.make_node("Add", [last, weight.name], [f"t{index}"], f"add{index}"))
        last = f"t{index}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [2])],
        list(weights),
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def write(folder: Path, *weights: TensorProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model_with(*weights).SerializeToString())
    return path


def test_several_files_in_subfolders(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    np.array([9, 9, 1, 2], np.float32).tofile(tmp_path / "a.bin")
    np.array([3, 4], np.float32).tofile(tmp_path / "sub" / "b.bin")
    path = write(
        tmp_path,
        external("a", "a.bin", [2], offset=8, length=8),
        external("b", "sub/b.bin", [2]),
    )
    source = read(path)
    weights = source.model.graph.initializers
    tensors = [weights[name].const_value for name in ("a", "b")]
    assert [list(t.numpy()) for t in tensors if t is not None] == [[1, 2], [3, 4]]
    assert source.notes.lines == []


def test_digest_is_that_of_sha256sum_over_all_files(tmp_path: Path) -> None:
    for name in ("b.bin", "a.bin"):
        np.zeros(2, np.float32).tofile(tmp_path / name)
    path = write(tmp_path, external("b", "b.bin", [2]), external("a", "a.bin", [2]))
    listing = subprocess.run(
        ["sha256sum", "m.onnx", "a.bin", "b.bin"], cwd=tmp_path, capture_output=True, check=True
    )
    assert read(path).record.sha256 == hashlib.sha256(listing.stdout).hexdigest()
    (tmp_path / "a.bin").write_bytes(np.ones(2, np.float32).tobytes())
    assert read(path).record.sha256 != hashlib.sha256(listing.stdout).hexdigest()


def test_digest_of_a_single_file_is_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2]))
    assert read(path).record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "location", ["../w.bin", "/tmp/w.bin", "sub/../../w.bin", "C:/w.bin", "link.bin", "dir/w.bin"]
)
def test_location_that_leaves_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for folder in (tmp_path, outside):
        np.zeros(2, np.float32).tofile(folder / "w.bin")
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "link.bin").symlink_to(outside / "w.bin")
    (inside / "dir").symlink_to(outside)
    path = write(inside, external("w", location, [2]))
    with pytest.raises(SourceError, match=r"tensor 'w'.*leaves the model's folder"):
        read(path)


def test_symlink_within_the_folder_is_followed(tmp_path: Path) -> None:
    np.array([5, 6], np.float32).tofile(tmp_path / "real.bin")
    (tmp_path / "w.bin").symlink_to("real.bin")
    source = read(write(tmp_path, external("w", "w.bin", [2])))
    tensor = source.model.graph.initializers["w"].const_value
    assert tensor is not None
    assert list(tensor.numpy()) == [5, 6]


def test_model_given_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.array([5, 6], np.float32).tofile(tmp_path / "w.bin")
    write(tmp_path, external("w", "w.bin", [2]))
    monkeypatch.chdir(tmp_path)
    tensor = read("m.onnx").model.graph.initializers["w"].const_value
    assert tensor is not None
    assert list(tensor.numpy()) == [5, 6]


BAD_RANGES = {
    "missing file": ({"location": "absent.bin"}, "not in"),
    "a folder": ({"location": "."}, "not in"),
    "no location": ({"location": ""}, "no file is named"),
    "file too short": ({"location": "w.bin", "offset": 4}, "expected 8 bytes at offset 4"),
    "length too long": ({"location": "w.bin", "length": 100}, "expected 100 bytes"),
    "length too short": ({"location": "w.bin", "length": 4}, "expected 8 bytes for FLOAT"),
    "offset not a number": ({"location": "w.bin", "offset": "soon"}, "invalid ONNX model"),
    "negative offset": ({"location": "w.bin", "offset": -4}, "negative|invalid"),
    "huge offset": ({"location": "w.bin", "offset": 1 << 62}, "expected 8 bytes at offset"),
}


@pytest.mark.parametrize("case", BAD_RANGES)
def test_bytes_that_are_not_there_are_refused(case: str, tmp_path: Path) -> None:
    entries, words = BAD_RANGES[case]
    np.zeros(2, np.float32).tofile(tmp_path / "w.bin")
    path = write(tmp_path, external("w", dims=[2], **entries))  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=words) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_hard_link_is_refused(tmp_path: Path) -> None:
    np.zeros(2, np.float32).tofile(tmp_path / "secret.bin")
    os.link(tmp_path / "secret.bin", tmp_path / "w.bin")
    with pytest.raises(SourceError, match="2 hard links"):
        read(write(tmp_path, external("w", "w.bin", [2])))


def test_model_in_memory_does_not_know_its_folder(tmp_path: Path) -> None:
    np.zeros(2, np.float32).tofile(tmp_path / "w.bin")
    path = write(tmp_path, external("w", "w.bin", [2]))
    with pytest.raises(SourceError, match=r"give the path of the \.onnx file"):
        read(onnx.load(path, load_external_data=False))
    source = read(ir.load(path))
    assert [tensor.name for tensor in external_tensors(source.model)] == ["w"]


def test_external_tensors_of_constants_and_subgraphs_are_found(tmp_path: Path) -> None:
    np.array([1, 2], np.float32).tofile(tmp_path / "w.bin")
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[2] x, bool c) => (float[2] y) {
          y = If (c) <
            then_branch = a () => (float[2] p) { p = Identity(x) },
            else_branch = b () => (float[2] q) { k = Constant <value = float[2] {0, 0}> ()
                                                 q = Add(x, k) }
          >
        }"""
    )
    constant = model.graph.node[0].attribute[1].g.node[0].attribute[0]
    constant.t.CopyFrom(external("", "w.bin", [2]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    (tensor,) = external_tensors(read(path).model)
    assert list(tensor.numpy()) == [1, 2]
    (tmp_path / "w.bin").unlink()
    with pytest.raises(SourceError, match="not in"):
        read(path)


@pytest.mark.sweep
def test_more_than_2_gb_is_not_read_into_memory(tmp_path: Path) -> None:
    """Two weights of more than 1 GB in a sparse file: only the digest reads them, in pieces."""
    count = (1 << 28) + (1 << 23)
    with (tmp_path / "w.bin").open("wb") as file:
        os.truncate(file.fileno(), 8 * count)
        file.seek(8 * count - 4)
        file.write(np.float32(7).tobytes())
    nodes = [
        helper.make_node("ReduceSum", [name], [f"s_{name}"], keepdims=0) for name in ("a", "b")
    ]
    nodes.append(helper.make_node("Sum", ["x", "s_a", "s_b"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [
            external("a", "w.bin", [count], offset=0, length=4 * count),
            external("b", "w.bin", [count], offset=4 * count, length=4 * count),
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code = (
        "import resource, sys\n"
        "from edgeinfer.convert.sources import read\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "source = read(sys.argv[1])\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(grown // 1024, source.model.graph.initializers['b'].const_value.numpy()[-1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )
    megabytes, last = done.stdout.split()
    assert int(megabytes) < 100
    assert float(last) == 7
