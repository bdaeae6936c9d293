from dataclasses import replace
from typing import Any

import pytest

from edgeinfer.backends.base import Device, DeviceKind, Probe
from edgeinfer.bundle.manifest import EngineRequirement, FileRecord, Variant
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.profiles.schema import Chip, Profile
from edgeinfer.runtime.select import Measured, Pair, Plan, distinct, rank

HERE = Fingerprint("linux", "x86_64", "some cpu", ("avx2", "fma"), 2, 4096)


def variant(ident: str, *engines: str, size: int = 10, **fields: Any) -> Variant:
    file = FileRecord(f"variants/{ident}/m", "0" * 64, size)
    required = tuple(EngineRequirement(*e.split(" ")) for e in engines)
    return Variant(ident, "cpu", "onnx", "fp32", (file,), required, **fields)


def probes(**found: str) -> dict[str, Probe]:
    """``ort="1.23 gpu cpu"``; a leading dash gives the reason why not."""
    result = {}
    for name, text in found.items():
        if text.startswith("-"):
            result[name] = Probe(name, None, reason=text[1:])
            continue
        version, *kinds = text.split(" ")
        devices = tuple(Device(kind, kind) for kind in kinds)  # type: ignore[arg-type]
        result[name] = Probe(name, version, devices)
    return result


def order(plan: Plan) -> list[str]:
    return [str(c.pair) for c in plan.candidates]


def reasons(plan: Plan) -> list[str]:
    return [str(r) for r in plan.rejected]


def measured(*pairs: tuple[str, str, DeviceKind, float]) -> dict[Pair, Measured]:
    return {
        Pair(v, b, d): Measured(ms, ms * 1.5, ms * 2, 1e3 / ms, 100 / ms, 9)
        for v, b, d, ms in pairs
    }


def test_without_measurements_the_order_of_preference_counts() -> None:
    variants = [variant("a", "ort", "ov"), variant("b", "ov")]
    found = probes(ort="1.23 cpu", ov="2026.4 cpu")
    assert order(rank(variants, found, HERE)) == [
        "a on ort (cpu)",
        "b on ov (cpu)",
        "a on ov (cpu)",
    ]
    profile = Profile("p", "P", ("linux",), (), ("onnx",), ("ov", "ort"), ("fp32",))
    plan = rank(variants, found, HERE, profile=profile)
    assert order(plan) == ["b on ov (cpu)", "a on ov (cpu)", "a on ort (cpu)"]
    assert plan.best.reason == "not measured here; order of preference"


def test_accelerators_go_before_cpus_until_measured() -> None:
    plan = rank([variant("a", "ort", "ov")], probes(ort="1.23 gpu cpu", ov="1 cpu"), HERE)
    assert order(plan) == ["a on ort (gpu)", "a on ov (cpu)", "a on ort (cpu)"] or order(plan) == [
        "a on ort (gpu)",
        "a on ort (cpu)",
        "a on ov (cpu)",
    ]
    assert order(plan)[0] == "a on ort (gpu)"


def test_integers_go_last_where_the_chip_does_not_multiply_them_faster() -> None:
    float16 = replace(variant("half", "cml"), precision="fp16")
    variants = [replace(variant("integers", "cml"), precision="static_wi8_ai8+fp16"), float16]
    found = probes(cml="9.0 npu")
    old, new = Chip("M2", ("fp16",), "page"), Chip("M4", ("fp16", "int8"), "page")
    for chip, first in ((old, "half"), (new, "integers"), (None, "integers")):
        assert order(rank(variants, found, HERE, chip=chip))[0] == f"{first} on cml (npu)"


def test_a_figure_from_the_conversion_breaks_ties() -> None:
    variants = [variant("a", "ort", latency_ms=3.0), variant("b", "ort", latency_ms=2.0)]
    assert order(rank(variants, probes(ort="1 cpu"), HERE))[0] == "b on ort (cpu)"


