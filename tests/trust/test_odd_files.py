"""Files that are at fault themselves: one line, exit code 1, whichever command is given them."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from tests.trust import marked
from tests.trust.marked import Mark

MODELS = {
    # What cannot be converted can be looked at where it is a model all the same.
    "an operator that is no UTF-8": ((0, 1, 1), ""),
    "an If without a branch": ((1, 1, 1), ""),
    "an input of 2^124 elements": ((0, 1, 1), ""),
    "an input of size -5": ((0, 0, 0), "sizes below zero taken for open ones ('x')"),
}
"""Exit codes of ``inspect``, ``check`` and ``convert``, and what the first and last tell."""


def _model(what: str) -> bytes:
    if what == "an If without a branch":
        text = """
        <ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c) => (float[2] y)
        { y = If (c) < then_branch = a () => (float[2] p) { p = Neg (x) } > }
        """
        made: bytes = onnx.parser.parse_model(text).SerializeToString()
        return made
    sizes = {"an input of 2^124 elements": (1 << 62, 1 << 62), "an input of size -5": (-5, 2)}
    shape = sizes.get(what, (2, 2))
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    raw: bytes = model.SerializeToString()
    return raw if shape != (2, 2) else raw.replace(b"Relu", b"R\xff\xfeu")


@pytest.mark.parametrize("command", ["inspect", "check", "convert"])
@pytest.mark.parametrize("what", MODELS)
def test_models(
    what: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_model(what))
    more = {"inspect": [], "check": ["-t", "onnxruntime"]}
    words = more.get(command, ["-t", "onnxruntime", "-o", str(tmp_path / "o.edge")])
    code = guarded(group, [command, str(path), *words])
    told = "".join(capsys.readouterr())
    codes, note = MODELS[what]
    assert code == codes[["inspect", "check", "convert"].index(command)], told
    assert "this is a bug" not in told
    assert "Traceback" not in told
    assert command == "check" or note in told
    assert (tmp_path / "o.edge").exists() == (command == "convert" and code == 0)


def _method(raw: bytes) -> bytes:
    """Name a method of packing that there is none of, in both places."""
    local, central = raw.index(b"PK\x03\x04"), raw.index(b"PK\x01\x02")
    data = bytearray(raw)
    data[local + 8 : local + 10] = data[central + 10 : central + 12] = (99).to_bytes(2, "little")
    return bytes(data)


def _version(raw: bytes) -> bytes:
    data, central = bytearray(raw), raw.index(b"PK\x01\x02")
    data[central + 6 : central + 8] = (990).to_bytes(2, "little")
    return bytes(data)


def _names(raw: bytes) -> bytes:
    """Say that names are UTF-8, and let them be none."""
    data, central = bytearray(raw), raw.index(b"PK\x01\x02")
    data[central + 8 : central + 10] = (0x800).to_bytes(2, "little")
    data[central + 46] = 0xFF
    return bytes(data)


DAMAGE: list[Callable[[bytes], bytes]] = [_method, _version, _names]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["arrays", "bundle"])
def test_zips(
    kind: str,
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = marked.write(tmp_path / "b.edge", tmp_path, Mark(tmp_path / "mark"), formats=("onnx",))
    stream = io.BytesIO()
    np.savez(stream, image=np.ones((1, 3, 8, 8), np.float32))
    (tmp_path / "x.npz").write_bytes(stream.getvalue())
    odd = bundle if kind == "bundle" else tmp_path / "x.npz"
    assert zipfile.is_zipfile(odd)
    odd.write_bytes(damage(odd.read_bytes()))
    commands = [["run", str(bundle), str(tmp_path / "x.npz")]]
    if kind == "bundle":
        commands += [["inspect", str(bundle)], ["check", str(bundle), "-t", "onnxruntime"]]
    for words in commands:
        assert guarded(group, words) in (1, 2)
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert "this is a bug" not in told
