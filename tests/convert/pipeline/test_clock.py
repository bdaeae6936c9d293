"""The stages that a user is told: counted once, and the total stays what it was."""

import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.clock import Stages

NET = """<ir_version: 10, opset_import: ["": 21]> net (float[N,4] x) => (float[N,4] y)
    <float[4] w = {1.5, -2.0, 0.25, 3.0}> { a = Mul(x, w) y = Add(a, x) }"""


@pytest.mark.parametrize(
    "asked",
    [
        {"targets": ["cpu", "rpi5"]},
        {"targets": ["onnxruntime", "rpi5"], "also": ["fp16"]},
        {"targets": ["cpu"], "also": ["bf16", "fp16"], "layers": True},
    ],
)
def test_the_total_is_told_once(tmp_path: Path, asked: dict[str, Any]) -> None:
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    told: list[str] = []
    edgeinfer.export(
        *(tmp_path / "net.onnx", tmp_path / "net.edge"),
        progress=lambda what, _: told.append(what),
        **asked,
    )
    found = [re.match(r"stage (\d+) of (\d+): ", what) for what in told]
    counted = [(int(m[1]), int(m[2])) for m in found if m]
    assert len({total for _, total in counted}) == 1
    numbers = [number for number, _ in counted]
    assert numbers == sorted(numbers)
    assert counted[-1][0] == counted[-1][1]
    assert told[-1].endswith("write the result")


def test_what_is_not_done_is_skipped() -> None:
    stages = Stages(number=4, total=12, after=1)
    stages.expect(3)
    assert (stages.number, stages.total) == (8, 12)


def test_what_was_not_foreseen_adds_to_the_total() -> None:
    stages = Stages(number=10, total=12, after=1)
    stages.expect(4)
    assert (stages.number, stages.total) == (10, 15)


def test_a_conversion_that_ends_early_leaves_the_rest_its_numbers() -> None:
    whole, part = Stages(number=5, total=12, after=7), Stages(number=6, total=12, after=1)
    whole.go_on_behind(part)
    assert (whole.number, whole.total, whole.after) == (11, 12, 1)
