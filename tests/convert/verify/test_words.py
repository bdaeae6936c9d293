"""What the page says in the user's words."""

import re
from typing import Any

import pytest

from edgeinfer.convert import passes
from edgeinfer.convert.verify import words
from edgeinfer.metrics import verdict_on


def variant(ident: str, ms: float | None = None, verdict: str = "pass", **more: Any) -> Any:
    latency = {} if ms is None else {"0": ms, "1": ms * 2}
    metrics = {"max_rel": 1.3e-6, "mismatches": 0}
    engine = {
        **{"backend": "litert", "version": "2.3", "device": "cpu", "stands_in": False},
        **{"latency_ms": latency, "outputs": [{"metrics": metrics}], "verdict": verdict},
    }
    return {
        **{"id": ident, "precision": "fp32", "size_bytes": 10, "verdict": verdict},
        **{"passed": verdict == "pass", "is_of_target": ms is not None, "engines": [engine]},
        **more,
    }


def advice(*variants: Any, **targets: list[str]) -> list[str]:
    return words.advice({"variants": variants, "targets": targets})


def test_every_pass_has_words() -> None:
    names = {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(one).__name__).lower()
        for stage in passes.NORMALISE
        for one in stage.passes
    }
    assert names - set(words.STAGES) == set()


def test_what_a_user_should_know_comes_first() -> None:
    report: dict[str, Any] = {
        "changes": [{"stage": s, "lines": []} for s in ("fold_pad", "mystery", "targets")]
    }
    assert [c["title"] for c in words.changes(report)] == [
        *("About the targets", "Padding moved into the operator behind it", "mystery")
    ]


def test_the_fastest_is_shipped_where_times_count() -> None:
    told = advice(
        variant("cpu-a-fp32", 3.0), variant("cpu-b-fp32", 2.0), cpu=["cpu-a-fp32", "cpu-b-fp32"]
    )
    assert told[0].startswith("cpu: ship cpu-b-fp32, 2 ms here, or the whole bundle")


def test_without_times_the_device_decides() -> None:
    ids = ["rpi5-tflite-fp32", "rpi5-onnx-fp32"]
    (told,) = advice(*map(variant, ids), rpi5=ids)
    assert told.startswith(
        "rpi5: ship the bundle with rpi5-tflite-fp32 and rpi5-onnx-fp32: none was"
    )


def test_targets_that_share_an_artifact_are_both_told() -> None:
    one = "rpi5-tflite-fp32"
    told = advice(variant(one), rpi5=[one], android=[one])
    unseen = "it has not run on such a device yet"
    for line, start in zip(
        told, (f"rpi5: ship {one}", "android: ship android-tflite-fp32"), strict=True
    ):
        assert line.startswith(f"{start}; {unseen}")
    assert advice(variant(one, 2.0), rpi5=[one]) == [f"rpi5: ship {one}, 2 ms here."]


def test_what_was_not_run_is_not_shipped_unseen() -> None:
    (told,) = advice(variant("jetson-onnx-fp16", verdict="not run"), jetson=["jetson-onnx-fp16"])
    assert "once edgeinfer verify has passed on the device" in told
    (told,) = advice(variant("cpu-a-fp32", verdict="fail"), cpu=["cpu-a-fp32"])
    assert told == "cpu: nothing; the numbers of no variant are right."


def test_a_row_has_a_time_only_where_it_says_something() -> None:
    here, there = variant("cpu-a-fp32", 2.0), variant("rpi5-a-fp32")
    rows = words.comparison({"variants": [here, there], "machine": {"arch": "x86_64"}})
    assert [(r["latency_ms"], r["error"], r["engine"]) for r in rows] == [
        (2.0, "1.3e-06", "litert 2.3"),
        (None, "1.3e-06", "litert 2.3"),
    ]


@pytest.mark.parametrize(
    ("verdict", "stands_in", "is_of_target", "shown"),
    [
        ("pass", False, True, "pass"),
        ("pass", False, False, "pass on x86_64"),
        ("pass, widened", True, False, "numbers pass, widened"),
        ("fail", True, True, "numbers fail"),
        ("not run", True, False, "not run"),
    ],
)
def test_a_verdict_says_where_it_was_reached(
    verdict: str, stands_in: bool, is_of_target: bool, shown: str
) -> None:
    found = verdict_on(verdict, stands_in=stands_in, is_of_target=is_of_target, arch="x86_64")
    assert found == shown


def test_what_did_not_run_where_it_is_meant_to_is_counted_apart() -> None:
    here, elsewhere = variant("cpu-onnx-fp32", 1.0), variant("rpi5-onnx-fp32")
    stood_in = variant("cuda-onnx-fp32", 1.0, "not run", passed=True)
    failed = variant("cpu-tflite-fp32", 1.0, "fail")
    every = {"variants": [here, elsewhere, stood_in, failed]}
    assert words.right_numbers(every) == (1, 2)
