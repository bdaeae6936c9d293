"""Models of a few bytes whose values nobody's memory holds."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert import passes
from edgeinfer.convert.verify.room import check_room
from edgeinfer.errors import SourceError

GRAPHS = {
    "e": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[60000, 1] x, float[1, 60000] t) => (float y)
        { e = MatMul (x, t) y = ReduceSum <keepdims = 0> (e) }
    """,
    "x": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[100000, 100000] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }
    """,
    "k": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[1] one = {1.0}, int64[2] s = {40000, 100000}>
        { k = Expand (one, s) r = ReduceSum <keepdims = 0> (k) y = Add (x, r) }
    """,
}


def doubled(count: int, size: str) -> str:
    nodes = "".join(f" v{i + 1} = Concat <axis = 0> (v{i}, v{i})" for i in range(count))
    return f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{size}] v0) => (float y) {{ {nodes} y = ReduceSum <keepdims = 0> (v{count}) }}"""


def machine(folder: Path, free_mb: int) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(f"MemAvailable:   {free_mb << 10} kB\n")
    return folder


def normalised(text: str) -> ir.Model:
    found: ir.Model = passes.normalise(ir.from_proto(onnx.parser.parse_model(text))).model
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_a_value_that_memory_does_not_hold_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"value '{name}' \[.*GB are free; give smaller inputs"):
        check_room(normalised(GRAPHS[name]), machine(tmp_path, 20_000))


@pytest.mark.parametrize("size", ["n", "4"])
def test_values_that_grow_from_an_open_size_are_followed(size: str, tmp_path: Path) -> None:
    root = machine(tmp_path, 20_000)
    with pytest.raises(SourceError, match=r"value 'v30' \[\d+\].*GB are free"):
        check_room(normalised(doubled(30, size)), root)
    check_room(normalised(doubled(20, size)), root)


def test_no_artifact_is_made_of_it(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(GRAPHS["x"]), tmp_path / "m.onnx")
    with pytest.raises(SourceError, match="GB are free"):
        edgeinfer.export(tmp_path / "m.onnx", tmp_path / "m.edge", targets="onnxruntime")
    assert not (tmp_path / "m.edge").exists()


def chain(count: int) -> str:
    nodes = "".join(f" v{i + 1} = Neg (v{i})" for i in range(count))
    return f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1000, 1000] v0) => (float[1000, 1000] v{count}) {{{nodes} }}
    """


def test_what_was_used_for_the_last_time_counts_no_more(tmp_path: Path) -> None:
    """Two values of 8 MB at a time, and as much again for the operator."""
    check_room(normalised(chain(50)), machine(tmp_path, 40))


def test_time_grows_with_the_model(tmp_path: Path) -> None:
    root, taken = machine(tmp_path, 40), []
    for count in (2000, 4000):
        model = ir.from_proto(onnx.parser.parse_model(chain(count)))
        begin = time.process_time()
        for _ in range(5):
            check_room(model, root)
        taken.append(time.process_time() - begin)
    assert taken[1] < 2.5 * taken[0] + 0.05
