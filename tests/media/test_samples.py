from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import InputError, UsageError
from edgeinfer.media.samples import open_data
from edgeinfer.types import ImageInput, TensorSpec

FREE = TensorSpec("x", "float32", ("batch", 3))
ONE = TensorSpec("x", "float32", (1, 3))
STATE = TensorSpec("h", "float32", (2, 4))


def rows(n: int) -> np.ndarray:
    return np.arange(3 * n, dtype=np.float32).reshape(n, 3)


def test_an_archive_holds_samples_along_its_first_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(20), labels=np.arange(20))
    found = list(open_data(tmp_path / "a.npz", [FREE]).samples())
    np.testing.assert_array_equal(np.concatenate([s.feeds["x"] for s in found]), rows(20))
    assert [label for s in found for label in s.labels] == list(range(20))


def test_a_run_of_a_single_number_is_an_array(tmp_path: Path) -> None:
    """ONNX Runtime takes no ``numpy.bool``, which is what a row of a vector is."""
    np.savez(tmp_path / "data.npz", k=np.array([True, False, True]))
    found = list(open_data(tmp_path / "data.npz", [TensorSpec("k", "bool", ())]).feeds())
    assert [type(f["k"]) for f in found] == [np.ndarray] * 3
    assert [bool(f["k"]) for f in found] == [True, False, True]


def test_a_fixed_batch_is_cut_to_its_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(5), h=np.ones((2, 4), np.float32))
    found = list(open_data(tmp_path / "a.npz", [ONE, STATE]).samples())
    assert [s.feeds["x"].shape for s in found] == [(1, 3)] * 5
    assert all(s.feeds["h"].shape == (2, 4) for s in found)
    np.savez(tmp_path / "a.npz", x=rows(5)[:, None], h=np.ones((5, 2, 4), np.float32))
    assert [s.feeds["h"].shape for s in open_data(tmp_path / "a.npz", [ONE, STATE]).samples()] == [
        (2, 4)
    ] * 5


def test_a_set_can_be_gone_through_twice(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(5))
    data = open_data(tmp_path / "a.npz", [ONE])
    assert len(list(data.feeds())) == len(list(data.feeds())) == 5


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        pil.fromarray(np.full((4, 4, 3), 9, np.uint8)).save(tmp_path / name / "1.png")
    spec = TensorSpec("x", "float32", (1, 3, 4, 4))
    found = list(open_data(tmp_path, [spec], {"x": ImageInput(4, 4)}).samples())
    assert [s.labels for s in found] == [("cat",), ("dog",)]


@pytest.mark.parametrize(
    ("array", "received"),
    [
        (np.zeros((4, 2), np.float32), r"float32\[4, 2\]"),
        (np.zeros((4, 3), np.float64), r"float64\[4, 3\]"),
        (np.zeros(3, np.float32), r"float32\[3\]"),
    ],
)
def test_wrong_shapes_are_named(tmp_path: Path, array: np.ndarray, received: str) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(InputError, match=received):
        list(open_data(tmp_path / "a.npz", [FREE]).samples())


def test_missing_and_unknown_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=rows(2))
    with pytest.raises(InputError, match="'y'"):
        list(open_data(tmp_path / "a.npz", [FREE]).samples())
    np.savez(tmp_path / "a.npz", x=rows(2))
    with pytest.raises(InputError, match=r"'h': .* of this name in a\.npz, which has 'x'"):
        list(open_data(tmp_path / "a.npz", [ONE, STATE]).samples())
    np.savez(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"a.npz, which has no arrays at all"):
        list(open_data(tmp_path / "a.npz", [FREE]).samples())


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty"):
        open_data(tmp_path, [FREE])
    with pytest.raises(UsageError, match="no such file"):
        open_data(tmp_path / "b.npz", [FREE])
    with pytest.raises(UsageError, match="no such file or folder"):
        open_data(tmp_path / "nowhere", [FREE])
    (tmp_path / "b.csv").write_text("1,2")
    with pytest.raises(UsageError, match=r"expected a folder or an \.npz"):
        open_data(tmp_path / "b.csv", [FREE])
    with pytest.raises(UsageError, match="no sample"):
        open_data([], [FREE])


def test_inputs_disagree_on_the_number_of_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(4), h=np.ones((3, 2, 4), np.float32))
    with pytest.raises(InputError, match="as many samples for each input"):
        list(open_data(tmp_path / "a.npz", [ONE, STATE]).samples())


def test_labels_may_be_texts_and_arrays(tmp_path: Path) -> None:
    boxes = np.arange(30, dtype=np.float32).reshape(3, 2, 5)
    np.savez(tmp_path / "a.npz", x=rows(3), labels=boxes)
    found = list(open_data(tmp_path / "a.npz", [ONE]).samples())
    np.testing.assert_array_equal(np.stack([s.labels[0] for s in found]), boxes)
    np.savez(tmp_path / "a.npz", x=rows(3), labels=np.array(["a", "bc", ""]))
    found = list(open_data(tmp_path / "a.npz", [ONE]).samples())
    assert [s.labels for s in found] == [("a",), ("bc",), ("",)]


def test_labels_that_are_not_one_each_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(20), labels=np.arange(3))
    for spec in (ONE, FREE):
        with pytest.raises(InputError, match=r"one for each of 20 samples, received 3 in a\.npz"):
            list(open_data(tmp_path / "a.npz", [spec]).samples())
