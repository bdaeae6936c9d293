from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.process.guard import MAX_SHAPES
from edgeinfer.errors import InputError
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.types import Array, TensorSpec

SPECS = (
    TensorSpec("x", "float32", ("N", 3)),
    TensorSpec("ids", "int64", ("N",)),
    TensorSpec('{"a": "b"}', "bool", ()),
)
X = np.zeros((2, 3), np.float32)
IDS = np.zeros(2, np.int64)
FLAG = np.array(True)
GOOD: dict[str, Any] = {"x": X, "ids": IDS, '{"a": "b"}': FLAG}


def message(specs: tuple[TensorSpec, ...], feeds: Any, **options: bool) -> str:
    check = InputCheck(specs, **options)
    texts = set()
    for _ in range(2):  # a refusal must not be remembered as good
        with pytest.raises(InputError) as caught:
            check(feeds)
        texts.add(str(caught.value))
    assert len(texts) == 1
    return texts.pop()


def test_good_arrays_pass_as_they_are() -> None:
    check = InputCheck(SPECS)
    for _ in range(3):
        result = check(GOOD)
        assert all(result[name] is GOOD[name] for name in GOOD)


def test_another_size_is_checked_anew() -> None:
    check = InputCheck(SPECS)
    check(GOOD)
    assert check({**GOOD, "x": np.zeros((5, 3), np.float32), "ids": np.zeros(5, np.int64)})
    with pytest.raises(InputError):
        check({**GOOD, "x": np.zeros((5, 3), np.float32)})


def test_strided_read_only_and_subclassed_arrays_pass() -> None:
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    check = InputCheck(SPECS)
    for x in (np.zeros((3, 2), np.float32).T, np.zeros((4, 6), np.float32)[::2, ::2], frozen):
        assert check({**GOOD, "x": x})["x"] is x
    assert type(check({**GOOD, "x": X.view(np.memmap)})["x"]) is np.ndarray


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"x": X.astype(np.float64)},
            "input 'x': expected float32, received float64; convert it: x.astype(np.float32)",
        ),
        (
            {"x": X.astype(">f4")},
            "input 'x': expected float32, received >f4; convert it: x.astype(np.float32)",
        ),
        (
            {"ids": IDS.astype(np.int32)},
            "input 'ids': expected int64, received int32; convert it: x.astype(np.int64)",
        ),
        (
            {"x": X[0]},
            "input 'x': expected 2 axes, x: float32[N, 3], received 1 axes, shape [3]",
        ),
        (
            {"x": np.zeros((2, 4), np.float32)},
            "input 'x': expected size 3 in axis 1, x: float32[N, 3], received 4, shape [2, 4]",
        ),
        (
            {"ids": np.zeros(7, np.int64)},
            "input 'ids': expected N = 2 in axis 0, as in input 'x', received 7, shape [7]",
        ),
        (
            {"x": None},
            "input 'x': expected an array, x: float32[N, 3], received NoneType; give a NumPy array",
        ),
        (
            {"x": np.ma.masked_array(X, X == 0)},
            "input 'x': expected x: float32[N, 3], received a masked array; "
            "fill it: x.filled(value)",
        ),
        (
            {"x": [[0.1, 0, 0], [0, 0, 0]]},
            "input 'x': expected float32, received a list with values that it cannot hold exactly; "
            "say how: np.asarray(x, np.float32)",
        ),
        (
            {"x": [[1.0], [1.0, 2.0]]},
            "input 'x': expected x: float32[N, 3], received a ragged list; give a NumPy array",
        ),
        (
            {"ids": [True, False]},
            "input 'ids': expected int64, received a list of bool; "
            "say how: np.asarray(x, np.int64)",
        ),
        (
            {"ids": ["1", "2"]},
            "input 'ids': expected int64, received a list of <U1; say how: np.asarray(x, np.int64)",
        ),
        (
            {"ids": [1.5, 2.0]},
            "input 'ids': expected int64, received a list with values that it cannot hold exactly; "
            "say how: np.asarray(x, np.int64)",
        ),
        (
            {"y": X},
            "input 'y': expected one of the model's inputs ('x', 'ids', '{\"a\": \"b\"}'), "
            "received an unknown name",
        ),
    ],
)
def test_one_wrong_input_is_named(change: dict[str, Any], expected: str) -> None:
    assert message(SPECS, {**GOOD, **change}) == expected


def test_a_missing_input_is_named_with_all_there_are() -> None:
    text = message(SPECS, {"x": X})
    assert text == (
        "input 'ids': expected ids: int64[N], received 'x'; "
        "the model's inputs: 'x', 'ids', '{\"a\": \"b\"}'"
    )
    assert "received nothing" in message(SPECS, {})


@pytest.mark.parametrize("feeds", [X, [X], None, "x"])
def test_feeds_that_are_no_dict(feeds: Any) -> None:
    assert message(SPECS, feeds).startswith("input '*': expected a dict of arrays by input name")


def test_the_error_has_its_fields() -> None:
    with pytest.raises(InputError) as caught:
        InputCheck(SPECS)({**GOOD, "x": X.astype(np.float64)})
    error = caught.value
    assert (error.name, error.expected, error.received) == ("x", "float32", "float64")
    assert isinstance(error, ValueError)


