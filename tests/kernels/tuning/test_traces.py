"""Orders in records of anybody are data: what the search writes, and nothing that is code."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.tuning import search, traces, workload
from tests.kernels.tuning.test_search import STRIDED

RECORDS = Path(workload.__file__).parents[1] / "records"
BLOCK = ["GetSBlock", [], ["conv", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3", "l4", "l5", "l6"]]


def annotated(key: str, value: Any) -> list[Any]:
    return [[BLOCK, LOOPS, ["Annotate", ["l1", value], [key], []]], []]


@pytest.mark.parametrize(
    "trace",
    [
        annotated("pragma_import_llvm", '"module asm \\"nop\\""'),
        annotated("pragma_import_c", '"int x;"'),
        annotated("pragma_debug_skip_region", 1),
        annotated("meta_schedule.tiling_structure", '"anything"'),
        annotated("pragma_auto_unroll_max_step", 1 << 30),
        annotated("pragma_unroll_explicit", {"a": 1}),
        [[BLOCK, LOOPS, ["Tensorize", ["l1", "b0"], ["intrin", True], []]], []],
        [[BLOCK, ["CacheRead", ["b0", []], [0, "texture"], ["b1"]]], []],
        [[BLOCK, ["UnsafeSetDType", ["b0"], [0, "float16"], []]], []],
        [[BLOCK, LOOPS, ["Bind", ["l1"], ["pipeline"], []]], []],
        [[["GetSBlock", [], ["a b", "main"], ["b0"]]], []],
        [[BLOCK], [[0, "code"]]],
        [[BLOCK] * 10_001, []],
        [[["GetLoops"]], []],
        {"steps": []}.keys(),
        [],
    ],
)
def test_what_no_search_writes_is_refused(trace: Any) -> None:
    with pytest.raises(ValueError, match=r"the order|its decisions|a step of the order"):
        traces.check(trace)


def test_a_program_among_the_annotations_is_not_compiled() -> None:
    function = workload.load(STRIDED)
    with pytest.raises(ValueError, match=r"pragma_import_llvm.*no search of ours writes"):
        workload.order(function, annotated("pragma_import_llvm", '"x"'))
    assert workload.order(function, annotated("pragma_auto_unroll_max_step", 16)) is not None


@pytest.mark.parametrize("name", ["x86-64-v3", "sm_90"])
def test_what_the_search_writes_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_POOL", 12)
    made = search.ScheduleSearch()
    made.setup(machine(name).description(4), 1)
    made.open(STRIDED, True, [])
    pool = made._pool()
    assert len(pool) > 5
    for candidate in pool:
        traces.check(candidate.json)


def test_what_the_package_brings_is_taken() -> None:
    lines = [json.loads(line) for f in RECORDS.rglob("*.jsonl") for line in f.open()]
    found = [line["trace"] for line in lines if isinstance(line.get("trace"), list)]
    assert found
    for trace in found:
        traces.check(trace)
