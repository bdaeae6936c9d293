"""Wrong preparation shows in the first layer, without any record of how it should be."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.convert.quantize.calibrate.first_layer import findings, memories
from edgeinfer.errors import UsageError
from tests.convert.quantize.conftest import graph

MEAN = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)


def pictures(count: int, seed: int) -> np.ndarray:
    """Smooth images of 3x16x16 in 0..1."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 1, (count, 3, 4, 4))
    wide = np.kron(coarse, np.ones((4, 4)))
    padded = np.pad(wide, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))
    return np.asarray(windows.mean((-1, -2)))


def trained(prepare: Callable[[np.ndarray], np.ndarray], *, remembers: bool = True) -> ir.Model:
    """A net whose normalisation has seen images that were prepared so."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 3, 3, 3)).astype(np.float32) * 0.3
    windows = np.lib.stride_tricks.sliding_window_view(prepare(pictures(200, 1)), (3, 3), (2, 3))
    seen = np.einsum("nchwij,ocij->onhw", windows, weights).reshape(8, -1)
    middle = "b = BatchNormalization(a, g, s, m, v)" if remembers else "b = Mul(a, a)"
    statistics = {
        "g": np.ones(8, np.float32),
        "s": np.zeros(8, np.float32),
        "m": seen.mean(axis=1).astype(np.float32),
        "v": seen.var(axis=1).astype(np.float32),
    }
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 24]> net (float[1,3,16,16] x)
        => (float[1,4] y) <float[8,3,3,3] w, float[8] g, float[8] s, float[8] m, float[8] v,
        float[8,4] f> {{
          a = Conv(x, w)
          {middle}
          c = Relu(b)
          d = GlobalAveragePool(c)
          e = Flatten(d)
          y = MatMul(e, f)
        }}""",
        w=weights,
        f=rng.normal(size=(8, 4)).astype(np.float32),
        **(statistics if remembers else {}),
    )


PREPARED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "0..1": lambda x: x,
    "-1..1": lambda x: x * 2 - 1,
    "0..255": lambda x: x * 255,
    "imagenet": lambda x: (x - MEAN) / STD,
}


def judged(wanted: str, given: str) -> tuple[str, str]:
    samples = PREPARED[given](pictures(40, 2)).astype(np.float32)
    (found,) = findings(trained(PREPARED[wanted]), lambda: iter([{"x": s[None]} for s in samples]))
    return found.level, found.text


@pytest.mark.sample(6)
@pytest.mark.parametrize("given", PREPARED)
@pytest.mark.parametrize("wanted", ["-1..1", "0..1", "imagenet"])
def test_only_the_right_preparation_is_no_matter(wanted: str, given: str) -> None:
    level, text = judged(wanted, given)
    assert level == ("note" if wanted == given else "refused"), text


def test_the_mistake_is_named() -> None:
    assert "with values of 0..1 brought to -1..1 it would be" in judged("-1..1", "0..1")[1]
    assert "with values divided by 255 it would be" in judged("0..1", "0..255")[1]
    assert "with ImageNet's mean and deviation taken off it" in judged("imagenet", "0..1")[1]


def test_nothing_is_said_where_nothing_is_remembered() -> None:
    model = trained(PREPARED["0..1"], remembers=False)
    assert memories(model) == []
    assert findings(model, lambda: iter([{"x": pictures(1, 0).astype(np.float32)}])) == []


def test_a_conversion_refuses_and_names_it(tmp_path: Path) -> None:
    ir.save(trained(PREPARED["-1..1"]), tmp_path / "m.onnx")
    np.savez(tmp_path / "wrong.npz", x=pictures(80, 3)[:, None].astype(np.float32))

    def export(**more: bool) -> ExportResult:
        return edgeinfer.export(
            tmp_path / "m.onnx",
            tmp_path / "o.edge",
            targets=["onnxruntime"],
            precision="static_wi8_ai8",
            calibration=tmp_path / "wrong.npz",
            **more,  # type: ignore[arg-type]
        )

    with pytest.raises(UsageError, match=r"refused.*0\.\.1 brought to -1\.\.1.*--force"):
        export()
    report = export(force=True).report.to_json()["quantization"]
    assert report["data"]["forced"]
    assert any(f["about"] == "first layer" for f in report["data"]["findings"])
