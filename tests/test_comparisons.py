"""``edgeinfer.compare``: what the command prints, as a result; feeds as data; no converter."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.sealer import new_key, seal
from edgeinfer.errors import InputError, UsageError
from tests.cli.conftest import cli as cli
from tests.cli.test_compare import NET, net, save

ONES = {"x": np.ones((1, 2, 4, 6), np.float32)}


def test_the_same(tmp_path: Path) -> None:
    found = edgeinfer.compare(net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx"))
    assert found.same
    (row,) = found.rows
    assert (row.name, row.engine, row.budget, row.why) == ("b.onnx", "onnxruntime", "fp32", "")
    assert row.outputs["y"].max_abs == 0
    assert repr(found) == "<Comparison with a.onnx: 0 of 1 differ>"


def test_the_node_its_operator_and_the_error_of_each_output(tmp_path: Path) -> None:
    """The error is that of tanh(sigmoid(1) / 2 + bias), computed here in float64."""
    found = edgeinfer.compare(
        net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3), data=[ONES]
    )
    (row,) = found.rows
    assert not found.same
    assert not row.same
    half = 0.5 / (1 + np.exp(-1.0))
    expected = np.tanh(half + 0.3) - np.tanh(half + 0.25)
    assert row.outputs["y"].max_abs == pytest.approx(expected, abs=2e-7)
    assert (row.op, found.inputs, found.origin) == ("Add", 1, "given")
    assert row.why.startswith(f"first diverging node Add {row.node!r}: ")
    assert row.breaches[0].startswith("input 0, output 'y': ")
    assert len(repr(found)) < 300


def test_json_is_what_the_command_prints(cli: Any, tmp_path: Path) -> None:
    pair = net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3)
    found = edgeinfer.compare(*pair).as_json()
    assert json.loads(json.dumps(found)) == found
    assert json.loads(cli("compare", *pair, "--json").out) == found
    same = edgeinfer.compare(pair[0], pair[0]).as_json()
    # A file next to itself: the ratio of signal to error has no number in JSON.
    assert same["rows"][0]["outputs"]["y"]["sqnr_db"] == "inf"
    assert json.loads(json.dumps(same, allow_nan=False)) == same


def test_of_encrypted_bundles_no_node_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph would be written to the disk in plain."""
    pytest.importorskip("cryptography")
    key = new_key(tmp_path / "key")
    monkeypatch.setenv("EDGEINFER_BUNDLE_KEY_FILE", str(tmp_path / "key"))
    for name, bias in (("a", 0.0), ("b", 0.3)):
        plain = tmp_path / f"{name}.plain.edge"
        edgeinfer.export(net(tmp_path / f"{name}.onnx", bias=bias), plain, targets=["onnxruntime"])
        seal(plain, tmp_path / f"{name}.edge", key)
    (row,) = edgeinfer.compare(tmp_path / "a.edge", tmp_path / "b.edge").rows
    assert row.breaches
    assert (row.node, row.op) == ("", "")
    assert "is encrypted, and naming one writes its weights to the disk" in row.why


def test_data_is_a_path_or_feeds(tmp_path: Path) -> None:
    b = NET.replace("Sigmoid({x})", "HardSigmoid({x})").format(bias=0.25, x="x", y="y")
    pair = net(tmp_path / "a.onnx"), save(tmp_path / "b.onnx", b)
    alike = np.full((3, 2, 4, 6), 50.0, np.float32)
    np.savez(tmp_path / "x.npz", x=alike)
    assert not edgeinfer.compare(*pair).same
    for data in (tmp_path / "x.npz", str(tmp_path / "x.npz"), [{"x": alike[:1]}]):
        assert edgeinfer.compare(*pair, data=data).same
    assert edgeinfer.compare(str(pair[0]), str(pair[1]), precision="static_wi8_ai8").same
    with pytest.raises(InputError, match="x"):
        edgeinfer.compare(*pair, data=[{"x": np.ones((1, 2, 4, 7), np.float32)}])
    with pytest.raises(UsageError, match="holds no sample"):
        edgeinfer.compare(*pair, data=[])


def test_a_device_has_no_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("verify.divergence", "quantize.readback_apart"):
        monkeypatch.setitem(sys.modules, f"edgeinfer.convert.{name}", None)
    pair = net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3)
    (row,) = edgeinfer.compare(*pair, data=[ONES], precision="fp32").rows
    assert (row.node, row.op) == ("", "")
    assert "the converter reads graphs, and it is not installed here" in row.why
    with pytest.raises(UsageError, match="only the converter makes inputs up"):
        edgeinfer.compare(*pair, precision="fp32")


def test_progress_is_called(tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    net(tmp_path / "a.onnx")
    edgeinfer.compare(
        tmp_path / "a.onnx", tmp_path / "a.onnx", progress=lambda *each: told.append(each)
    )
    assert told == [("gather inputs", None), ("compare a.onnx", 0.0)]