FITS = "install one that fits, or convert the model again for this one"
UNKNOWN = "this version of edgeinfer does not know:"
AGAIN = "another version made it: convert the model again, or update edgeinfer here"


@pytest.mark.parametrize(
    ("policy", "first", "reason"),
    [
        ("latency", "b", "best latency of 2: 1 ms median, 1.5 ms p95"),
        ("throughput", "b", "best throughput of 2: 1000 runs a second"),
        ("energy", "b", "best energy of 2: 2 ms of processor time a run"),
        ("memory", "a", "best memory of 2: 50 MB"),
    ],
)
def test_measurements_decide_by_policy(policy: Any, first: str, reason: str) -> None:
    history = measured(("a", "ort", "cpu", 2.0), ("b", "ort", "cpu", 1.0))
    variants = [variant("a", "ort"), variant("b", "ort")]
    plan = rank(variants, probes(ort="1 cpu"), HERE, policy=policy, history=history)
    assert plan.best.pair.variant == first
    assert plan.best.reason == reason


def test_the_smallest_goes_first_for_memory_before_it_was_measured() -> None:
    variants = [variant("a", "ort", size=10), variant("b", "ort", size=5)]
    plan = rank(variants, probes(ort="1 cpu"), HERE, policy="memory")
    assert plan.best.pair.variant == "b"
    assert plan.best.reason == "not measured here; 5 bytes of files"


def test_what_was_measured_goes_before_what_was_not() -> None:
    history = measured(("b", "ort", "cpu", 500.0))
    plan = rank(
        [variant("a", "ort"), variant("b", "ort")], probes(ort="1 cpu"), HERE, history=history
    )
    assert order(plan) == ["b on ort (cpu)", "a on ort (cpu)"]


def test_a_pair_with_a_problem_is_rejected_whatever_its_speed() -> None:
    history = measured(("a", "ort", "cpu", 2.0), ("b", "ort", "cpu", 1.0))
    key = Pair("b", "ort", "cpu")
    history[key] = replace(history[key], problem="wrong numbers: 12.0 dB")
    plan = rank(
        [variant("a", "ort"), variant("b", "ort")], probes(ort="1 cpu"), HERE, history=history
    )
    assert order(plan) == ["a on ort (cpu)"]
    assert reasons(plan) == ["b on ort (cpu): wrong numbers: 12.0 dB"]


@pytest.mark.parametrize(
    ("engine", "found", "reason"),
    [
        ("ort", "-not installed; pip install it", "not installed; pip install it"),
        ("other", "1 cpu", "backend is unknown here"),
        ("ort >=2", "1.9 cpu", f"expected version >=2, received 1.9; {FITS}"),
        ("ort >=2", "odd-version cpu", f"expected version >=2, received odd-version; {FITS}"),
    ],
)
def test_an_engine_that_does_not_fit_is_rejected(engine: str, found: str, reason: str) -> None:
    plan = rank([variant("a", engine)], probes(ort=found), HERE)
    assert plan.candidates == ()
    assert [r.reason for r in plan.rejected] == [reason]
    with pytest.raises(NotAvailableError, match="nothing in this bundle can run here: a on"):
        _ = plan.best


def test_prereleases_of_an_engine_count() -> None:
    assert order(rank([variant("a", "ort >=1.20")], probes(ort="1.23.0.dev1 cpu"), HERE))


@pytest.mark.parametrize(
    ("constraints", "reason"),
    [
        ({"arch": "aarch64"}, "needs arch aarch64, this is x86_64"),
        ({"os": "ios, macos"}, "needs os ios or macos, this is linux"),
        (
            {"cpu_features": "avx2,avx512f amx_int8"},
            "needs CPU features that are missing here: amx_int8, avx512f",
        ),
        ({"memory_mb": "8000"}, "needs 8000 MB of memory, there are 4096"),
        ({"memory_mb": "lots"}, "has a malformed constraint memory_mb='lots'"),
        ({"inputs": "odd"}, f"has a constraint that {UNKNOWN} inputs=odd; {AGAIN}"),
        (
            {"integers": "odd"},
            "has a malformed constraint integers: expected bounds by input name, received 'odd'",
        ),
        ({"moon": "full"}, f"has a constraint that {UNKNOWN} moon=full; {AGAIN}"),
    ],
)
def test_constraints(constraints: dict[str, str], reason: str) -> None:
    plan = rank([variant("a", "ort", constraints=constraints)], probes(ort="1 cpu"), HERE)
    assert [r.reason for r in plan.rejected] == [reason]


