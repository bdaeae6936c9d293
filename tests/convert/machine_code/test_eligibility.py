"""Which machine code is made where it is requested."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from edgeinfer import profiles
from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert.lower import LowerOptions
from edgeinfer.convert.lower.regions.setting import machine_here
from edgeinfer.convert.lower.tvm.target import TvmTarget
from edgeinfer.convert.machine_code import eligibility
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.convert.pipeline.plan import plan
from edgeinfer.convert.pipeline.request import check_request
from edgeinfer.errors import NotAvailableError, UnsupportedError, UsageError

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not machine_here() or shutil.which("gcc") is None,
    reason="no code is made for this machine",
)

MODEL, PARTS = ("model",), ("regions",)
ORDINARY = LowerOptions(recipe="fp32", machine_code=MODEL)
REGIONS = LowerOptions(recipe="fp32", machine_code=PARTS)


def _product(k: int, n: int, batch: int | str = 1) -> Any:
    text = f"(float[{batch},{k}] x) => (float[{batch},{n}] y) {{ a = Gemm(x, w, b) y = Relu(a) }}"
    rng = np.random.default_rng(0)
    return graph(
        text,
        w=rng.standard_normal((k, n)).astype(np.float32),
        b=rng.standard_normal(n).astype(np.float32),
    )


def _normal(model: Any) -> ir.Model:
    return normalise(ir.from_proto(model)).model


def _formats(model: Any, *targets: str, options: LowerOptions = ORDINARY) -> list[tuple[Any, ...]]:
    chosen = [profiles.load(t) for t in targets]
    jobs = plan(_normal(model), chosen, options).jobs
    return [(j.format, j.targets, j.spare) for j in jobs if j.format == "tvm"]


def test_the_work_of_operators() -> None:
    def conv(text: str, *w: int) -> int | None:
        weights = np.ones(w, np.float32)
        return eligibility.work(_normal(graph(text, w=weights)))

    assert eligibility.work(_normal(_product(64, 10))) == 64 * 10 + 10
    assert eligibility.work(_normal(_product(64, 10, "n"))) is None
    text = "(float[1,4,8,8] x) => (float[1,6,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    assert conv(text, 6, 4, 3, 3) == 6 * 64 * 4 * 9
    text = "(float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv<group=4, pads=[1,1,1,1]>(x, w) }"
    assert conv(text, 4, 1, 3, 3) == 4 * 64 * 9
    lstm = graph(
        "(float[5,1,8] x) => (float[5,1,1,16] y) { y = LSTM<hidden_size=16>(x, w, r) }",
        w=np.ones((1, 64, 8), np.float32),
        r=np.ones((1, 64, 16), np.float32),
    )
    assert eligibility.work(_normal(lstm)) == 5 * 64 * (8 + 16)


def test_small_models_for_this_machine_only() -> None:
    one = _product(64, 10)
    assert _formats(one, "cpu") == [("tvm", ("cpu",), True)]
    assert _formats(one, "onnxruntime") == []
    assert _formats(_product(1000, 500, 25), "cpu") == []
    # Few multiplications, many weights.
    assert _formats(_product(2000, 1200), "cpu") == []
    assert _formats(_product(64, 10, "n"), "cpu") == []


def test_one_that_is_asked_for_is_shared() -> None:
    target = f"tvm-{machine_here()}"
    assert _formats(_product(64, 10), "cpu", target) == [("tvm", (target, "cpu"), False)]


@pytest.mark.parametrize(
    "options",
    [
        LowerOptions(precision="fp16", recipe="fp16", machine_code=MODEL),
        LowerOptions(recipe="weight_only_wi8_afp32", machine_code=MODEL),
        LowerOptions(recipe="fp32", compress_weights=True, machine_code=MODEL),
    ],
)
def test_in_float32_only(options: LowerOptions) -> None:
    assert _formats(_product(64, 10), "cpu", options=options) == []


def test_none_is_made_unless_it_is_asked_for() -> None:
    assert _formats(_product(64, 10), "cpu", options=LowerOptions(recipe="fp32")) == []
    assert _jobs(_product(64, 10), "cpu", options=LowerOptions(recipe="fp32")) == []


def test_what_is_missing_is_an_error(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ConvertOptions("m.onnx", machine_code=["all"])
    assert check_request(replace(asked, machine_code=())).machine_code == ()
    assert check_request(asked).machine_code == ("model", "regions", "functions")
    with monkeypatch.context() as m:
        m.setattr("shutil.which", lambda _: None)
        with pytest.raises(NotAvailableError, match="machine code needs gcc: apt-get install gcc"):
            check_request(asked)
    with monkeypatch.context() as m:
        m.setattr("edgeinfer.convert.machine_code.eligibility.machine_here", lambda: "")
        with pytest.raises(NotAvailableError, match="not here"):
            check_request(asked)
    without("tvm")
    with pytest.raises(NotAvailableError, match=r"machine code needs TVM: pip install"):
        check_request(asked)


def test_a_kind_that_no_target_has_is_refused() -> None:
    for kind, targets in (("model", ["openvino"]), ("functions", ["ios"]), ("all", ["android"])):
        with pytest.raises(UsageError, match=f"machine code '{kind}': not made for {targets[0]}"):
            check_request(ConvertOptions("m.onnx", targets=targets, machine_code=[kind]))
    with pytest.raises(UsageError, match="'some' is unknown; known: model, regions"):
        check_request(ConvertOptions("m.onnx", machine_code=["some"]))


def test_why_none_is_made_is_in_the_report() -> None:
    both = LowerOptions(recipe="fp32", machine_code=("model", "regions"))
    notes = plan(_normal(_product(1000, 500, 25)), [profiles.load("cpu")], both).notes
    assert list(notes) == [
        "machine code of the whole model was not made: the model has more than 10 million "
        "multiplications or 8 MiB of weights"
    ]


def test_a_bundle_has_it(tmp_path: Path) -> None:
    found = export(
        _product(64, 10), tmp_path / "m.edge", targets=["cpu"], machine_code=["model"]
    ).manifest.variants
    (made,) = [v for v in found if v.format == "tvm"]
    assert (made.id, made.target, made.constraints["arch"]) == ("cpu-tvm-fp32", "cpu", "x86_64")


def test_what_cannot_be_written_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("cpu", [])

    monkeypatch.setattr(TvmTarget, "_write", refuse)
    made = export(_product(64, 10), tmp_path / "m.edge", targets=["cpu"], machine_code=["model"])
    assert [v.format for v in made.manifest.variants if v.format == "tvm"] == []
    lines = [line for change in made.report.changes for line in change.lines]
    assert [x for x in lines if x.startswith("cpu (tvm) was left out")]


# ---- regions


def _jobs(model: Any, *targets: str, options: LowerOptions = REGIONS) -> list[tuple[Any, ...]]:
    chosen = [profiles.load(t) for t in targets]
    jobs = plan(_normal(model), chosen, options).jobs
    return [(j.format, j.targets, j.spare) for j in jobs if j.format == "onnx_tvm"]


def test_parts_are_tried_for_this_machine() -> None:
    assert _jobs(_product(64, 10), "cpu") == [("onnx_tvm", ("cpu",), True)]
    assert _jobs(_product(64, 10), "openvino") == []
    half = LowerOptions("fp16", recipe="fp16", machine_code=PARTS)
    assert _jobs(_product(64, 10), "cpu", options=half) == []


def test_a_model_that_is_code_as_a_whole_needs_no_parts() -> None:
    both = LowerOptions(recipe="fp32", machine_code=("model", "regions"))
    assert _jobs(_product(64, 10), "cpu", options=both) == []
    assert _formats(_product(64, 10), "cpu", options=both) == [("tvm", ("cpu",), True)]
    # One that is too large for it.
    assert _jobs(_product(1000, 500, 25), "cpu", options=both) == [("onnx_tvm", ("cpu",), True)]


def test_weights_of_many_bytes_are_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eligibility, "MOST_BYTES", 1000)
    assert _jobs(_product(64, 10), "cpu") == []
