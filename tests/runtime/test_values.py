"""A variant that is wrong for NaN gives an error for it, however it is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import InputError, NotAvailableError

MakeBundle = Callable[..., Path]
X = np.ones((2, 3), np.float32)
K = np.array([7, 8])
BAD = np.array([[1, 2, 3], [4, np.nan, 6]], np.float32)
MESSAGE = (
    r"input 'x': expected values without NaN, received 1 of 6 NaN, the first at \[1, 1\]; "
    r"ov gives wrong numbers for them; load with backend='ort', which takes them"
)
ONLY_OV: tuple[dict[str, str], ...] = ({"inputs": "not_nan"}, {})


@pytest.fixture
def bundle(fakes: Any, make_bundle: MakeBundle) -> Path:
    fakes.add("ov")
    fakes.add("ort")
    return make_bundle("ov", "ort", constraints=ONLY_OV)


def test_run_call_and_run_async_refuse(bundle: Path) -> None:
    with edgeinfer.load(bundle, backend="ov") as session:
        for _ in range(2):  # the second time shapes are known to be good
            with pytest.raises(InputError, match=MESSAGE):
                session.run({"x": BAD, "k": K})
        with pytest.raises(InputError, match=MESSAGE):
            session(BAD, K)
        with pytest.raises(InputError, match=MESSAGE):
            session.run_async({"x": BAD, "k": K}).result()
        np.testing.assert_array_equal(session(X, K)[0], X * 2)
        np.testing.assert_array_equal(session(X * np.inf, K)[0], X * np.inf)


def test_bound_refuses_what_the_buffer_holds_now(bundle: Path) -> None:
    with edgeinfer.load(bundle, backend="ov") as session:
        bound = session.bind({"x": X.copy(), "k": K})
        np.testing.assert_array_equal(bound()["double"], X * 2)
        bound.inputs["x"][...] = BAD
        with pytest.raises(InputError, match=MESSAGE):
            bound()
        bound.inputs["x"][...] = X
        np.testing.assert_array_equal(bound()["double"], X * 2)


@pytest.mark.parametrize(
    ("engine", "artifact", "refused"),
    [
        ("not_nan", "", np.nan),
        ("not_nan", "finite", np.inf),
        ("not_nan", "not_infinite", np.nan),
        ("not_nan", "not_infinite", np.inf),
        ("finite", "not_nan", np.inf),
        ("finite", "", -np.inf),
        ("", "not_nan", np.nan),
    ],
)
def test_an_engine_asked_for_refuses_them_in_other_artifacts_too(
    fakes: Any, make_bundle: MakeBundle, engine: str, artifact: str, refused: float
) -> None:
    """Nothing was made for it: what it loses by itself and what the artifact loses is refused."""
    fakes.add("ov", unprepared=engine)
    path = make_bundle("ort", constraints=({"inputs": artifact} if artifact else {},))
    with edgeinfer.load(path, backend="ov") as session:
        with pytest.raises(InputError, match="ov gives wrong numbers for them"):
            session(np.full_like(X, refused), K)
        np.testing.assert_array_equal(session(X, K)[0], X * 2)


def test_an_engine_asked_for_opens_no_others_where_some_were_made_for_it(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("ov")
    path = make_bundle("ov", "ort", constraints=({"inputs": "not_nan", "os": "plan9"}, {}))
    with pytest.raises(NotAvailableError, match="v0 on ov: needs os plan9, this is"):
        edgeinfer.load(path, backend="ov")


def test_no_hint_where_nothing_else_takes_them(fakes: Any, make_bundle: MakeBundle) -> None:
    fakes.add("ov")
    path = make_bundle("ov", constraints=({"inputs": "finite"},))
    with edgeinfer.load(path) as session, pytest.raises(InputError) as caught:
        session(X * np.inf, K)
    assert str(caught.value).endswith("ov gives wrong numbers for them")


def test_vectors_that_the_variant_refuses_are_left_out_with_a_note(
    fakes: Any, make_bundle: MakeBundle
) -> None:
    fakes.add("ov")
    path = make_bundle("ov", constraints=ONLY_OV[:1], special=np.nan)
    with edgeinfer.load(path) as session:
        result = session.verify()
    assert result.passed
    assert len(result.vectors) == 1
    assert len(result.notes) == 1
    assert result.notes[0].endswith("holds values that v0 refuses")
