"""Machine code for small models, beside what was asked for."""

from __future__ import annotations

import platform
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
from edgeinfer.convert.machine_code import small
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.convert.pipeline.plan import plan
from edgeinfer.errors import UnsupportedError, UsageError

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not small._can(), reason="no code is made for this machine"
)

ORDINARY = LowerOptions(recipe="fp32")


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(small.SWITCH, "on")


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
        return small.work(_normal(graph(text, w=weights)))

    assert small.work(_normal(_product(64, 10))) == 64 * 10 + 10
    assert small.work(_normal(_product(64, 10, "n"))) is None
    text = "(float[1,4,8,8] x) => (float[1,6,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    assert conv(text, 6, 4, 3, 3) == 6 * 64 * 4 * 9
    text = "(float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv<group=4, pads=[1,1,1,1]>(x, w) }"
    assert conv(text, 4, 1, 3, 3) == 4 * 64 * 9
    lstm = graph(
        "(float[5,1,8] x) => (float[5,1,1,16] y) { y = LSTM<hidden_size=16>(x, w, r) }",
        w=np.ones((1, 64, 8), np.float32),
        r=np.ones((1, 64, 16), np.float32),
    )
    assert small.work(_normal(lstm)) == 5 * 64 * (8 + 16)


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
        LowerOptions(precision="fp16", recipe="fp16"),
        LowerOptions(recipe="weight_only_wi8_afp32"),
        LowerOptions(recipe="fp32", compress_weights=True),
    ],
)
def test_in_float32_only(options: LowerOptions) -> None:
    assert _formats(_product(64, 10), "cpu", options=options) == []


def test_not_where_there_is_no_tvm(without: Any) -> None:
    without("tvm")
    assert _formats(_product(64, 10), "cpu") == []


def test_not_where_it_is_switched_off_or_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _product(64, 10)
    with monkeypatch.context() as m:
        m.setenv(small.SWITCH, "off")
        assert _formats(one, "cpu") == []
    for name, value in (
        ("shutil.which", lambda _: None),
        ("machine_here", lambda: ""),
    ):
        with monkeypatch.context() as m:
            m.setattr(f"edgeinfer.convert.machine_code.small.{name}", value)
            assert _formats(one, "cpu") == []


def test_a_bundle_has_it(tmp_path: Path) -> None:
    found = export(_product(64, 10), tmp_path / "m.edge", targets=["cpu"]).manifest.variants
    (made,) = [v for v in found if v.format == "tvm"]
    assert (made.id, made.target, made.constraints["arch"]) == ("cpu-tvm-fp32", "cpu", "x86_64")


def test_what_cannot_be_written_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("cpu", [])

    monkeypatch.setattr(TvmTarget, "_write", refuse)
    made = export(_product(64, 10), tmp_path / "m.edge", targets=["cpu"])
    assert [v.format for v in made.manifest.variants if v.format == "tvm"] == []
    lines = [line for change in made.report.changes for line in change.lines]
    assert [x for x in lines if x.startswith("cpu (tvm) was left out")]


# ---- regions


def _jobs(model: Any, *targets: str, options: LowerOptions = ORDINARY) -> list[tuple[Any, ...]]:
    chosen = [profiles.load(t) for t in targets]
    jobs = plan(_normal(model), chosen, options).jobs
    return [(j.format, j.targets, j.spare) for j in jobs if j.format == "onnx_tvm"]


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_REGIONS", "30")
    monkeypatch.setenv(small.SWITCH, "off")


@pytest.mark.usefixtures("regions")
def test_parts_are_tried_beside_the_default_target() -> None:
    assert _jobs(_product(64, 10), "cpu") == [("onnx_tvm", ("cpu",), True)]
    assert _jobs(_product(64, 10), "openvino") == []
    assert _jobs(_product(64, 10), "cpu", options=LowerOptions("fp16", recipe="fp16")) == []


@pytest.mark.usefixtures("regions")
def test_a_model_that_is_code_as_a_whole_needs_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(small.SWITCH, "on")
    assert _jobs(_product(64, 10), "cpu") == []
    assert _formats(_product(64, 10), "cpu") == [("tvm", ("cpu",), True)]
    # One that is too large for it.
    assert _jobs(_product(1000, 500, 25), "cpu") == [("onnx_tvm", ("cpu",), True)]


@pytest.mark.usefixtures("regions")
def test_parts_are_not_tried_where_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for off in ("off", "0"):
        monkeypatch.setenv("EDGEINFER_REGIONS", off)
        assert _jobs(_product(64, 10), "cpu") == []
    monkeypatch.setenv("EDGEINFER_REGIONS", "a while")
    with pytest.raises(UsageError, match="EDGEINFER_REGIONS='a while': expected seconds or off"):
        _jobs(_product(64, 10), "cpu")


@pytest.mark.usefixtures("regions")
def test_weights_of_many_bytes_are_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_BYTES", 1000)
    assert _jobs(_product(64, 10), "cpu") == []
