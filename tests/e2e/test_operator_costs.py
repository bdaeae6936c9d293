"""Every engine of a converted bundle says what its operators cost."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import edgeinfer
from edgeinfer.backends import registry
from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as commands

GRAPH = """(float[N, 4, 16, 16] x) => (float[N, 16, 16, 4] y)
<float[4, 4, 3, 3] w = {%s}>
{ a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a) y = Transpose <perm = [0, 2, 3, 1]> (b) }"""


@pytest.fixture(
    scope="module",
    params=["onnxruntime", pytest.param("every engine", marks=pytest.mark.slow)],
)
def bundle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("ops")
    graph = GRAPH % ", ".join(f"{i % 7 - 3}.0" for i in range(4 * 4 * 9))
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {graph}')
    onnx.save(model, folder / "model.onnx")
    wanted = ("onnxruntime", "openvino", "rpi5", "tvm-x86-64-v3")
    targets = [t for t in wanted if request.param in (t, "every engine") and _can(t)]
    edgeinfer.export(folder / "model.onnx", folder / "ops.edge", targets=tuple(targets))
    return folder / "ops.edge"


def _can(target: str) -> bool:
    engine = {"rpi5": "litert", "tvm-x86-64-v3": "tvm"}.get(target, target)
    return registry.get(engine).probe().available


def test_bench_ops(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    arguments = ["bench", str(bundle), "--ops", "--threads", "1", "--runs", "3", "--json"]
    assert guarded(commands, arguments) == 0
    data = json.loads(capsys.readouterr().out)["ops"]
    profiles: dict[str, Any] = {p["backend"]: p for p in data["profiles"]}
    assert data["silent"] == []
    for name, profile in profiles.items():
        assert profile["operators"], name
        if profile["tool"]:
            assert profile["timed_us"] == pytest.approx(sum(o["us"] for o in profile["operators"]))
            assert sum(o["share"] for o in profile["operators"]) == pytest.approx(1)
        else:
            assert "no profiler" in profile["note"] or "no clock" in profile["note"]
            assert all(o["us"] is None for o in profile["operators"])
        assert profile["plain_us"] > 0
    assert profiles["onnxruntime"]["tool"] == "ONNX Runtime's profiler"
    if "openvino" in profiles:
        assert any(o["kind"] == "Convolution" for o in profiles["openvino"]["operators"])
    if "litert" in profiles:
        assert any(o["unit"] == "XNNPACK" for o in profiles["litert"]["operators"])
    if "tvm" in profiles:
        assert {o["role"] for o in profiles["tvm"]["operators"]} >= {"compute", "manage"}


@pytest.mark.parametrize("isolate", [False, True])
def test_report_of_a_session(bundle: Path, isolate: bool) -> None:
    with edgeinfer.load(bundle, backend="onnxruntime", isolate=isolate) as session:
        report = session.report(ops=True)
    assert report.operators is not None
    assert any(op.kind == "Conv" for op in report.operators.operators)
    assert report.placement is None
    json.dumps(report.to_json(), allow_nan=False)