def test_constraints_that_hold_pass() -> None:
    fine = {"arch": "aarch64,x86_64", "os": "linux", "cpu_features": "avx2", "memory_mb": "1000"}
    fine["inputs"] = "finite"
    assert order(rank([variant("a", "ort", constraints=fine)], probes(ort="1 cpu"), HERE))


@pytest.mark.parametrize(("wanted", "other"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_code_for_one_kind_of_unit_is_offered_there_only(wanted: str, other: str) -> None:
    made = variant("a", "tvm", constraints={"device": wanted})
    plan = rank([made], probes(tvm="1 gpu cpu"), HERE)
    assert order(plan) == [f"a on tvm ({wanted})"]
    assert reasons(plan) == [f"a on tvm ({other}): is code for the {wanted}"]
    nothing = rank([made], probes(tvm=f"1 {other}"), HERE)
    assert not nothing.candidates
    with pytest.raises(NotAvailableError, match=f"is code for the {wanted}"):
        _ = nothing.best


def test_a_backend_that_was_asked_for_is_the_only_one() -> None:
    variants = [variant("a", "ort", "ov")]
    found = probes(ort="1 cpu", ov="1 cpu")
    plan = rank(variants, found, HERE, backend="ov")
    assert order(plan) == ["a on ov (cpu)"]
    assert reasons(plan) == ["a on ort: backend 'ov' was requested"]


def test_a_request_that_cannot_be_met_gives_all_reasons() -> None:
    variants = [variant("a", "ort", "ov"), variant("b", "ov >=9")]
    found = probes(ort="1 cpu", ov="1 cpu")
    with pytest.raises(NotAvailableError) as caught:
        rank(variants, found, HERE, backend="ov", kind="gpu")
    assert str(caught.value) == (
        "backend 'ov' and gpu was requested and cannot be used: "
        "a on ov (cpu): ov 1 finds no gpu here; b on ov: expected version >=9, received 1; "
        f"{FITS}"
    )
    with pytest.raises(NotAvailableError, match="'tvm' was requested"):
        rank(variants, found, HERE, backend="tvm")


def test_variants_that_share_an_artifact_count_once() -> None:
    first = variant("cpu-onnx-fp32", "ort")
    second = replace(first, id="openvino-onnx-fp32", engines=(EngineRequirement("ov"),))
    other = replace(first, id="arm", constraints={"arch": "aarch64"})
    kept = distinct([first, second, other])
    assert [v.id for v in kept] == ["cpu-onnx-fp32", "arm"]
    assert [e.backend for e in kept[0].engines] == ["ort", "ov"]


def test_an_unknown_policy() -> None:
    with pytest.raises(UsageError, match="policy 'speed' is unknown; expected latency, throughput"):
        rank([], {}, HERE, policy="speed")  # type: ignore[arg-type]


def test_explicit_takes_what_is_named_in_the_order_of_the_bundle() -> None:
    variants = [variant("slow", "ort"), variant("fast", "ort")]
    history = measured(("slow", "ort", "cpu", 9.0), ("fast", "ort", "cpu", 1.0))
    found = probes(ort="1.23 cpu")
    with pytest.raises(UsageError, match="give backend="):
        rank(variants, found, HERE, policy="explicit", history=history)
    plan = rank(variants, found, HERE, policy="explicit", history=history, backend="ort")
    assert order(plan) == ["slow on ort (cpu)", "fast on ort (cpu)"]
    assert plan.best.reason == "named by the caller; 9 ms median, 13.5 ms p95"


def told(kind: str) -> Variant:
    return variant(kind, "ort", computed_in=kind, consent=kind)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("latency", "bf16 is 2x as fast here; allow bf16"),
        ("throughput", "bf16 is 2x as good by throughput here; allow bf16"),
        ("energy", "bf16 is 2x as good by energy here; allow bf16"),
        ("memory", "bf16 is 0.5x as good by memory here; nothing would be gained by allowing it"),
    ],
)
def test_what_needs_consent_is_told_with_its_gain(policy: Any, said: str) -> None:
    here = replace(HERE, features=("amx_bf16",))
    known = measured(("a", "ort", "cpu", 4.0), ("bf16", "ort", "cpu", 2.0))
    plan = rank(
        [variant("a", "ort"), told("bf16")], probes(ort="1 cpu"), here, policy=policy, history=known
    )
    assert order(plan) == ["a on ort (cpu)"]
    assert reasons(plan) == [f"bf16 on ort (cpu): {said}"]
    both = rank(
        [variant("a", "ort"), told("bf16")],
        probes(ort="1 cpu"),
        here,
        policy=policy,
        history=known,
        allow={"bf16"},
    )
    assert sorted(order(both)) == ["a on ort (cpu)", "bf16 on ort (cpu)"]


