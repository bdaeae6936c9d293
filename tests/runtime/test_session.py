import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import BundleError, ClosedError, InputError, RunError, UsageError
from edgeinfer.runtime.session import Session
from edgeinfer.types import Array, TensorSpec

MakeBundle = Callable[..., Path]

X = np.arange(6, dtype=np.float32).reshape(2, 3)
K = np.array([7, 8])


@pytest.fixture
def session(fakes: Any, make_bundle: MakeBundle) -> Session:
    fakes.add("fake")
    return edgeinfer.load(make_bundle("fake"))


def test_run_takes_and_gives_names(session: Session) -> None:
    outputs = session.run({"k": K, "x": X})
    assert list(outputs) == ["double", "k'"]
    np.testing.assert_array_equal(outputs["double"], X * 2)
    np.testing.assert_array_equal(outputs["k'"], K)


def test_call_takes_positions_and_names(session: Session) -> None:
    for double, k in (session(X, K), session(X, k=K), session(k=K, x=X)):
        np.testing.assert_array_equal(double, X * 2)
        np.testing.assert_array_equal(k, K)


def test_a_single_output_comes_alone(session: Session) -> None:
    session._execute = lambda feeds: {"only": feeds["x"]}
    assert session(X, K) is X


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X, K, K), {}, "input '*': expected 2 inputs ('x', 'k'), received 3 arguments"),
        ((X, K), {"x": X}, "input 'x': expected one value, received two: by position and by name"),
        ((X,), {}, "input 'k': expected k: int64[N], received 'x'"),
        ((X, K), {"z": K}, "input 'z': expected one of the model's inputs ('x', 'k')"),
        (
            (X.astype(np.float64), K),
            {},
            "input 'x': expected float32, received float64; convert it: x.astype(np.float32)",
        ),
    ],
)
def test_wrong_calls(
    session: Session, args: tuple[Array, ...], named: dict[str, Array], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        session(*args, **named)
    assert str(caught.value).startswith(message)


def test_specs_are_the_manifests(session: Session) -> None:
    assert [str(s) for s in session.inputs] == ["x: float32[N, 3]", "k: int64[N]"]
    assert [s.name for s in session.outputs] == ["double", "k'"]
    assert repr(session) == "<Session 'fake': v0 on fake (cpu)>"


def test_check_finite(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("fake")
    path = make_bundle("fake")
    wrong = np.full((2, 3), np.nan, np.float32)
    with edgeinfer.load(path) as session:
        assert np.isnan(session.run({"x": wrong, "k": K})["double"]).all()
    with (
        edgeinfer.load(path, check_finite=True) as session,
        pytest.raises(InputError, match="expected finite values, received 6 of 6"),
    ):
        session.run({"x": wrong, "k": K})


def test_an_engine_error_passes_and_the_session_lives_on(session: Session, fakes: Any) -> None:
    fakes["fake"].run_error = "engine on fire"
    with pytest.raises(RunError, match="engine on fire"):
        session(X, K)
    fakes["fake"].run_error = ""
    assert session.run({"x": X, "k": K})


def test_close_frees_the_engine_and_the_file(session: Session, fakes: Any) -> None:
    bound = session.bind({"x": X, "k": K})
    session.close()
    session.close()
    assert fakes["fake"].open == []
    for use in (
        lambda: session(X, K),
        lambda: session.run({}),
        lambda: session.bind({"x": X, "k": K}),
        lambda: session.run_async({}),
        bound,
    ):
        with pytest.raises(ClosedError, match=r"session: used after close\(\)"):
            use()
    assert session.report().backend == "fake"


def test_a_dropped_session_frees_everything(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("fake")
    path = make_bundle("fake")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = edgeinfer.load(path)
        alive = weakref.ref(session)
        session.run_async({"x": X, "k": K}).result()
        bound = session.bind({"x": X, "k": K})
        del session
        gc.collect()
        assert alive() is not None, "a bound object keeps its session"
        np.testing.assert_array_equal(bound()["double"], X * 2)
        del bound
        gc.collect()
    assert alive() is None
    assert fakes["fake"].open == []


def test_eight_threads_get_their_own_answers(session: Session) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            n = int(rng.integers(1, 9))
            x, k = rng.random((n, 3), np.float32), rng.integers(0, 99, n)
            outputs = session.run({"x": x, "k": k})
            np.testing.assert_array_equal(outputs["double"], x * 2)
            np.testing.assert_array_equal(outputs["k'"], k)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_an_engine_that_takes_one_at_a_time_gets_one(fakes: Any, make_bundle: MakeBundle) -> None:
    fake = fakes.add("fake", concurrent=False, delay_s=0.002)
    with edgeinfer.load(make_bundle("fake")) as session, ThreadPoolExecutor(8) as pool:
        bounds = [session.bind({"x": X.copy(), "k": K}) for _ in range(4)]
        jobs = [pool.submit(session, X, K) for _ in range(20)]
        jobs += [pool.submit(bound) for bound in bounds]  # type: ignore[arg-type]
        for job in jobs:
            job.result()
    assert fake.most_inside == 1


def test_closing_while_others_run(fakes: Any, make_bundle: MakeBundle) -> None:
    """The fake asserts that it is not closed while it runs."""
    fake = fakes.add("fake")
    session = edgeinfer.load(make_bundle("fake"))
    fake.delay_s = 0.001
    results: list[str] = []

    def work() -> None:
        try:
            while True:
                session.run({"x": X, "k": K})
        except ClosedError as e:
            results.append(str(e))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    session.close()
    for thread in threads:
        thread.join(10)
    assert results == ["session: used after close()"] * 8
    assert fake.open == []


def test_run_async(session: Session, fakes: Any) -> None:
    futures = [session.run_async({"x": X + i, "k": K}) for i in range(50)]
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(10)["double"], (X + i) * 2)
    assert isinstance(session.run_async({"x": X}).exception(10), InputError)
    fakes["fake"].delay_s = 0.02
    late = [session.run_async({"x": X, "k": K}) for _ in range(20)]
    session.close()
    outcomes = {type(f.exception(10)) for f in late}
    assert outcomes <= {type(None), ClosedError}
    assert ClosedError in outcomes


def test_bind_makes_outputs_of_the_inputs_sizes(session: Session) -> None:
    x, k = X.copy(), K.copy()
    bound = session.bind({"x": x, "k": k})
    assert bound.inputs["x"] is x
    assert bound.outputs["double"].shape == (2, 3)
    for i in range(3):
        x[...] = i
        outputs = bound()
        assert outputs["double"] is bound.outputs["double"]
        assert (outputs["double"] == 2 * i).all()


def test_bind_takes_given_outputs(session: Session) -> None:
    out = np.empty((2, 3), np.float32)
    session.bind({"x": X, "k": K}, {"double": out})()
    np.testing.assert_array_equal(out, X * 2)


BOTH = {"x": X, "k": K}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (
            None,
            None,
            "input 'x': expected a buffer, because its size is open, received none; "
            "give inputs={'x': array} of the size of your runs",
        ),
        ({**BOTH, "z": X}, None, "input 'z': expected one of the model's inputs ('x', 'k')"),
        ({**BOTH, "x": X.tolist()}, None, "input 'x': expected a float32 array, received list"),
        ({**BOTH, "x": X.astype(float)}, None, "input 'x': expected a float32 array, received fl"),
        ({**BOTH, "k": np.arange(3)}, None, "input 'k': expected N = 2 in axis 0, as in input 'x'"),
        (
            {**BOTH, "x": np.zeros((3, 2), np.float32).T},
            None,
            "input 'x': expected a C-contiguous buffer, received a strided one",
        ),
        (BOTH, {"q": X}, "output 'q': expected one of the model's outputs (\"double\", \"k'\")"),
        (BOTH, {"double": X}, "output 'double': expected a buffer of its own, received memory sha"),
        (
            BOTH,
            {"double": np.zeros((3, 3), np.float32)},
            "output 'double': expected size 2 in axis 0, double: float32[2, 3], received 3",
        ),
    ],
)
def test_buffers_that_do_not_fit(session: Session, inputs: Any, outputs: Any, message: str) -> None:
    error = UsageError if outputs else InputError
    with pytest.raises(error) as caught:
        session.bind(inputs, outputs)
    assert str(caught.value).replace("'double', \"k'\"", '"double", "k\'"').startswith(message)