def test_lists_and_numbers_pass_where_nothing_is_lost() -> None:
    feeds = {"x": [[0.5, 1, 2], [3, 4, float("nan")]], "ids": (1, 2), '{"a": "b"}': True}
    result = InputCheck(SPECS)(feeds)  # type: ignore[arg-type]
    assert [a.dtype.name for a in result.values()] == ["float32", "int64", "bool"]
    assert result["x"][0].tolist() == [0.5, 1.0, 2.0]


def test_numpy_scalars_pass() -> None:
    spec = (TensorSpec("sr", "int64", ()),)
    result = InputCheck(spec)({"sr": np.int64(16000)})  # type: ignore[dict-item]
    assert result["sr"].shape == ()


def test_unknown_rank_takes_any() -> None:
    check = InputCheck((TensorSpec("x", "float32", None),))
    assert check({"x": X})
    assert check({"x": np.zeros((), np.float32)})


def test_an_unknown_size_takes_any() -> None:
    check = InputCheck((TensorSpec("x", "float32", (None, None)),))
    assert check({"x": np.zeros((1, 9), np.float32)})
    assert check({"x": np.zeros((0, 3), np.float32)})


def test_strings() -> None:
    specs = (TensorSpec("s", "string", ("N",)),)
    check = InputCheck(specs)
    for given in (["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)):
        assert check({"s": given})["s"].tolist() == ["a", "b"]  # type: ignore[dict-item]
    check({"s": np.array(["a", "b"], object)})
    with pytest.raises(InputError, match="expected strings, received an array of other objects"):
        check({"s": np.array(["a", 1], object)})
    with pytest.raises(InputError, match="expected strings, received int64"):
        check({"s": [1, 2]})  # type: ignore[dict-item]


def test_nan_passes_unless_asked_not_to() -> None:
    x = X.copy()
    x[1, 2] = np.nan
    x[0, 1] = np.inf
    assert InputCheck(SPECS)({**GOOD, "x": x})
    assert message(SPECS, {**GOOD, "x": x}, check_finite=True) == (
        "input 'x': expected finite values, received 2 of 6 NaN or infinite, the first at [0, 1]; "
        "--allow-nonfinite (check_finite=False) lets them in where an artifact takes them"
    )
    check = InputCheck(SPECS, check_finite=True)
    check(GOOD)
    with pytest.raises(InputError, match="finite"):
        check({**GOOD, "x": x})


class Shared:
    """A tensor of another library: an array that is given out by DLPack only."""

    def __init__(self, array: Array, device: int = 1, error: str = "") -> None:
        self.array, self.device, self.error = array, device, error

    def __dlpack__(self, **options: object) -> object:
        if self.error:
            raise BufferError(self.error)
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_tensors_of_others_are_shared_not_copied() -> None:
    x = np.ones((2, 3), np.float32)
    given: dict[str, Any] = {**GOOD, "x": Shared(x)}
    found = InputCheck(SPECS)(given)["x"]
    assert np.shares_memory(found, x)
    turned = np.ones((3, 2), np.float32).T
    given["x"] = Shared(turned)
    assert np.shares_memory(InputCheck(SPECS)(given)["x"], turned)


def test_a_shared_tensor_of_another_type_is_refused() -> None:
    text = message(SPECS, {**GOOD, "x": Shared(np.ones((2, 3)))})
    assert text.startswith("input 'x': expected float32, received float64")


def test_a_tensor_of_pytorch_is_told_what_pytorch_has() -> None:
    kind = type("Tensor", (Shared,), {"__module__": "torch"})
    text = message(SPECS, {**GOOD, "x": kind(np.ones((2, 3)))})
    assert text.endswith("received float64; convert it: x.to(torch.float32)")


def test_why_a_tensor_cannot_be_shared_is_said() -> None:
    error = "Can't export tensors that require gradient, use tensor.detach()"
    text = message(SPECS, {**GOOD, "x": Shared(GOOD["x"], error=error)})
    assert error in text
    assert text.endswith("give x.detach()")


@pytest.mark.parametrize(
    ("device", "name"), [(2, "cuda:0"), (8, "device type 8 of DLPack"), (7, "device type 7")]
)
def test_a_tensor_that_lies_elsewhere_is_refused(device: int, name: str) -> None:
    text = message(SPECS, {**GOOD, "x": Shared(GOOD["x"], device)})
    assert f"one on {name}" in text
    assert text.endswith("copy it: x.cpu()")


def test_a_tensor_that_lies_nowhere_is_refused() -> None:
    class Nowhere(Shared):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta for Dlpack")

    text = message(SPECS, {**GOOD, "x": Nowhere(GOOD["x"])})
    assert "says not where it lies: Unknown device type meta" in text


def test_torch_tensors_are_shared() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    found = InputCheck(SPECS)({**GOOD, "x": x})["x"]
    found[0, 0] = 5
    assert x[0, 0] == 5
    with pytest.raises(InputError, match=r"give x\.detach\(\)"):
        InputCheck(SPECS)({**GOOD, "x": x.requires_grad_()})


def test_many_shapes_do_not_grow_without_bound() -> None:
    check = InputCheck((TensorSpec("x", "uint8", (None,)),))
    for n in range(5000):
        check({"x": np.zeros(n, np.uint8)})
    assert len(check._seen) <= MAX_SHAPES