def test_else_the_gain_is_that_of_the_conversion_on_such_a_processor() -> None:
    here = replace(HERE, features=("amx_bf16",))
    variants = [variant("a", "ort", latency_ms=3.0), replace(told("bf16"), latency_ms=1.5)]
    made = f"{here.cpu} ({here.arch}, {here.os})"
    plan = rank(variants, probes(ort="1 cpu"), here, made_on=made)
    said = "bf16 was 2x as fast on such a processor when it was converted; allow bf16"
    assert reasons(plan) == [f"bf16 on ort (cpu): {said}"]
    known = measured(("a", "ort", "cpu", 4.0), ("bf16", "ort", "cpu", 1.0))
    plan = rank(variants, probes(ort="1 cpu"), here, made_on=made, history=known)
    assert reasons(plan) == ["bf16 on ort (cpu): bf16 is 4x as fast here; allow bf16"]
    for more in ({"made_on": "another (x86_64, linux)"}, {"made_on": made, "policy": "memory"}):
        plan = rank(variants, probes(ort="1 cpu"), here, **more)  # type: ignore[arg-type]
        assert reasons(plan) == [
            "bf16 on ort (cpu): bf16 runs only where it is allowed; allow bf16"
        ]


def test_consent_alone_does_not_make_arithmetic() -> None:
    plan = rank([variant("a", "ort"), told("bf16")], probes(ort="1 cpu"), HERE, allow={"bf16"})
    assert order(plan) == ["a on ort (cpu)"]
    assert "this processor does not multiply" in reasons(plan)[0]
    unknown = rank([variant("a", "ort"), told("fp6")], probes(ort="1 cpu"), HERE, allow={"fp6"})
    assert "which this version of edgeinfer does not know" in reasons(unknown)[0]


def test_of_a_gpu_the_backend_says_what_it_computes_in() -> None:
    variants = [variant("a", "ort"), told("tf32")]
    plan = rank(variants, probes(ort="1 gpu cpu"), HERE, allow={"tf32"})
    assert order(plan) == ["a on ort (gpu)", "tf32 on ort (gpu)", "a on ort (cpu)"]


def test_nothing_but_what_needs_consent_is_no_candidate() -> None:
    here = replace(HERE, features=("amx_bf16",))
    plan = rank([told("bf16")], probes(ort="1 cpu"), here)
    with pytest.raises(NotAvailableError, match="bf16 runs only where it is allowed; allow bf16"):
        _ = plan.best


def test_the_same_files_told_otherwise_are_another_variant() -> None:
    plain = variant("a", "ort")
    kept = distinct([plain, replace(plain, id="b", computed_in="bf16", consent="bf16")])
    assert [v.id for v in kept] == ["a", "b"]
