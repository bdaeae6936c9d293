"""``edgeinfer verify``: right numbers pass, wrong ones exit with 1 and say where."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import InputError
from edgeinfer.machine.host import MachineHost, host
from edgeinfer.metrics import OutputMetrics
from tests.cli.conftest import write_bundle

VERSION = onnxruntime.__version__


def test_a_right_bundle(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", write_bundle(tmp_path / "m.edge", vectors=3), "-b", "onnxruntime")
    assert result.code == 0
    assert result.out == (
        "variant        engine              device  error  signal  verdict\n"
        f"cpu-onnx-fp32  onnxruntime {VERSION}  cpu     equal   exact  pass\n"
        "\n"
        "3 test vectors on each: all within budget\n"
    )


def test_wrong_numbers(cli: Any, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "m.edge", wrong_by=0.25)
    result = cli("verify", bundle)
    assert result.code == 1
    table, detail = result.out.split("\n\n")
    assert table.endswith("FAIL")
    lines = detail.splitlines()
    assert lines[0].startswith(
        "cpu-onnx-fp32 on onnxruntime: vector 0, output 'scores': largest error 0.25 is "
    )
    assert lines[-1] == "1 test vector on each: 1 of 1 FAILED"


def _with_part(folder: Path, wrong_by: float, vectors: int = 1) -> Path:
    """Write a bundle with another one inside, whose numbers are off by so much."""
    with BundleWriter(folder / "whole.edge") as writer:
        place = writer.folder("inside/it")
        write_bundle(place, wrong_by=wrong_by, vectors=vectors)
        names = [p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()]
        extra = tuple(writer.adopt(f"inside/it/{name}") for name in sorted(names))
        with Bundle.open(write_bundle(folder / "outer.edge")) as outer:
            manifest = outer.manifest
            for path, record in manifest.files().items():
                writer.add_bytes(path, outer.read(record))
        extra = (*manifest.extra_files, *extra)
        return writer.finish(dataclasses.replace(manifest, extra_files=extra))


def test_a_bundle_inside_is_verified_too(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", _with_part(tmp_path, 0.0), "-b", "onnxruntime")
    assert result.code == 0
    rows = [line.split()[0] for line in result.out.splitlines()[1:3]]
    assert rows == ["cpu-onnx-fp32", "inside/it/cpu-onnx-fp32"]
    (tmp_path / "wrong").mkdir()
    wrong = _with_part(tmp_path / "wrong", 0.25)
    result = cli("verify", wrong, "-b", "onnxruntime")
    assert result.code == 1
    assert "inside/it/cpu-onnx-fp32 on onnxruntime: vector 0, output 'scores'" in result.out
    assert "inside/it: a bundle of its own, " in cli("inspect", wrong).out


def test_a_bundle_inside_without_vectors_is_refused(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", _with_part(tmp_path, 0.25, vectors=0), "-b", "onnxruntime")
    assert (result.code, result.out) == (1, "")
    assert result.err.endswith("inside/it: has no test vectors, so nothing can be verified\n")


ENDLESS = """<ir_version: 10, opset_import: ["": 20]>
    g (float[N,2,2,3] image) => (float[N,3] scores)
    <int64 most = {4611686018427387904}, bool go = {1}, int64[2] axes = {1, 2}> {
        mean = ReduceMean<keepdims=0>(image, axes)
        scores = Loop(most, go, mean) <
            body = b (int64 i, bool c, float[N,3] s) => (bool d, float[N,3] t)
            { d = Identity(c) t = Identity(s) }>
    }"""


@pytest.mark.usefixtures("conversions_apart")
def test_an_artifact_that_does_not_end_is_a_finding(cli: Any, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "m.edge", graph=ENDLESS)
    start = time.monotonic()
    result = cli("verify", bundle, "-b", "onnxruntime", "--time-limit", "0.5")
    assert (result.code, time.monotonic() - start < 120) == (1, True)
    assert "cpu-onnx-fp32 on onnxruntime: " in result.out
    assert "no answer for 0.5 s" in result.out


def test_vectors_that_an_artifact_refuses_are_named(cli: Any, tmp_path: Path) -> None:
    refusing = {"inputs": "not_nan"}
    bundle = write_bundle(tmp_path / "m.edge", vectors=3, nan_in=1, constraints=refusing)
    result = cli("verify", bundle, "-b", "onnxruntime")
    assert result.code == 0
    assert "cpu-onnx-fp32 on onnxruntime: refuses the values of vector 1\n" in result.out


def test_an_artifact_of_which_nothing_was_seen_does_not_pass(cli: Any, tmp_path: Path) -> None:
    """Its one vector holds what it refuses, nothing was run, and the verdict was pass."""
    refusing = {"inputs": "not_nan"}
    bundle = write_bundle(tmp_path / "m.edge", nan_in=0, wrong_by=0.25, constraints=refusing)
    result = cli("verify", bundle, "-b", "onnxruntime")
    assert result.code == 1
    assert "cpu-onnx-fp32 on onnxruntime: not checked: every vector is one that it " in result.out
    assert "FAILED" in result.out


def test_json(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", write_bundle(tmp_path / "m.edge", wrong_by=0.25), "--json")
    assert result.code == 1
    data = json.loads(result.out)
    assert data["passed"] is False
    (checked,) = data["checked"]
    assert (checked["variant"], checked["backend"]) == ("cpu-onnx-fp32", "onnxruntime")
    assert checked["metrics"]["scores"]["max_abs"] == pytest.approx(0.25)


def test_quiet_still_has_its_code(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", write_bundle(tmp_path / "m.edge", wrong_by=0.25), "--quiet")
    assert result == type(result)(1, "", "")


def test_another_engine_that_opens_the_format(cli: Any, bundle: Path) -> None:
    result = cli("verify", bundle, "--backend", "reference")
    assert result.code == 0
    assert "reference" in result.out


def test_without_vectors_nothing_is_verified(cli: Any, tmp_path: Path) -> None:
    result = cli("verify", write_bundle(tmp_path / "m.edge", vectors=0))
    assert result.code == 1
    assert result.err.endswith("has no test vectors, so nothing can be verified\n")


def test_an_altered_bundle(cli: Any, bundle: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[content.index(b"ReduceMean")] ^= 1
    bundle.write_bytes(content)
    result = cli("verify", bundle)
    assert result.code == 1
    assert "altered" in result.err


def test_nothing_can_run_here(cli: Any, tmp_path: Path) -> None:
    from edgeinfer.bundle.archive import Bundle

    with Bundle.open(write_bundle(tmp_path / "a.edge")) as opened:
        variant = opened.manifest.variants[0]
    elsewhere = dataclasses.replace(variant, constraints={"os": "ios"})
    bundle = write_bundle(tmp_path / "b.edge", variants=(elsewhere,))
    result = cli("verify", bundle)
    assert result.code == 3
    assert "nothing in it can run here: cpu-onnx-fp32 on onnxruntime: needs os ios" in result.err


def test_a_vector_that_rounding_moves_has_a_wider_budget(cli: Any, tmp_path: Path) -> None:
    spread = {"scores": OutputMetrics(6, 0.02, 0.02, 25.0, 25.0, cosine=0.99)}
    plain = write_bundle(tmp_path / "a.edge", wrong_by=0.25)
    sensitive = write_bundle(tmp_path / "b.edge", wrong_by=0.25, spread=spread)
    assert cli("verify", plain, "-q").code == 1
    assert cli("verify", sensitive, "-q").code == 0
    told = cli("verify", sensitive).out
    assert "pass, budget widened x30 (oracles disagree)" in told
    assert "only within the widened budget: vector 0, output 'scores': largest error 0.25" in told
    assert told.endswith("all within budget, 1 of 1 only within a widened one\n")
    (checked,) = json.loads(cli("verify", sensitive, "--json").out)["checked"]
    assert checked["verdict"] == "pass, budget widened x30 (oracles disagree)"
    assert len(checked["widened"]) > 0


def test_what_run_takes_by_name_only_is_listed(cli: Any, tmp_path: Path) -> None:
    """Whatever ``run --backend`` takes stands in what ``verify`` prints, run or with its reason."""
    bundle = write_bundle(tmp_path / "m.edge")
    told = cli("verify", bundle).out
    why = "made for onnxruntime; --backend reference tries it all the same"
    assert f"cpu-onnx-fp32 on reference: {why}" in told
    ran = cli("run", bundle, "-b", "reference", "-v", bundle_input(tmp_path))
    assert ran.code == 0
    assert "no artifact is made for reference" in ran.out + ran.err
    assert "no artifact is made for" not in cli("run", bundle, "-v", bundle_input(tmp_path)).out
    asked = cli("verify", bundle, "-b", "reference")
    assert asked.code == 0
    assert "cpu-onnx-fp32  reference" in asked.out
    assert "pass, made for onnxruntime" in asked.out
    assert ", made for" not in told


@pytest.mark.parametrize(
    ("target", "verdict"), [("cuda", "numbers pass"), ("rpi5", f"pass on {host().arch}")]
)
def test_nothing_passes_that_ran_elsewhere(
    target: str, verdict: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MachineHost, "is_kind", lambda self, profile: profile.name != "rpi5")
    monkeypatch.setattr("edgeinfer.runtime.pairs.absence", lambda *asked: f"no {asked[1]} here")
    with Bundle.open(write_bundle(tmp_path / "first.edge")) as plain:
        (one, _) = plain.manifest.variants
    variant = dataclasses.replace(one, id=f"{target}-onnx-fp32", target=target)
    bundle = write_bundle(tmp_path / "m.edge", variants=(variant,))
    told = cli("verify", bundle, "-b", "onnxruntime")
    assert told.code == 0
    assert told.out.splitlines()[1].endswith(f"exact  {verdict}")
    absent = f"not run: {variant.id} on onnxruntime (gpu): no gpu here"
    assert (absent in told.out) == (target == "cuda")
    found = json.loads(cli("verify", bundle, "-b", "onnxruntime", "--json").out)
    assert found["checked"][0]["verdict"] == verdict
    assert [r["device"] for r in found["not_run"]] == ["gpu"] * (target == "cuda")
    timed = cli("bench", bundle, "-b", "onnxruntime", "--runs", "2", "--seconds", "0.01").out
    assert f"times are of this machine: {host()}" in timed
    assert (absent in timed) == (target == "cuda")


def bundle_input(folder: Path) -> Path:
    np.savez(folder / "in.npz", image=np.ones((1, 2, 2, 3), np.float32))
    return folder / "in.npz"


def test_values_that_an_artifact_has_no_number_for_are_bad_input(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As integers have none for NaN: exit 1 and the input, not 3 and the engine."""
    from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeExecutable

    def refuse(*_: object) -> None:
        raise InputError("image", "no NaN, for which the file's int8 has no value", "NaN")

    monkeypatch.setattr(OnnxRuntimeExecutable, "run", refuse)
    bundle = write_bundle(tmp_path / "m.edge")
    told = cli("verify", bundle, "-b", "onnxruntime")
    assert told.code == 1
    assert "onnxruntime: input 'image': expected no NaN" in told.out
    timed = cli("bench", bundle, "--runs", "1", "-b", "onnxruntime")
    assert (timed.code, timed.out) == (1, "")
    assert "input 'image': expected no NaN" in timed.err