def test_a_read_only_output_buffer(session: Session) -> None:
    out = np.zeros((2, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="'double': expected a writeable buffer"):
        session.bind(BOTH, {"double": out})


def test_strings_cannot_be_bound(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("fake")
    specs = (TensorSpec("x", "string", (1,)),)
    path = make_bundle("fake", vectors=0, inputs=specs)
    with (
        edgeinfer.load(path) as session,
        pytest.raises(UsageError, match="strings have no buffer to bind; use run"),
    ):
        session.bind()


def test_verify_runs_every_vector(fakes: Any, make_bundle: MakeBundle) -> None:
    fake = fakes.add("fake")
    with edgeinfer.load(make_bundle("fake", vectors=10)) as session:
        result = session.verify()
        assert result.passed
        assert len(result.vectors) == 10
        assert result.vectors[0].metrics["double"].max_abs == 0.0
        assert result.to_json()["vectors"][0]["metrics"]["double"]["sqnr_db"] is None
        fake.bias = 0.5
        result = session.verify()
        assert not result.passed
        assert result.vectors[0].breaches[0].startswith("output 'double': largest error 0.5")


def test_verify_without_vectors_proves_nothing(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("fake")
    with edgeinfer.load(make_bundle("fake", vectors=0)) as session:
        assert not session.verify().passed


def test_load_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a")
    with pytest.raises(BundleError, match="convert it first with `edgeinfer convert`"):
        edgeinfer.load(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="no such file"):
        edgeinfer.load(tmp_path / "none.edge")
    with pytest.raises(UsageError, match="threads: expected at least 1, received 0"):
        edgeinfer.load(tmp_path / "m.onnx", threads=0)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["run_timeout_s", "load_timeout_s", "memory_mb"])
def test_limits_are_numbers_above_zero(tmp_path: Path, name: str, limit: float) -> None:
    options: dict[str, Any] = {name: limit, "isolate": True}
    with pytest.raises(UsageError, match=f"{name}: expected a number above 0"):
        edgeinfer.load(tmp_path / "m.edge", **options)


def test_a_path_that_no_system_takes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="File name too long"):
        edgeinfer.load("a" * 5000)
    with pytest.raises(UsageError, match="threads: expected at most 1024, received 9999"):
        edgeinfer.load(tmp_path / "m.edge", threads=9999)
