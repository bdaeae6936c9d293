"""The report is JSON that programs read and one page that is safe to open and complete."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Coverage
from edgeinfer.backends.operators import Operator, OperatorProfile
from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.verify import (
    Answer,
    Change,
    EngineResult,
    Expected,
    Finding,
    OutputResult,
    Report,
    VariantResult,
    Vector,
)
from edgeinfer.convert.verify.layer_table import NodeError, NodeErrors, table
from edgeinfer.convert.verify.page import (
    db_text,
    number_text,
    render,
    shape_text,
    size_text,
)
from edgeinfer.metrics import BUDGETS, OutputMetrics, compare
from edgeinfer.types import TensorSpec

TIMER = '{"1": "1_minute_timer", "2": "10_minute_timer"}'
ATTACK = "</td><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
VOID = {"meta", "br", "img", "link", "input", "hr"}


def report(name: str = TIMER) -> Report:
    x = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)
    good = OutputResult(name, compare(x, x + np.float32(1e-6)), note=f"note {name}")
    bad = OutputResult(name, compare(x, x * 2), (f"breach of {name}",), 0)
    problem = OutputResult(name, OutputMetrics(8, problem=f"shape {name}"), ("shape",), 0)
    ints = OutputResult(name, OutputMetrics(8, mismatches=3), ("3 of 8",), 0)
    fp32, int8 = BUDGETS["fp32"], BUDGETS["static_wi8_ai8"]
    variants = [
        VariantResult("cpu-onnx-fp32", "fp32", fp32, (_engine(good),), 2_000_000, {"Conv": 3}),
        VariantResult(
            "cpu-onnx-int8",
            "static_wi8_ai8",
            int8,
            (_engine(bad, problem, ints),),
            600_000,
            {},
            (name,),
        ),
        VariantResult(
            "openvino-fp32", "fp32", fp32, (EngineResult("openvino", None, skipped=name),), 10, {}
        ),
    ]
    answer = Answer({name: x}, "onnxruntime", ("onnxruntime", "float64"), {name: good.metrics})
    lonely = replace(answer, agreed=("onnxruntime",), spread={}, note=name)
    return Report(
        name=name,
        source=SourceRecord("onnx", name, "ab" * 32),
        inputs=(TensorSpec(name, "float32", ("N", 8)), TensorSpec("free", "int64", None)),
        outputs=(TensorSpec(name, "float32", (None, 8)), TensorSpec("s", "bool", ())),
        source_bytes=2_000_000,
        changes=[Change("fold_constants", (f"folded {name}",)), Change("b", ("x",) * 20)],
        ops_before={"Conv": 3, "Identity": 140},
        ops_after={"Conv": 3},
        vectors=[Vector({name: x}, "synthetic:natural"), Vector({name: x}, name, True, note=name)],
        expected=Expected((answer, lonely), (f"one oracle only: {name}",)),
        variants=variants,
        findings={
            "cpu-onnx-int8": Finding(name, "Conv", name, (name,), breaches=(name,), note=name)
        },
        layers={name: _layers(name)},
        tools={"onnx": "1.23"},
        seconds={"read": 0.5, "lower": 1.25},
    )


def _layers(name: str) -> dict[str, Any]:
    nodes = (
        NodeError(name, "Conv", ("c",), 98.6, 1e-6),
        NodeError("relu", "Relu", ("r",), math.inf, 0.0),
        NodeError("shape", "Shape", ("s",), None, None),
    )
    steps = (
        Operator(name, "Conv", "CPU", 30.0, nodes=(name, "relu")),
        Operator("reorder", "Reorder", "CPU", 10.0, role="reorder"),
    )
    profile = OperatorProfile(name, steps, 20, 50.0, 45.0, note=name)
    return table(NodeErrors("onnxruntime", 1, nodes), profile, "")


_TAKEN = Coverage("XNNPACK", 12, 2, ("GATHER", "GATHER", "SIN"))


def _engine(*outputs: OutputResult) -> EngineResult:
    problems = tuple(f"problem {o.name}" for o in outputs[1:])
    return EngineResult(
        "onnxruntime", "1.32.0", outputs, "", problems, (), {0: 1.5, 1: 2.5}, _TAKEN
    )


class Page(HTMLParser):
    """Collects what a browser would see; fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_what_the_fast_part_of_an_engine_takes_is_told() -> None:
    whole = report()
    found = whole.to_json()["variants"][0]["engines"][0]["coverage"]
    text = "XNNPACK takes 9 of 12 operators in 2 partitions; not: GATHER 2, SIN 1"
    left = {"GATHER": 2, "SIN": 1}
    assert found == {
        "unit": "XNNPACK",
        "operators": 12,
        "partitions": 2,
        "left": left,
        "text": text,
    }
    assert any(text in line for line in Page(whole.to_html()).text)


def test_verdict() -> None:
    whole = report()
    assert not whole.passed
    whole.variants = [whole.variants[0], whole.variants[2]]
    assert whole.passed
    whole.variants = [whole.variants[1]]
    assert not whole.passed
    whole.variants = []
    assert not whole.passed


