import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.backends.base import Device
from edgeinfer.errors import LoadError, NotAvailableError, UsageError
from edgeinfer.runtime import choice
from edgeinfer.runtime.options import Calls
from edgeinfer.runtime.profiledb import ProfileDB
from tests.clock import Clock

MakeBundle = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("clock")

GPU = (Device("gpu", "fake gpu"), Device("cpu", "fake cpu"))


def test_the_fastest_is_taken_and_remembered(fakes: Any, make_bundle: MakeBundle) -> None:
    slow, fast = fakes.add("slow", delay_s=0.003), fakes.add("fast")
    path = make_bundle(("slow", "fast"))
    with edgeinfer.load(path) as session:
        report = session.report()
    assert report.backend == "fast"
    assert report.candidates[0].reason.startswith("best latency of 2: ")
    assert [c.pair.backend for c in report.candidates] == ["fast", "slow"]
    assert slow.open == fast.open == []
    with edgeinfer.load(path) as session:
        assert session.report().backend == "fast"
    assert (slow.loads, fast.loads) == (1, 2)


def test_another_engine_version_is_measured_anew(fakes: Any, make_bundle: MakeBundle) -> None:
    one, two = fakes.add("one", delay_s=0.003), fakes.add("two")
    path = make_bundle(("one", "two"))
    edgeinfer.load(path).close()
    one.version, one.delay_s, two.delay_s = "1.2.4", 0.0, 0.003
    with edgeinfer.load(path) as session:
        assert session.report().backend == "one"
    assert (one.loads, two.loads) == (2, 2)