def test_a_precision_without_a_budget_is_the_bundles_fault(cli: Any, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "m.edge")
    with Bundle.open(bundle) as opened:
        variants = tuple(dataclasses.replace(v, precision="fp7") for v in opened.manifest.variants)
    told = cli("verify", write_bundle(tmp_path / "n.edge", variants=variants), "-b", "onnxruntime")
    assert told.code == 1
    assert "no accuracy budget for precision 'fp7'" in told.out


@pytest.mark.parametrize("order", [("cuda", "cpu", "rpi5"), ("cpu", "rpi5", "cuda")])
def test_targets_that_share_an_artifact_have_verdicts_of_their_own(
    order: tuple[str, ...], cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MachineHost, "is_kind", lambda self, profile: profile.name != "rpi5")
    monkeypatch.setattr("edgeinfer.runtime.pairs.absence", lambda *asked: f"no {asked[1]} here")
    with Bundle.open(write_bundle(tmp_path / "first.edge")) as plain:
        (one, _) = plain.manifest.variants
    shared = tuple(dataclasses.replace(one, id=f"{t}-onnx-fp32", target=t) for t in order)
    told = cli("verify", write_bundle(tmp_path / "m.edge", variants=shared), "-b", "onnxruntime")
    verdicts = {"cuda": "numbers pass", "cpu": "pass", "rpi5": f"pass on {host().arch}"}
    rows = [line.split() for line in told.out.splitlines()[1:4]]
    assert [(row[0], " ".join(row[6:])) for row in rows] == [
        (f"{target}-onnx-fp32", verdicts[target]) for target in order
    ]
    assert "not run: cuda-onnx-fp32 on onnxruntime (gpu): no gpu here" in told.out


