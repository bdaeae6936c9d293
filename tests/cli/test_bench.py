"""``edgeinfer bench``: every artifact, engine and thread count, next to the plain engines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import write_bundle

QUICK = ("--runs", "5", "--seconds", "0.01")


def test_rows(cli: Any, bundle: Path) -> None:
    result = cli("bench", bundle, *QUICK, "--threads", "1,2")
    assert result.code == 0
    head, *rows = result.out.splitlines()
    assert head.split()[:4] == ["model", "engine", "threads", "median"]
    engines = sorted((row.split()[1], "plain" in row) for row in rows)
    assert engines == [("onnxruntime", False)] * 2 + [("plain", True)] * 2
    assert all(row.split()[-1] == "5" for row in rows)


def test_report(cli: Any, bundle: Path) -> None:
    saved = bundle.with_name("bench.json")
    result = cli("bench", bundle, *QUICK, "-o", saved, "--json", "--backend", "onnxruntime")
    data = json.loads(saved.read_text())
    assert data == json.loads(result.out)
    assert data["input"] == {"image": [2, 2, 2, 3]}
    assert data["machine"]["cpus"] >= 1
    assert {row["engine"] for row in data["rows"]} == {"onnxruntime", "plain onnxruntime"}
    assert all(0 < row["min_ms"] <= row["median_ms"] <= row["p95_ms"] for row in data["rows"])


def test_an_input_of_another_size(cli: Any, bundle: Path) -> None:
    np.savez(bundle.with_name("in.npz"), image=np.zeros((7, 2, 2, 3), np.float32))
    result = cli("bench", bundle, bundle.with_name("in.npz"), *QUICK, "--json")
    assert json.loads(result.out)["input"] == {"image": [7, 2, 2, 3]}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--threads", "0"], 2, "--threads '0': expected numbers like 1,2"),
        (["--threads", "many"], 2, "expected numbers like 1,2"),
        (["--backend", "nope"], 2, "unknown backend 'nope'"),
        (["-o", "bench.html"], 2, "expected a name that ends with .json"),
    ],
)
def test_bad_arguments(
    cli: Any, bundle: Path, arguments: list[str], code: int, message: str
) -> None:
    result = cli("bench", bundle, *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_a_wrong_input_is_told(cli: Any, bundle: Path) -> None:
    np.savez(bundle.with_name("in.npz"), image=np.zeros((7, 2, 2, 3)))
    result = cli("bench", bundle, bundle.with_name("in.npz"))
    assert result.code == 1
    assert "input 'image': expected float32, received float64" in result.err


def test_without_vectors_an_input_is_needed(cli: Any, tmp_path: Path) -> None:
    result = cli("bench", write_bundle(tmp_path / "m.edge", vectors=0))
    assert result.code == 1
    assert result.err.endswith("has no test vectors; give an INPUT\n")
