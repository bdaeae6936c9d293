"""``edgeinfer join``."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import edgeinfer
from edgeinfer.bundle.sealer import new_key, seal

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N,3] x) => (float[N,3] y) { y = Tanh(x) }"""


def test_two_bundles_become_one_package(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (1, 4):
        edgeinfer.export(
            *(onnx.parser.parse_model(TEXT), tmp_path / f"m{rows}.edge"),
            targets=["ios"],
            deployment="iOS18",
            input_shapes={"x": (rows, 3)},
        )
    asked = (f"one={tmp_path / 'm1.edge'}", f"four={tmp_path / 'm4.edge'}")
    place = tmp_path / "both.mlpackage"
    told = json.loads(cli("join", *asked, "-o", place, "--json").out)
    assert [(f["name"], f["precision"]) for f in told["functions"]] == [
        ("one", "fp32"),
        ("four", "fp32"),
    ]
    assert all(f["metrics"]["max_rel"] < 1e-6 for f in told["functions"])
    shown = cli("join", *asked, "-o", place, "--overwrite")
    assert shown.code == 0
    assert "evaluated, not run on Apple hardware" in shown.out
    pytest.importorskip("cryptography")
    sealed = tmp_path / "sealed.edge"
    seal(tmp_path / "m4.edge", sealed, new_key(tmp_path / "key"))
    before = sorted(p.name for p in tmp_path.iterdir())
    monkeypatch.setenv("EDGEINFER_BUNDLE_KEY_FILE", str(tmp_path / "key"))
    refused = cli("join", asked[0], f"four={sealed}", "-o", tmp_path / "plain.mlpackage")
    assert refused.code == 2
    assert "sealed.edge: encrypted, and a package has its weights in plain" in refused.err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("given", [("a",), ("a=x", "a=y"), ("=x", "b=y")])
def test_every_bundle_has_a_name(cli: Any, given: tuple[str, ...], tmp_path: Path) -> None:
    result = cli("join", *given, "-o", tmp_path / "m.mlpackage")
    assert (result.code, result.out) == (2, "")
    assert "expected NAME=BUNDLE, each name once" in result.err
