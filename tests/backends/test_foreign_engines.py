"""Engines that somebody else built are found wherever an ONNX file holds them, and never opened."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeinfer.backends import foreign_engines
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.foreign_engines import holds_engine
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.backends.reference.backend import ReferenceBackend
from edgeinfer.errors import LoadError
from edgeinfer.wire import varint

X, Y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
SCALE = numpy_helper.from_array(np.ones(1, np.float32), "s")


def blob(domain: str = "com.microsoft", **fields: object) -> onnx.NodeProto:
    return helper.make_node("EPContext", ["x"], ["y"], domain=domain, main_context=1, **fields)


def model(node: onnx.NodeProto, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    graph = helper.make_graph([node], "g", [X], [Y], [SCALE])
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("com.microsoft", 1), ("f", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def in_subgraph() -> onnx.ModelProto:
    same = helper.make_node("Identity", ["x"], ["y"])
    bodies = [helper.make_graph([node], "b", [], [Y]) for node in (blob(), same)]
    truth = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    made = model(truth)
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    return made


def in_function() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    body = helper.make_function("f", "F", ["x"], ["y"], [blob()], opsets)
    return model(helper.make_node("F", ["x"], ["y"], domain="f"), body)


HOLDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "embedded": lambda: model(blob(embed_mode=1, ep_cache_context=b"engine")),
    "in a file": lambda: model(blob(embed_mode=0, ep_cache_context="engine.bin")),
    "of any domain": lambda: model(blob("f")),
    "in a subgraph": in_subgraph,
    "in a function": in_function,
}


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize(
    "backend", [OnnxRuntimeBackend(), ReferenceBackend()], ids=lambda b: b.name
)
def test_no_engine_opens_another_ones(
    backend: OnnxRuntimeBackend | ReferenceBackend, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(HOLDERS[kind](), path)
    with pytest.raises(LoadError, match="holds an engine that somebody else built"):
        backend.load(Artifact("onnx", path, (), ()), LoadOptions())


def _bytes(number: int, value: bytes, tag: bytes = b"", length: bytes = b"") -> bytes:
    return (tag or varint(number << 3 | 2)) + (length or varint(len(value))) + value


def _forged(node: bytes, tag: bytes = b"") -> bytes:
    return _bytes(7, _bytes(5, b"\x08\x01") + _bytes(1, node) + _bytes(5, b""), tag)


@pytest.mark.parametrize(
    "raw",
    [
        _forged(_bytes(4, b"EPContext", length=b"\x89\x00")),
        _forged(_bytes(4, b"EPContext", length=b"\x89\x80\x00")),
        _forged(_bytes(4, b"EPContext", tag=b"\xa2\x00"), b"\xba\x80\x00"),
        _bytes(7, b"") + _forged(_bytes(4, b"EPContext")),
        # A group, and a message that ends too early: searched whole, weights too.
        b"\x9b\x06\x9c\x06" + _bytes(7, _bytes(5, _bytes(4, b"EPContext"))),
        _bytes(7, _bytes(5, _bytes(4, b"EPContext"))) + b"\x3a\x05",
        b"\x18\0\0\0ORTM" + b"\x09\0\0\0EPContext\0",
    ],
)
def test_however_the_name_is_written(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(raw)
    assert holds_engine(tmp_path / "m")


def test_what_only_sounds_like_one_is_opened(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"], name="EPContext_1", doc_string="no EPContext")
    made = model(node)
    # Weights are stepped over.
    made.graph.initializer[0].raw_data = b"\x22\x09EPContext"
    onnx.save(made, tmp_path / "m")
    assert not holds_engine(tmp_path / "m")
    (tmp_path / "empty").touch()
    assert not holds_engine(tmp_path / "empty")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 << 30)
    start = time.process_time()
    assert not holds_engine(tmp_path / "sparse")
    assert time.process_time() - start < 1


@pytest.mark.parametrize("last", [b"", b"EPContext"])
def test_many_empty_weights_are_not_kept(
    tmp_path: Path, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost a hundred times its bytes, before an engine was asked."""
    name = b"\x0a\x0b" + b"\x0a" + varint(len(last)) + last if last else b""
    monkeypatch.setattr(foreign_engines, "_MOST_PARTS", 50_000)
    inner = b"\x2a\x00" * 60_000 + name
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\x3a" + varint(len(inner)) + inner)
    tracemalloc.start()
    try:
        assert holds_engine(tmp_path / "m.onnx") == bool(last)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_name_in_weights_alone_is_none(tmp_path: Path) -> None:
    made = model(helper.make_node("Identity", ["x"], ["y"]))
    made.graph.initializer.append(
        numpy_helper.from_array(np.frombuffer(b"\x09EPContext", "u1"), "n")
    )
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert not holds_engine(tmp_path / "m.onnx")
