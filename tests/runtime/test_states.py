"""What a session keeps from run to run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.errors import BundleError, InputError, UsageError
from edgeinfer.runtime.profiledb import ProfileDB

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N,2] x, float[N,2] h, float[K] z) => (float[N,2] y, float[N,2] hn, float[K] zn)
<float two = {2.0}> { hn = Add(x, h) y = Mul(hn, two) zn = Add(z, two) }"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    model = onnx.parser.parse_model(TEXT)
    shapes = {"x": (None, 2), "z": (3,)}
    made = edgeinfer.export(
        *(model, folder / "m.edge"),
        targets=["onnxruntime"],
        input_shapes=shapes,
        states={"h": "hn", "z": "zn"},
    )
    return made.path


@pytest.fixture
def session(bundle: Path, tmp_path: Path) -> Iterator[edgeinfer.Session]:
    with ProfileDB(tmp_path / "history.sqlite") as history:
        yield edgeinfer.load(bundle, history=history)


X = np.array([[1, 2], [3, 4]], np.float32)


def test_states_begin_with_zeros_of_the_inputs_sizes(session: edgeinfer.Session) -> None:
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(session(X), 2 * turn * X)
    session.reset()
    np.testing.assert_array_equal(session.run({"x": X[:1]})["y"], 2 * X[:1])


def test_a_state_that_is_given_replaces_what_was_kept(session: edgeinfer.Session) -> None:
    session(X)
    given = session.run({"x": X, "h": np.ones((2, 2), np.float32)})
    assert list(given) == ["y"]
    np.testing.assert_array_equal(session(X), 2 * (2 * X + 1))
    session.reset({"h": X})
    np.testing.assert_array_equal(session(X), 4 * X)


def test_all_inputs_make_a_run_of_its_own(session: edgeinfer.Session) -> None:
    session(X)
    zeros = {"h": np.zeros((2, 2), np.float32), "z": np.zeros(3, np.float32)}
    whole = session.run({"x": X, **zeros})
    assert list(whole) == ["y", "hn", "zn"]
    np.testing.assert_array_equal(session(X), 4 * X)


def test_bound_states_are_passed_on(session: edgeinfer.Session) -> None:
    bound = session.bind({"x": X.copy(), "h": np.zeros((2, 2), np.float32)})
    bound()
    np.testing.assert_array_equal(bound()["y"], 4 * X)
    np.testing.assert_array_equal(bound.inputs["h"], 2 * X)


def test_runs_in_threads_lose_no_state(session: edgeinfer.Session) -> None:
    runs = [session.run_async({"x": X}) for _ in range(20)]
    assert all(r.result() for r in runs)
    np.testing.assert_array_equal(session(X), 42 * X)


def test_what_is_wrong_is_said_and_forgets_nothing(session: edgeinfer.Session) -> None:
    session(X)
    with pytest.raises(InputError, match=r"'N'|axis 0"):
        session.run({"x": X[:1]})
    with pytest.raises(InputError, match="one of the states 'h', 'z'"):
        session.reset({"x": X})
    with pytest.raises(InputError, match="'x'"):
        session.run({})
    np.testing.assert_array_equal(session(X), 4 * X)


def test_a_model_without_states_has_nothing_to_reset(bundle: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import StateRecord

    manifest = Bundle.open(bundle).manifest
    with pytest.raises(BundleError, match=r"states\[0\]\.output: there is no output 'q'"):
        replace(manifest, states=(StateRecord("h", "q"),)).to_json()
    model = onnx.parser.parse_model(TEXT)
    plain = edgeinfer.export(
        *(model, tmp_path / "p.edge"), targets=["onnxruntime"], input_shapes={"z": (3,)}
    )
    with ProfileDB(tmp_path / "h.sqlite") as history:
        loaded = edgeinfer.load(plain.path, history=history)
        with pytest.raises(UsageError, match="--state"):
            loaded.reset()
