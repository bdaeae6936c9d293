"""A session that begins at once, and goes over to the winner of a race next to it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.runtime.settling import SettlingExecutable
from tests.forked import in_fork
from tests.runtime.conftest import Fakes, MakeBundle

NET = """<ir_version: 10, opset_import: ["": 21]> net (float[1,4] x) => (float[1,4] y)
{ y = Relu(x) }"""
FEEDS: dict[str, Any] = {"x": np.ones((2, 3), np.float32), "k": np.arange(2)}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ProfileDB]:
    with ProfileDB(tmp_path / "history.sqlite") as opened:
        yield opened


def early(path: Path, history: ProfileDB, **options: Any) -> edgeinfer.Session:
    return edgeinfer.load(path, history=history, measure="background", **options)


def race(session: edgeinfer.Session) -> SettlingExecutable:
    executable = session._choice.executable
    assert isinstance(executable, SettlingExecutable)
    return executable


def right(session: edgeinfer.Session) -> None:
    np.testing.assert_array_equal(session.run(FEEDS)["double"], 2 * FEEDS["x"])


def test_it_answers_while_the_race_goes_on_and_then_runs_the_winner(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    first, second = fakes.add("first", delay_s=0.02), fakes.add("second")
    second.gate = threading.Event()
    with early(make_bundle("first", "second"), history) as session:
        right(session)
        assert session.report().backend == "first"
        assert not race(session).is_settled
        second.gate.set()
        race(session).wait(30)
        assert session.report().backend == "second"
        assert all(c.measured for c in session.report().candidates)
        right(session)
        # The one that gave way is freed, and so is what lost the race.
        assert (len(first.open), len(second.open)) == (0, 1)
    assert not second.open
    with edgeinfer.load(
        make_bundle("first", "second", name="again.edge"), history=history
    ) as later:
        assert later.report().backend == "second"
        assert not isinstance(later._choice.executable, SettlingExecutable)


def test_what_begins_early_has_answered_a_vector_right(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("wrong", bias=1.0)
    fakes.add("steady", delay_s=0.001)
    with early(make_bundle("wrong", "steady"), history) as session:
        assert session.report().backend == "steady"
        right(session)
        race(session).wait(30)
        assert session.report().backend == "steady"
    fakes["steady"].bias = 1.0
    with pytest.raises(NotAvailableError):
        early(make_bundle("wrong", "steady", name="b.edge", vectors=3), history)


def test_runs_of_many_threads_meet_no_engine_that_was_freed(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("first", delay_s=0.002)
    fakes.add("second", delay_s=0.0001)
    failed: list[BaseException] = []
    with early(make_bundle("first", "second"), history) as session:
        bound = session.bind({name: value.copy() for name, value in FEEDS.items()})

        def work() -> None:
            try:
                while not race(session).is_settled:
                    right(session)
                for _ in range(50):
                    right(session)
            # It is told below, in the thread of the test.
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while not race(session).is_settled:
            np.testing.assert_array_equal(bound()["double"], 2 * FEEDS["x"])
        for thread in threads:
            thread.join(60)
        bound.inputs["x"][...] = 3
        np.testing.assert_array_equal(bound()["double"], np.full((2, 3), 6, np.float32))
        assert session.report().backend == "second"
        assert not fakes["first"].open
    assert not failed


def test_engines_that_take_one_call_at_a_time_get_no_more(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("first", delay_s=0.002)
    fakes.add("second", concurrent=False)
    with early(make_bundle("first", "second"), history) as session:
        race(session).wait(30)
        fakes["second"].most_inside = 0
        threads = [threading.Thread(target=right, args=(session,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert fakes["second"].most_inside == 1


def test_closing_ends_the_race_and_frees_all(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("first")
    second, third = fakes.add("second"), fakes.add("third")
    second.gate = threading.Event()
    session = early(make_bundle("first", "second", "third"), history)
    while not second.open:
        time.sleep(0.001)
    session.close()
    settling = race(session)
    second.gate.set()
    settling.wait(30)
    assert not any(fake.open for fake in fakes.values())
    # Nothing is opened any more, and nothing half measured is remembered.
    assert third.loads == 0
    with edgeinfer.load(make_bundle("first", name="b.edge"), history=history) as later:
        right(later)


def test_a_winner_that_takes_fewer_values_waits_for_the_next_load(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("first", delay_s=0.01)
    fakes.add("second")
    path = make_bundle("first", "second", constraints=({}, {"inputs": "finite"}))
    with early(path, history) as session:
        race(session).wait(30)
        assert session.report().backend == "first"
        assert "from the next load on: it takes fewer values" in session.report().notes[-1]
        right(session)
    with edgeinfer.load(path, history=history) as later:
        assert later.report().backend == "second"


def test_a_race_that_fails_leaves_what_runs(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("first")
    fakes.add("second")

    def fail(*_: object, **__: object) -> None:
        raise NotAvailableError("nothing is here any more")

    monkeypatch.setattr("edgeinfer.runtime.bench.measure", fail)
    with early(make_bundle("first", "second"), history) as session:
        race(session).wait(30)
        assert "nothing is here any more" in session.report().notes[-1]
        right(session)


def test_what_contradicts_it_is_refused(
    fakes: Fakes, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("first")
    path = make_bundle("first")
    with pytest.raises(UsageError, match="on_crash"):
        early(path, history, on_crash="next")
    with pytest.raises(UsageError, match="'later'"):
        edgeinfer.load(path, measure="later")  # type: ignore[arg-type]


def test_a_forked_process_stays_with_what_runs(
    tmp_path: Path, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    ir = pytest.importorskip("onnx_ir")
    for engine in ("onnxruntime", "ai_edge_litert"):
        pytest.importorskip(engine)
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    targets = ["onnxruntime", "rpi5"]
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=targets)
    gate = threading.Event()

    def wait(*_: object, **__: object) -> None:
        gate.wait(60)
        raise NotAvailableError("the gate was opened")

    monkeypatch.setattr("edgeinfer.runtime.bench.measure", wait)
    x = {"x": np.full((1, 4), 2, np.float32)}
    with early(tmp_path / "net.edge", history, threads=1) as session:

        def elsewhere() -> tuple[bool, float]:
            answer = float(session.run(x)["y"].sum())
            settled = race(session).is_settled
            session.close()
            return settled, answer

        assert not race(session).is_settled
        assert in_fork(elsewhere) == (True, 8.0)
        gate.set()
        race(session).wait(60)
        assert float(session.run(x)["y"].sum()) == 8.0


SCRIPT = """
import sys, edgeinfer, numpy as np
session = edgeinfer.load(sys.argv[1], measure="background", threads=1)
print(session.run({"x": np.full((1, 4), 2, np.float32)})["y"].tolist())
"""


def test_a_program_may_end_while_engines_are_opened(tmp_path: Path) -> None:
    ir = pytest.importorskip("onnx_ir")
    for engine in ("openvino", "onnxruntime"):
        pytest.importorskip(engine)
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=["cpu"])
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "net.edge")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[[2.0, 2.0, 2.0, 2.0]]\n"), done.stderr