def test_what_rounding_alone_decides_is_not_judged(cli: Any, tmp_path: Path) -> None:
    """A spread of which thirty times is any answer at all says neither right nor wrong."""
    spread = {"scores": OutputMetrics(6, 0.5, 0.9, 3.0, 3.0, cosine=0.9)}
    sensitive = write_bundle(tmp_path / "a.edge", wrong_by=0.25, spread=spread, vectors=2)
    told = cli("verify", sensitive, "-b", "onnxruntime")
    assert told.code == 1
    assert "output 'scores': rounding alone decides it on every vector" in told.out
    right = write_bundle(tmp_path / "b.edge", spread=spread, vectors=2)
    (checked,) = json.loads(cli("verify", right, "-b", "onnxruntime", "--json").out)["checked"]
    assert (checked["passed"], checked["undecided"], checked["verdict"]) == (True, [], "pass")
    with Bundle.open(right) as one, Bundle.open(sensitive) as other:
        known, wrong = one.manifest.vectors[0], other.manifest.vectors[1]
        files = {wrong.file.path: other.read(wrong.file)}
    mixed = _with_vectors(tmp_path / "c.edge", right, (known, wrong), files)
    result = cli("verify", mixed, "-b", "onnxruntime")
    assert result.code == 0
    row = result.out.splitlines()[1]
    assert "equal" in row, "the error of the vector that was judged"
    assert row.endswith("pass")
    assert "not judged, as rounding alone decides: vector 1" in result.out


def _with_vectors(path: Path, source: Path, vectors: Any, files: dict[str, bytes]) -> Path:
    """Write a bundle anew with other test vectors, some of whose files have other contents."""
    with BundleWriter(path) as writer, Bundle.open(source) as bundle:
        manifest = bundle.manifest
        for name, record in manifest.files().items():
            writer.add_bytes(name, files.get(name) or bundle.read(record))
        return writer.finish(dataclasses.replace(manifest, vectors=vectors))
