"""Every engine is told where it stands with a bundle."""

from typing import Any

from edgeinfer.backends.base import Capabilities
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.cli.rejections import explained
from edgeinfer.runtime.select import Candidate, Measured, Pair, Plan, Rejected
from edgeinfer.types import TensorSpec

SPEC = (TensorSpec("x", "float32", (1,)),)


def opens(*formats: str) -> Capabilities:
    return Capabilities(frozenset(formats), frozenset({"float32"}))


def manifest(**engines: tuple[str, str]) -> Manifest:
    variants = tuple(
        Variant(
            id=name,
            target="cpu",
            format=fmt,
            precision="fp32",
            files=(),
            engines=(EngineRequirement(engine),),
        )
        for name, (fmt, engine) in engines.items()
    )
    source = SourceRecord("onnx", "m.onnx", "0" * 64)
    return Manifest(
        name="m", inputs=SPEC, outputs=SPEC, variants=variants, vectors=(), source=source
    )


def rows(*arguments: Any) -> dict[str, tuple[bool | None, str, str]]:
    return {what: (ok, found, fix) for what, ok, found, fix in explained(*arguments)}


def test_every_engine_has_its_reason() -> None:
    fast = Candidate(Pair("a", "one", "cpu"), "1", "1 ms", Measured(median_ms=1))
    slow = Candidate(Pair("b", "two", "cpu"), "1", "3 ms", Measured(median_ms=3))
    plan = Plan((fast, slow), (Rejected("c", "three", "", "needs arch aarch64"),))
    known = {
        "one": opens("onnx"),
        "two": opens("tflite"),
        "three": opens("tvm"),
        "four": opens("onnx"),
        "five": opens("mlprogram"),
    }
    bundle = manifest(a=("onnx", "one"), b=("tflite", "two"), c=("tvm", "three"))
    found = rows(bundle, plan, known)
    assert found["m on one"] == (True, "would run a (cpu)", "")
    assert found["m on one: why"] == (True, "1 ms", "")
    assert found["m on two"] == (
        None,
        "would not be chosen",
        "b on two (cpu): 3 ms, against 1 ms of a on one (cpu)",
    )
    assert found["m on three"] == (None, "cannot run it", "c: needs arch aarch64")
    assert "no artifact of the bundle was made for it" in found["m on four"][2]
    assert found["m on five"][2] == "the bundle has onnx, tflite, tvm, it opens mlprogram"
    assert next(iter(found)) == "m on one"


def test_nothing_that_can_run_is_told_too() -> None:
    plan = Plan((), (Rejected("a", "one", "", "not installed"),))
    found = rows(manifest(a=("onnx", "one")), plan, {"one": opens("onnx")})
    assert found == {"m on one": (None, "cannot run it", "a: not installed")}


def test_what_is_only_evaluated_does_not_run() -> None:
    evaluated = Candidate(Pair("a", "judge", "cpu"), "1", "order of preference", None)
    run = Candidate(Pair("b", "one", "cpu"), "1", "order of preference", None)
    judge = Capabilities(frozenset({"mlprogram"}), frozenset({"float32"}), keeps_time=False)
    known = {"judge": judge, "one": opens("onnx")}
    bundle = manifest(a=("mlprogram", "judge"), b=("onnx", "one"))
    (ok, found, fix) = rows(bundle, Plan((evaluated,), ()), known)["m on judge"]
    assert (ok, found) == (None, "would evaluate a (cpu)")
    assert "no engine to use" in fix
    both = rows(bundle, Plan((run, evaluated), ()), known)
    assert [what for what, row in both.items() if row[0]] == ["m on one", "m on one: why"]