def test_wrong_numbers_lose_whatever_their_speed(
    fakes: Any, make_bundle: MakeBundle, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.add("right", delay_s=0.003)
    fakes.add("wrong", bias=0.25)
    with (
        caplog.at_level(logging.WARNING, "edgeinfer"),
        edgeinfer.load(make_bundle(("wrong", "right"))) as session,
    ):
        report = session.report()
    assert report.backend == "right"
    (rejected,) = report.rejected
    assert str(rejected).startswith(
        "v0 on wrong (cpu): wrong numbers in vector 0, output 'double': largest error 0.25 is"
    )
    assert "wrong numbers" in caplog.text


def test_one_that_does_not_load_is_rejected_with_its_words(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("broken", load_error="unsupported operator Foo")
    fakes.add("fine")
    with edgeinfer.load(make_bundle(("broken", "fine"))) as session:
        report = session.report()
    assert report.backend == "fine"
    assert [r.reason for r in report.rejected] == ["unsupported operator Foo"]


def test_one_that_fails_in_a_run_is_rejected(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("broken", run_error="out of memory")
    fakes.add("fine")
    with edgeinfer.load(make_bundle(("broken", "fine"))) as session:
        assert [r.reason for r in session.report().rejected] == ["out of memory"]


def test_without_measuring_the_next_takes_over_aloud(fakes: Any, make_bundle: MakeBundle) -> None:
    broken, fine = fakes.add("broken", load_error="no"), fakes.add("fine")
    path = make_bundle(("broken", "fine"))
    with edgeinfer.load(path, measure=False) as session:
        report = session.report()
        assert "nothing was measured, as requested" in report.notes[0]
        assert report.backend == "fine"
        assert [r.reason for r in report.rejected] == ["no"]
    assert (broken.loads, fine.loads) == (1, 1)


def test_without_vectors_nothing_is_measured(fakes: Any, make_bundle: MakeBundle) -> None:
    one, two = fakes.add("one"), fakes.add("two")
    with edgeinfer.load(make_bundle(("one", "two"), vectors=0)) as session:
        assert "no test vectors" in session.report().notes[0]
    assert (one.loads, two.loads) == (1, 0)


def test_nothing_that_runs_says_why_for_each(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("gone", version=None, devices=(), reason="not installed; pip install gone")
    fakes.add("wrong", bias=1.0)
    with pytest.raises(NotAvailableError) as caught:
        edgeinfer.load(make_bundle("gone", "wrong", "stranger"))
    text = str(caught.value)
    assert "v0 on gone: not installed; pip install gone" in text
    assert "v1 on wrong (cpu): wrong numbers" in text
    assert "v2 on stranger: unknown backend 'stranger'" in text
    assert "\n" not in text


class TestEngineOlderThanTheOneThatWasTested:
    """The test vectors decide, all of them; without any the version does."""

    def test_it_runs_where_all_vectors_are_right(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("old").version = "2025.3.0"
        with edgeinfer.load(make_bundle("old", tested="2026.4.1", vectors=9)) as session:
            notes = session.report().notes
        expected = "v0 on old (cpu): tested with old 2026.4.1, this is 2025.3.0; right on all 9"
        assert any(note.startswith(expected) for note in notes)

    @pytest.mark.parametrize("measure", [True, False])
    def test_wrong_numbers_are_told_with_both_versions(
        self, fakes: Any, make_bundle: MakeBundle, measure: bool
    ) -> None:
        fakes.add("old", bias=0.25).version = "2025.3.0"
        with pytest.raises(NotAvailableError) as caught:
            edgeinfer.load(make_bundle("old", tested="2026.4.1"), measure=measure)
        assert "wrong numbers in vector 0" in str(caught.value)
        assert "tested with old 2026.4.1, this is 2025.3.0: install the newer one" in str(
            caught.value
        )

    def test_without_vectors_it_is_refused(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("old").version = "2025.3.0"
        with pytest.raises(NotAvailableError, match="no test vector says whether its numbers"):
            edgeinfer.load(make_bundle("old", tested="2026.4.1", vectors=0))

    @pytest.mark.parametrize("version", ["2026.4.1", "2026.5.0", "2026.4.1.post1"])
    def test_the_same_and_newer_ones_are_not_told(
        self, fakes: Any, make_bundle: MakeBundle, version: str
    ) -> None:
        fakes.add("new").version = version
        with edgeinfer.load(make_bundle("new", tested="2026.4.1", vectors=0)) as session:
            assert not any("tested with" in note for note in session.report().notes)

    def test_one_that_was_tested_goes_first(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("old").version = "2025.3.0"
        fakes.add("new").version = "2026.4.1"
        path = make_bundle(("old", "new"), tested="2026.4.1")
        with edgeinfer.load(path, measure=False) as session:
            assert session.report().backend == "new"


def test_a_probe_that_raises_is_a_reason(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("fine")
    bad = fakes.add("bad")

    def probe() -> None:
        raise OSError("driver asleep")

    monkeypatch.setattr(bad, "probe", probe)
    with edgeinfer.load(make_bundle(("bad", "fine"))) as session:
        assert [r.reason for r in session.report().rejected] == ["its probe failed: driver asleep"]


@pytest.mark.parametrize("strict", [True, False])
def test_code_for_the_cpu_asks_for_no_gpu(
    fakes: Any, make_bundle: MakeBundle, strict: bool
) -> None:
    """An engine that has both units, as TVM where an NVIDIA device is."""
    engine = fakes.add("both", devices=GPU)
    path = make_bundle("both", constraints=({"device": "cpu"},))
    for _ in range(2):
        with edgeinfer.load(path, strict=strict) as session:
            report = session.report()
            assert (report.backend, report.device) == ("both", "cpu")
            assert not [note for note in report.notes if "runs on the CPU because" in note]
    assert {executable.options.device for executable in engine.open} <= {"cpu"}


class TestExplicitBackend:
    def test_it_is_used_although_slower(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("slow", delay_s=0.003)
        fakes.add("fast")
        with edgeinfer.load(make_bundle(("fast", "slow")), backend="slow") as session:
            assert session.report().backend == "slow"

    def test_it_never_falls_back(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("broken", load_error="refused")
        fakes.add("fine")
        for strict in (True, False):
            with pytest.raises(NotAvailableError, match=r"'broken' was requested .*: refused"):
                edgeinfer.load(
                    make_bundle(("broken", "fine"), name=f"{strict}.edge"),
                    backend="broken",
                    strict=strict,
                )

    def test_it_may_run_a_format_it_was_not_listed_for(
        self, fakes: Any, make_bundle: MakeBundle
    ) -> None:
        fakes.add("listed")
        fakes.add("other")
        fakes.add("alien", format="alien")
        path = make_bundle("listed")
        with edgeinfer.load(path, backend="other") as session:
            assert session.report().backend == "other"
        with pytest.raises(NotAvailableError, match="'alien' was requested"):
            edgeinfer.load(path, backend="alien")

    def test_an_unknown_one_is_a_usage_error(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("fine")
        with pytest.raises(UsageError, match="unknown backend 'tpu'"):
            edgeinfer.load(make_bundle("fine"), backend="tpu")

    def test_an_unknown_policy_is_a_usage_error(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("fine")
        with pytest.raises(UsageError, match="policy 'speed' is unknown"):
            edgeinfer.load(make_bundle("fine"), policy="speed")  # type: ignore[arg-type]


class TestAccelerator:
    def test_a_device_that_was_asked_for(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("fake", devices=GPU)
        path = make_bundle("fake")
        for kind in ("cpu", "gpu"):
            with edgeinfer.load(path, device=kind) as session:
                assert session.report().device == kind
                assert session._choice.executable.options.device == kind  # type: ignore[attr-defined]
        with pytest.raises(NotAvailableError, match="npu was requested and cannot be used"):
            edgeinfer.load(path, device="npu")

    def test_its_failure_is_never_hidden(self, fakes: Any, make_bundle: MakeBundle) -> None:
        fakes.add("gpu", devices=GPU[:1], load_error="driver too old")
        cpu = fakes.add("cpu")
        path = make_bundle(("gpu", "cpu"))
        for _ in range(2):
            with pytest.raises(LoadError, match=r"accelerator cannot be used: .*driver too old"):
                edgeinfer.load(path)
        assert cpu.open == []
        with edgeinfer.load(path, strict=False) as session:
            assert (
                "runs on the CPU because v0 on gpu (gpu): driver too old" in session.report().notes
            )
        with edgeinfer.load(path, device="cpu") as session:
            assert session.report().notes == ()


@pytest.mark.parametrize("policy", ["latency", "throughput", "memory", "energy"])
def test_every_policy_measures_and_reports(
    fakes: Any, make_bundle: MakeBundle, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pages that the process happens to get while one is opened would make the other the smaller:
    # it is ten times slower, drops out after its first runs, and has no more of them.
    monkeypatch.setattr("edgeinfer.runtime.choice.resident_mb", lambda: 100.0)
    fakes.add("one")
    fakes.add("two", delay_s=0.002)
    with edgeinfer.load(make_bundle(("one", "two")), policy=policy) as session:
        report = session.report()
    assert report.policy == policy
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["policy"] == policy
    measured = report.candidates[0].measured
    assert measured is not None
    assert measured.runs >= 3
    assert str(report).startswith("fake: v0 on ")
    if policy != "energy":
        assert report.backend == "one"


def test_the_smaller_of_two_is_taken_though_it_is_slower(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = fakes.add("one"), fakes.add("two", delay_s=0.004)
    monkeypatch.setattr(
        "edgeinfer.runtime.choice.resident_mb", lambda: 100.0 + 50 * one.loads + 5 * two.loads
    )
    with edgeinfer.load(make_bundle(("one", "two")), policy="memory") as session:
        report = session.report()
    assert report.backend == "two"
    measured = report.candidates[0].measured
    assert measured is not None
    assert measured.memory_mb == 5.0
    assert measured.median_ms >= 4.0


def test_a_history_of_ones_own(fakes: Any, make_bundle: MakeBundle, tmp_path: Path) -> None:
    fake = fakes.add("one", delay_s=0.001)
    fakes.add("two", delay_s=0.002)
    path = make_bundle(("one", "two"))
    with ProfileDB(tmp_path / "mine.sqlite") as history:
        edgeinfer.load(path, history=history).close()
        edgeinfer.load(path, history=history, backend="two").close()
    assert fake.loads <= 2
    assert (tmp_path / "mine.sqlite").is_file()


def test_threads_reach_the_engine(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.machine.cores.available_cpus", lambda: 4)
    fakes.add("fake")
    with edgeinfer.load(make_bundle("fake"), threads=3) as session:
        assert session.report().threads == 3
        assert session._choice.executable.options.threads == 3  # type: ignore[attr-defined]


def test_a_precision_without_a_budget_is_not_run_blindly(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("fake")
    with pytest.raises(NotAvailableError, match="no accuracy budget for precision 'int3'"):
        edgeinfer.load(make_bundle("fake", precision="int3"))


def test_a_hopeless_one_costs_few_runs(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("fast", delay_s=0.001)
    slow = fakes.add("slow", delay_s=0.3)
    runs: list[int] = []

    def load(*arguments: Any) -> Any:
        executable = type(slow).load(slow, *arguments)
        run = executable.run

        def counted(feeds: Any) -> Any:
            runs.append(1)
            return run(feeds)

        monkeypatch.setattr(executable, "run", counted)
        return executable

    monkeypatch.setattr(slow, "load", load)
    with edgeinfer.load(make_bundle(("fast", "slow"), vectors=8)) as session:
        report = session.report()
    assert report.backend == "fast"
    assert report.candidates[1].reason.endswith(" times the best")
    assert len(runs) <= 3, "two vectors fill half a second, and one run more is timed"


def test_one_that_compiles_in_its_first_run_is_timed_all_the_same(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    fakes.add("steady", delay_s=0.005)
    compiling = fakes.add("compiling", delay_s=0.001)

    def load(*arguments: Any) -> Any:
        executable = type(compiling).load(compiling, *arguments)
        run, waits = executable.run, [0.7]

        def late(feeds: Any) -> Any:
            clock.sleep(waits.pop() if waits else 0.0)
            return run(feeds)

        monkeypatch.setattr(executable, "run", late)
        return executable

    monkeypatch.setattr(compiling, "load", load)
    with edgeinfer.load(make_bundle(("steady", "compiling"), vectors=8)) as session:
        assert session.report().backend == "compiling"


def test_engines_are_timed_as_they_will_be_called(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One binds and saves its time; what was found out for one way says nothing of the other."""
    fakes.add("plain", delay_s=0.002)
    binding = fakes.add("binding", delay_s=0.004)

    def load(*arguments: Any) -> Any:
        executable = type(binding).load(binding, *arguments)
        monkeypatch.setattr(executable, "bind", lambda inputs, outputs: lambda: None)
        return executable

    monkeypatch.setattr(binding, "load", load)
    path = make_bundle(("plain", "binding"))
    ways: tuple[tuple[Calls, str], ...]
    ways = (("run", "plain"), ("bind", "binding"), ("run", "plain"))
    for calls, backend in ways:
        with edgeinfer.load(path, calls=calls) as session:
            assert session.report().backend == backend
    with pytest.raises(UsageError, match="calls: expected run or bind, received 'fast'"):
        edgeinfer.load(path, calls="fast")  # type: ignore[arg-type]


def test_a_backend_that_opens_nothing_of_it_is_told_so(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("fake")
    fakes.add("other", format="else")
    with pytest.raises(NotAvailableError) as caught:
        edgeinfer.load(make_bundle("fake"), backend="other")
    assert str(caught.value) == (
        "backend 'other' was requested and cannot be used: "
        "the bundle has fake, which it does not open"
    )


def test_all_candidates_together_are_checked_for_a_bounded_time(
    fakes: Any, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(choice, "CHECK_S", 0.8)
    monkeypatch.setattr(choice, "RACE_S", 0.2)
    names = ("first", "second", "third", "fourth")
    for name in names:
        fakes.add(name, delay_s=0.11)
    with edgeinfer.load(make_bundle(names, vectors=8)) as session:
        assert all(c.measured for c in session.report().candidates)
    assert clock.now < 3.0, "eight vectors on each alone take 3.5 s"


class TestInstancesThatDiffer:
    """One engine whose first instance is slow for as long as it lives, and its next is not."""

    @pytest.fixture
    def loaded(self, fakes: Any, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[Any]:
        made: list[Any] = []
        fakes.add("steady", delay_s=0.004)
        backend = fakes.add("bimodal")
        load = backend.load

        def bimodal(artifact: Any, options: Any) -> Any:
            executable = load(artifact, options)
            run, seconds = executable.run, 0.001 if made else 0.0042

            def slow(feeds: Any) -> Any:
                clock.sleep(seconds)
                return run(feeds)

            executable.run = slow
            made.append(executable)
            return executable

        monkeypatch.setattr(backend, "load", bimodal)
        return made

    def test_the_first_one_does_not_decide(
        self, fakes: Any, make_bundle: MakeBundle, loaded: list[Any]
    ) -> None:
        with edgeinfer.load(make_bundle(("steady", "bimodal"))) as session:
            assert session.report().backend == "bimodal"
            assert fakes["bimodal"].open == [loaded[1]], "the one that is quicker is kept"
            assert fakes["steady"].open == []
        assert fakes["bimodal"].open == []
        assert [fakes[n].loads for n in ("steady", "bimodal")] == [2, 2]

    def test_a_new_one_with_wrong_numbers_is_not_kept(
        self, fakes: Any, make_bundle: MakeBundle, loaded: list[Any], caplog: Any
    ) -> None:
        def wrong(artifact: Any, options: Any, load: Any = fakes["bimodal"].load) -> Any:
            executable = load(artifact, options)
            if len(loaded) > 1:
                run = executable.run
                executable.run = lambda feeds: {k: v * 3 for k, v in run(feeds).items()}
            return executable

        fakes["bimodal"].load = wrong
        with edgeinfer.load(make_bundle(("steady", "bimodal"))) as session:
            assert session.report().backend == "steady"
        assert "bimodal (cpu), opened anew: wrong numbers in vector 0" in caplog.text
        assert fakes["bimodal"].open == []

    def test_what_loads_slowly_is_opened_once(
        self,
        fakes: Any,
        make_bundle: MakeBundle,
        loaded: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(choice, "ANEW_S", 0.0)
        with edgeinfer.load(make_bundle(("steady", "bimodal"))) as session:
            assert session.report().backend == "steady"
        assert [fakes[n].loads for n in ("steady", "bimodal")] == [1, 1]

    def test_one_that_does_not_open_again_costs_nothing(
        self, fakes: Any, make_bundle: MakeBundle, loaded: list[Any]
    ) -> None:
        def once(artifact: Any, options: Any, load: Any = fakes["bimodal"].load) -> Any:
            if loaded:
                raise LoadError("the device takes one at a time")
            return load(artifact, options)

        fakes["bimodal"].load = once
        with edgeinfer.load(make_bundle(("steady", "bimodal"))) as session:
            assert session.report().backend == "steady"
            assert session.report().rejected == ()


@pytest.mark.parametrize("problem", ["std::bad_alloc", "No space left on device"])
def test_a_load_while_memory_or_disk_was_short_is_not_remembered(
    fakes: Any, make_bundle: MakeBundle, problem: str
) -> None:
    first, second = fakes.add("first"), fakes.add("second", delay_s=0.003)
    path = make_bundle(("first", "second"))
    first.load_error = problem
    with edgeinfer.load(path) as session:
        assert session.report().backend == "second"
    first.load_error = ""
    with edgeinfer.load(path) as session:
        assert session.report().backend == "first"
    assert second.loads == 2


def test_with_nothing_left_what_failed_before_is_tried_again(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    only = fakes.add("only")
    path = make_bundle(("only",))
    only.load_error = "fake: refused for now"
    for _ in range(2):
        with pytest.raises(NotAvailableError, match=r"fake: refused for now$"):
            edgeinfer.load(path)
    only.load_error = ""
    for backend in (None, "only"):
        with edgeinfer.load(path, backend=backend) as session:
            assert session.report().backend == "only"


def test_a_remembered_problem_says_how_it_is_forgotten(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("first").load_error = "fake: no"
    fakes.add("second")
    path = make_bundle(("first", "second"))
    edgeinfer.load(path).close()
    with edgeinfer.load(path) as session:
        (rejected,) = session.report().rejected
    assert "fake: no (remembered from " in str(rejected)
    assert "; `edgeinfer cache clear` forgets it)" in str(rejected)
