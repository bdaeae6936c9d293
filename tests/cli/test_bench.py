"""``edgeinfer bench``: every artifact, engine and thread count, next to the plain engines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.machine import cores
from edgeinfer.runtime.plain import plain_call
from tests.cli.conftest import write_bundle

QUICK = ("--runs", "5", "--seconds", "0.01")


def test_rows(cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cpus", lambda: 2)
    result = cli("bench", bundle, *QUICK, "--threads", "1,2")
    assert result.code == 0
    lines = result.out.splitlines()
    said = ["not run: ", "plain engines compute as edgeinfer does", "fastest for a session in "]
    said += ["times are of this machine: ", "cpu-onnx-fp32: the same artifact as "]
    head, *rows = [line for line in lines if not line.startswith(tuple(said))]
    assert "not run: cpu-onnx-fp32 on reference: made for onnxruntime; --backend ref" in result.out
    assert head.split()[:6] == ["model", "engine", "size", "error", "threads", "median"]
    assert all("144 B" in row for row in rows)
    assert "fastest for a session in these turns: cpu-onnx-fp32 on onnxruntime, " in result.out
    engines = sorted((row.split()[1], "plain" in row) for row in rows)
    assert engines == [("onnxruntime", False)] * 2 + [("plain", True)] * 2
    told = [row.partition("%")[2].split() for row in rows]
    assert all(cells[0] == "5" for cells in told)
    # Like for like: the plain engine does nothing that edgeinfer does not.
    assert [cells[1:] for cells in told] == [[]] * 4


def test_engines_with_their_own_defaults_are_told_apart(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cpus", lambda: 2)
    result = cli("bench", bundle, *QUICK, "--threads", "1,2", "--engine-defaults")
    spins = [line for line in result.out.splitlines() if line.endswith("threads spin between runs")]
    # One thread is the caller's own, which does not wait; the last line says what is equal.
    assert [line.partition("  ")[2].strip().startswith("plain") for line in spins] == [True, False]
    assert spins[-1].startswith("note: without --engine-defaults")


def test_threads_stay_within_what_the_process_may_keep_busy(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cpus", lambda: 2)
    note = "note: 1000 threads were requested, this process may keep 2 CPUs busy\n"
    benched = cli("bench", bundle, *QUICK, "--threads", "1000,2", "--json")
    assert benched.err == note
    assert {row["threads"] for row in json.loads(benched.out)["rows"]} == {2}
    verified = cli("verify", bundle, "--threads", "1000")
    assert (verified.code, verified.err) == (0, note)


def test_plain_openvino_says_what_it_computes_in(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    import onnx

    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu (x) }'
    )
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "m.onnx"))
    inputs = [np.zeros(4, np.float32)]
    call, remark = plain_call("openvino", tmp_path / "m.onnx", inputs, 1)
    call()
    assert remark == ""
    call, remark = plain_call("openvino", tmp_path / "m.onnx", inputs, 1, defaults=True)
    call()
    assert remark in ("computes in float32", "computes in bfloat16", "computes in float16")


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
        (["--threads", "99999999999"], 2, "expected numbers like 1,2, at most 1024"),
        (["--seconds", "nan"], 2, "--seconds nan: expected a number"),
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


def test_figures_are_a_page_too(cli: Any, model: Path, tmp_path: Path) -> None:
    made, page, saved = tmp_path / "m.edge", tmp_path / "m.html", tmp_path / "m.json"
    assert cli("convert", model, "-t", "onnxruntime", "-o", made).code == 0
    result = cli("bench", made, *QUICK, "--html", page, "-o", saved)
    assert result.code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "onnxruntime-onnx-fp32" in text
    rows = [row for row in json.loads(saved.read_text())["rows"] if row["engine"] == "onnxruntime"]
    assert all(row["size_bytes"] > 100 for row in rows)
    assert all(0 <= row["max_rel"] < 1e-5 for row in rows)
    page.write_text("mine")
    assert cli("bench", made, *QUICK, "--html", page).code == 2


def test_no_page_comes_back_from_a_device(cli: Any, bundle: Path) -> None:
    result = cli("bench", bundle, "--device", "ssh://nobody@nowhere", "--html", "m.html")
    assert result.code == 2
    assert "-o FILE.json does" in result.err