def test_json_is_strict_and_complete() -> None:
    data: dict[str, Any] = json.loads(json.dumps(report().to_json(), allow_nan=False))
    assert data["schema"] == 1
    assert data["passed"] is False
    assert data["inputs"][0] == {"name": TIMER, "dtype": "float32", "shape": ["N", 8]}
    assert data["inputs"][1]["shape"] is None
    assert data["oracles"]["confirmed"] == 1
    assert data["oracles"]["asked"] == 2
    assert [v["verdict"] for v in data["variants"]] == ["pass", "fail", "not run"]
    assert data["vectors"][1]["edge"] is True
    assert data["vectors"][0]["shapes"] == {TIMER: [1, 8]}
    assert data["findings"]["cpu-onnx-int8"]["op"] == "Conv"
    assert data["seconds"] == {"read": 0.5, "lower": 1.25}


def test_json_before_the_oracles_were_asked() -> None:
    early = replace(report(), expected=None, variants=[])
    assert early.to_json()["oracles"] == {"confirmed": 0, "asked": 0, "notes": []}
    assert "No variant was made." in early.to_html()


@pytest.mark.parametrize("name", [TIMER, ATTACK, "Ünïcödé 名前", "{{ 7 * 7 }}", "a" * 400])
def test_names_of_strangers_are_text_everywhere(name: str) -> None:
    page = Page(report(name).to_html())
    assert not {t for t, _ in page.tags} & {"script", "img", "iframe", "link", "object"}
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    text = "".join(page.text)
    assert text.count(name) > 10
    plain = report("y").to_html()
    assert len(page.tags) == len(Page(plain).tags), "a name adds no tag"


def test_nothing_is_loaded_from_elsewhere() -> None:
    html = report().to_html()
    assert not re.search(r"(\bsrc=|\bhref=|url\(|@import|https?:)", html)
    policy = next(a for t, a in Page(html).tags if a.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_both_themes_and_print_are_styled() -> None:
    html = report().to_html()
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def test_what_a_reader_looks_for_is_there() -> None:
    text = " ".join(" ".join(Page(report("y").to_html()).text).split())
    for words in (
        "1 of 3",
        "1 of 2",
        "143 → 3",
        "2.0 MB",
        "1.5 ms with default threads",
        "breach of y",
        "shape y",
        "3 of 8 elements differ",
        "not run: y",
        "First wrong result: Conv y",
        "one oracle only: y",
        "folded y",
        "onnxruntime, float64",
        "N x 8",
        "any rank",
        "scalar",
        "1.75 s",
    ):
        assert words in text, words


def test_the_next_steps_to_the_graph_are_named() -> None:
    html = report().to_html()
    assert "in Netron" in html
    assert "edgeinfer bench BUNDLE --ops" in html


def test_each_layer_has_its_error_and_its_time() -> None:
    text = " ".join(" ".join(Page(report().to_html()).text).split())
    assert "3 layers, errors in onnxruntime (cpu) on vector 1, times by" in text
    assert f"{TIMER} Conv 99 dB 1e-06 30.0 75.0%" in text
    assert f"relu Relu equal 0 in {TIMER}" in text
    assert "shape Shape \u2013 \u2013" in text
    assert "the engine's own: 1 of kind reorder, 10.0 µs" in text
    assert "convert with --layers" not in text


def test_a_page_without_layers_says_how_to_have_them() -> None:
    made = report()
    made.layers = {}
    text = " ".join(Page(made.to_html()).text)
    assert "Layers" not in text
    assert "--layers" in text


def test_bars_stay_within_their_track() -> None:
    widths = re.findall(r"(?:width|left): ([-0-9.]+)%", report().to_html())
    assert widths
    assert all(0 <= float(w) <= 100 for w in widths)


def test_numbers_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 4_700_000, 3e9)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "4.7 MB",
        "3.0 GB",
    ]
    assert [number_text(n) for n in (None, 0.0, 1.5e-7, 12.345)] == ["∞", "0", "1.5e-07", "12.3"]
    assert [db_text(n) for n in (None, 71.6)] == ["equal", "72 dB"]
    assert shape_text([1, "N", None]) == "1 x N x ?"


def test_the_page_says_what_is_machine_code() -> None:
    made = report()
    text = "machine code: elsewhere it runs only of a trusted key"
    assert text not in render(made.to_json())
    made.variants[0] = replace(made.variants[0], level="native")
    data = made.to_json()
    assert [v["level"] for v in data["variants"]] == ["native", "data", "data"]
    assert render(data).count(text) == 1


def test_the_page_claims_what_its_table_claims() -> None:
    whole = report("y")
    stood_in = replace(whole.variants[0].engines[0], stands_in=True)
    whole.variants = [replace(whole.variants[0], engines=(stood_in,))]
    text = " ".join(" ".join(Page(whole.to_html()).text).split())
    assert "Variants with right numbers 0 of 1 1 more on another unit or machine only" in text
