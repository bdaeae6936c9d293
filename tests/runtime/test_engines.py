"""Sessions over a real engine: numbers, threads, closing, and what a call costs."""

import importlib.metadata
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from benchmarks.tiny import MLP, SEQUENCE, bundle
from edgeinfer.errors import ClosedError, InputError
from edgeinfer.types import Array


@pytest.fixture
def sequence(tmp_path: Path) -> Path:
    return bundle(SEQUENCE, tmp_path / "sequence.edge", {"x": draw(16)})


def draw(length: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((1, length, 64), np.float32)


def test_a_real_model_from_load_to_close(sequence: Path) -> None:
    with edgeinfer.load(sequence) as session:
        report = session.report()
        assert (report.backend, report.device) == ("onnxruntime", "cpu")
        assert report.version == importlib.metadata.version("onnxruntime")
        assert session.verify().passed
        for length in (1, 16, 511):
            assert session(draw(length)).shape == (1, length, 64)  # type: ignore[union-attr]
        with pytest.raises(InputError, match=r"'x': expected size 64 in axis 2"):
            session(np.zeros((1, 4, 63), np.float32))


def test_run_bind_and_async_agree(sequence: Path) -> None:
    x = draw(33)
    with edgeinfer.load(sequence) as session:
        expected = session.run({"x": x})["y"]
        bound = session.bind({"x": x})
        np.testing.assert_array_equal(bound()["y"], expected)
        np.testing.assert_array_equal(session.run_async({"x": x}).result(30)["y"], expected)
        strided = np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
        assert not strided.flags.c_contiguous
        np.testing.assert_array_equal(session.run({"x": strided})["y"], expected)


def test_outputs_belong_to_the_caller(sequence: Path) -> None:
    with edgeinfer.load(sequence) as session:
        first = session.run({"x": draw(8)})["y"]
        kept = first.copy()
        session.run({"x": draw(8, seed=1)})
        np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(first, kept)
    first[...] = 0


def test_eight_threads_on_one_session(sequence: Path) -> None:
    with edgeinfer.load(sequence, threads=1) as session:
        inputs = [draw(5 + i, seed=i) for i in range(8)]
        expected = [session.run({"x": x})["y"] for x in inputs]

        def work(i: int) -> None:
            for _ in range(50):
                np.testing.assert_array_equal(session.run({"x": inputs[i]})["y"], expected[i])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))


def run_until_closed(session: edgeinfer.Session, started: threading.Barrier) -> str:
    started.wait()
    try:
        while True:
            session.run({"x": draw(64)})
    except ClosedError as e:
        return str(e)


def test_closing_under_eight_threads(sequence: Path) -> None:
    for _ in range(5):
        session, started = edgeinfer.load(sequence, threads=1), threading.Barrier(9)
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(run_until_closed, session, started) for _ in range(8)]
            started.wait()
            session.close()
            assert {job.result(30) for job in jobs} == {"session: used after close()"}


def test_fixed_sizes_bind_without_being_given_anything(tmp_path: Path) -> None:
    x = np.ones((1, 16), np.float32)
    with edgeinfer.load(bundle(MLP, tmp_path / "mlp.edge", {"x": x})) as session:
        bound = session.bind()
        bound.inputs["x"][...] = x
        np.testing.assert_array_equal(bound()["y"], session(x))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["overhead.py", "soak.py"])
def test_limits_of_overhead_and_memory_hold(script: str) -> None:
    place = Path(__file__).parents[2] / "benchmarks" / script
    done = subprocess.run([sys.executable, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
