"""Variants in fewer bits run where they were allowed, are right and are faster; else it is told."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.machine.fingerprint import fingerprint
from edgeinfer.runtime import choice

MakeBundle = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("clock", "with_bf16")


def on(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    here = dataclasses.replace(fingerprint(), features=features)
    monkeypatch.setattr(choice, "fingerprint", lambda: here)


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "amx_bf16", "avx2")


def reasons(session: edgeinfer.Session) -> dict[str, str]:
    return {r.variant: r.reason for r in session.report().rejected}


def test_nobody_who_was_not_asked_gets_fewer_bits(fakes: Any, make_bundle: MakeBundle) -> None:
    engine = fakes.add("engine", delay_s=0.004, told={"bf16": (0.001, 0.0)})
    with edgeinfer.load(make_bundle("engine", also=("bf16",))) as session:
        assert session.report().variant == "v0"
        assert reasons(session) == {"v0-bf16": "bf16 runs only where it is allowed; allow bf16"}
    assert engine.loads == 1


def test_allowed_it_wins_by_being_faster(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.002, 0.001)})
    path = make_bundle("engine", also=("bf16",))
    with edgeinfer.load(path, allow={"bf16"}) as session:
        report = session.report()
    assert (report.variant, report.precision) == ("v0-bf16", "bf16")
    assert report.candidates[0].reason.startswith("best latency of 2: 2 ms median")


def test_allowed_it_does_not_win_by_being_allowed(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("engine", delay_s=0.002, told={"bf16": (0.004, 0.0)})
    with edgeinfer.load(make_bundle("engine", also=("bf16",)), allow={"bf16"}) as session:
        assert session.report().variant == "v0"


def test_wrong_numbers_lose_though_allowed_and_fast(
    fakes: Any, make_bundle: MakeBundle, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.001, 1.0)})
    path = make_bundle("engine", also=("bf16",))
    with caplog.at_level(logging.WARNING, "edgeinfer"):
        session = edgeinfer.load(path, allow={"bf16"})
    with session:
        assert session.report().variant == "v0"
        assert reasons(session)["v0-bf16"].startswith("wrong numbers in vector 0")
    assert "v0-bf16 on engine (cpu) cannot be used: wrong numbers" in caplog.text
    with edgeinfer.load(path) as session:
        assert "wrong numbers" in reasons(session)["v0-bf16"], "advised what was refused"


def test_the_budget_is_that_of_its_own_precision(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.001, 0.01)})
    with edgeinfer.load(make_bundle("engine", also=("bf16",)), allow={"bf16"}) as session:
        assert session.report().variant == "v0-bf16"
    fakes.add("plain", delay_s=0.004, bias=0.01)
    with pytest.raises(NotAvailableError, match="wrong numbers"):
        edgeinfer.load(make_bundle("plain", name="plain.edge"))


def test_what_allowing_would_gain_is_told_where_it_was_measured(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.002, 0.0)})
    path = make_bundle("engine", also=("bf16",))
    edgeinfer.load(path, allow={"bf16"}).close()
    with edgeinfer.load(path) as session:
        report = session.report()
    (row,) = report.rejected
    assert report.variant == "v0"
    assert row.reason == "bf16 is 2x as fast here; allow bf16"
    assert row.gain == pytest.approx(2.0, rel=0.01)
    assert "v0-bf16 on engine (cpu): bf16 is 2x as fast here; allow bf16" in str(report)


def test_the_environment_allows_where_the_caller_says_nothing(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.002, 0.0)})
    path = make_bundle("engine", also=("bf16",))
    monkeypatch.setenv("EDGEINFER_ALLOW", "tf32, bf16")
    with edgeinfer.load(path) as session:
        assert session.report().variant == "v0-bf16"
    with edgeinfer.load(path, allow=()) as session:
        assert session.report().variant == "v0"
    monkeypatch.setenv("EDGEINFER_ALLOW", "bf17")
    with pytest.raises(UsageError, match="EDGEINFER_ALLOW: 'bf17' is unknown; known: bf16, fp16"):
        edgeinfer.load(path)


@pytest.mark.parametrize("given", ["bf16", ["bf16"], "tf32,bf16"])
def test_names_come_in_any_form(fakes: Any, make_bundle: MakeBundle, given: Any) -> None:
    fakes.add("engine", delay_s=0.004, told={"bf16": (0.002, 0.0)})
    with edgeinfer.load(make_bundle("engine", also=("bf16",)), allow=given) as session:
        assert session.report().variant == "v0-bf16"


def test_an_unknown_name_is_refused(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("engine")
    with pytest.raises(UsageError, match="allow: 'fp12' is unknown; known: bf16"):
        edgeinfer.load(make_bundle("engine"), allow={"fp12"})


def test_a_processor_without_the_arithmetic_has_no_such_candidate(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fakes.add("engine", delay_s=0.004, told={"bf16": (0.001, 0.0)})
    on(monkeypatch, "avx2", "avx512f")
    with edgeinfer.load(make_bundle("engine", also=("bf16", "tf32")), allow="bf16,tf32") as session:
        assert session.report().variant == "v0"
        told = reasons(session)
    assert told["v0-bf16"] == (
        "is to be computed in bf16, which this processor does not multiply: it needs amx_bf16 or "
        "avx512_bf16 or bf16"
    )
    assert told["v0-tf32"] == (
        "is to be computed in tf32, which this processor does not multiply, a GPU may"
    )
    assert engine.loads == 1


def test_what_is_told_what_to_compute_in_is_for_the_engine_that_was_checked(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("engine")
    other = fakes.add("other", delay_s=0.002, told={"bf16": (0.001, 0.0)})
    path = make_bundle("engine", also=("bf16",))
    with edgeinfer.load(path, backend="other", allow={"bf16"}) as session:
        assert session.report().variant == "v0"
    assert other.loads == 1
