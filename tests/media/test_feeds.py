"""Files on a command line become the feeds of the right number of runs."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError, UsageError
from edgeinfer.media import calls_for, feeds_for, write_arrays
from edgeinfer.types import Array, AudioInput, ImageInput, Preprocessing, TensorSpec

Image = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")

SMALL = ImageInput(2, 2, layout="NHWC", scale=1.0)
GREY = ImageInput(2, 2, color="GRAY", layout="NHWC", scale=1.0, mean=(0.0,), std=(1.0,))


@dataclass(frozen=True)
class Model:
    inputs: tuple[TensorSpec, ...]
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)


def model(*shapes: Any, record: Preprocessing | None = None, dtype: str = "float32") -> Model:
    specs = tuple(TensorSpec("xyz"[i], dtype, shape) for i, shape in enumerate(shapes))
    return Model(specs, {} if record is None else {"x": record})


def pictures(folder: Path, count: int, size: tuple[int, int] = (2, 2)) -> list[Path]:
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.new("RGB", size, (i, i, i)).save(path)
    return paths


def wav(folder: Path, samples: int) -> Path:
    signal: Array = np.arange(samples, dtype=np.float32) / 64
    soundfile.write(folder / "a.wav", signal, 8000, subtype="FLOAT")
    return folder / "a.wav"


def firsts(calls: list[dict[str, Array]]) -> list[list[float]]:
    return [[float(item.flat[0]) for item in call["x"]] for call in calls]


def test_arrays_by_name(tmp_path: Path) -> None:
    write_arrays(tmp_path / "in.npz", {"y": np.arange(3), "x": np.zeros((1, 2), np.float32)})
    feeds = feeds_for(tmp_path / "in.npz", model((1, 2), (3,)))
    assert set(feeds) == {"x", "y"}
    np.testing.assert_array_equal(feeds["y"], [0, 1, 2])


def test_unnamed_arrays_of_numpy_are_taken_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", np.array([1]), np.array([2]))
    feeds = feeds_for(str(tmp_path / "in.npz"), model((1,), (1,)))
    assert (feeds["x"][0], feeds["y"][0]) == (1, 2)


def test_an_npy_is_for_the_one_input_that_is_free(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([7]))
    assert feeds_for(tmp_path / "a.npy", model((1,)))["x"] == 7
    with pytest.raises(UsageError, match="which input is it for"):
        feeds_for(tmp_path / "a.npy", model((1,), (1,)))


def test_name_and_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([7]))
    np.savez(tmp_path / "b.npz", whatever=np.array([8]))
    feeds = feeds_for([f"y={tmp_path}/a.npy", f"x={tmp_path}/b.npz"], model((1,), (1,)))
    assert (feeds["x"][0], feeds["y"][0]) == (8, 7)


def test_a_name_may_hold_the_equals_sign(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([7]))
    odd = Model((TensorSpec("x", "int64", (1,)), TensorSpec("x=1", "int64", (1,))))
    assert set(feeds_for([f"x=1={tmp_path}/a.npy"], odd)) == {"x=1"}


def test_a_file_whose_name_looks_like_an_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x=1.npy", np.array([7]))
    assert feeds_for("x=1.npy", model((1,)))["x"] == 7


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("none.npz", "none.npz: no such file"),
        ("none.png", "none.png: no such file"),
        ("q=none.png", "no input has this name; inputs: 'x', 'y'"),
        ("y=here.png", "input 'y' has no image or audio record"),
    ],
)
def test_what_cannot_be_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (1, 1)).save("here.png")
    with pytest.raises(UsageError) as caught:
        feeds_for(argument, model((1, 2, 2, 3), (1,), record=SMALL))
    assert problem in str(caught.value)


def test_a_file_that_is_no_array_for_a_model_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_text("x")
    with pytest.raises(UsageError, match=r"net.onnx: no \.npz or \.npy, and no input .* images"):
        feeds_for(str(tmp_path / "net.onnx"), model((1,)))


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        (
            "strange.npz",
            "input 'q': expected an input of the model ('x', 'y'), "
            "received an unknown name in strange.npz",
        ),
        ("x=two.npz", "input 'x': expected one array, received 2 in two.npz"),
        (
            "none.npz",
            "input 'x': expected x: float32[1, 2, 2, 3], "
            "received none.npz, which has no arrays at all",
        ),
    ],
)
def test_what_is_in_a_file_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("strange.npz", q=np.zeros(1))
    np.savez("two.npz", x=np.zeros(1), y=np.zeros(1))
    np.savez("none.npz")
    with pytest.raises(InputError) as caught:
        feeds_for(argument, model((1, 2, 2, 3), (1,), record=SMALL))
    assert str(caught.value) == problem


def test_an_input_is_given_once(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 2, 2, 3), np.float32))
    picture = pictures(tmp_path, 1)[0]
    small = model((1, 2, 2, 3), record=SMALL)
    for pair in ([tmp_path / "a.npy", picture], [f"x={tmp_path}/a.npy"] * 2):
        with pytest.raises(UsageError, match="already given"):
            feeds_for(pair, small)


def test_a_picture_needs_a_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="convert the model again with --preprocessing"):
        feeds_for(pictures(tmp_path, 1), model((1, 2, 2, 3)))


def test_two_media_inputs_must_be_named(tmp_path: Path) -> None:
    two = Model(model((1, 2, 2, 3), (1, 2, 2, 3)).inputs, {"x": SMALL, "y": SMALL})
    paths = pictures(tmp_path, 2)
    with pytest.raises(UsageError, match="which input is it for"):
        feeds_for(paths[0], two)
    feeds = feeds_for([f"y={paths[1]}", f"x={paths[0]}"], two)
    assert (feeds["x"].max(), feeds["y"].max()) == (0, 1)
    with pytest.raises(InputError, match="as many files as the other inputs"):
        list(calls_for([f"y={paths[0]}", f"y={paths[1]}", f"x={paths[0]}"], two))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (1, [[0], [1], [2], [3]]),
        (2, [[0, 1], [2, 3]]),
        (4, [[0, 1, 2, 3]]),
        ("N", [[0, 1, 2], [3]]),
        (None, [[0, 1, 2], [3]]),
    ],
)
def test_images_fill_the_batch(tmp_path: Path, batch: Any, expected: list[list[float]]) -> None:
    calls = list(calls_for(pictures(tmp_path, 4), model((batch, 2, 2, 3), record=SMALL), batch=3))
    assert firsts(calls) == expected


def test_a_batch_that_is_not_filled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in groups of 4, received 3"):
        feeds_for(pictures(tmp_path, 3), model((4, 2, 2, 3), record=SMALL))


def test_images_of_several_sizes_run_apart(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [*pictures(tmp_path, 2), *pictures(tmp_path / "b", 1, (5, 3))]
    free = model(("N", "h", "w", 3), record=ImageInput(None, None, layout="NHWC"))
    assert [c["x"].shape for c in calls_for(paths, free)] == [(2, 2, 2, 3), (1, 3, 5, 3)]


def test_feeds_for_refuses_several_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="for several runs"):
        feeds_for(pictures(tmp_path, 2), model((1, 2, 2, 3), record=SMALL))


@pytest.mark.parametrize(
    ("shape", "record", "expected"),
    [
        ((1, 2, 2, 3), SMALL, (1, 2, 2, 3)),
        (None, SMALL, (1, 2, 2, 3)),
        ((2, 2, 3), SMALL, (2, 2, 3)),
        (("N", 2, 2), GREY, (1, 2, 2)),
        ((1, 2, 2), GREY, (1, 2, 2)),
        ((2, 2, 1), GREY, (2, 2, 1)),
        ((2, 2), GREY, (2, 2)),
    ],
)
def test_a_picture_takes_the_model_s_rank(
    tmp_path: Path, shape: Any, record: ImageInput, expected: tuple[int, ...]
) -> None:
    feeds = feeds_for(pictures(tmp_path, 1), model(shape, record=record))
    assert feeds["x"].shape == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 4), [(1, 4), (1, 4)]),
        (("N", 4), [(2, 4)]),
        ((4,), [(4,), (4,)]),
        (("N", 4, 1), [(2, 4, 1)]),
        ((1, 1, 4), [(1, 1, 4), (1, 1, 4)]),
    ],
)
def test_a_recording_takes_the_model_s_rank(
    tmp_path: Path, shape: Any, expected: list[tuple[int, ...]]
) -> None:
    calls = list(calls_for(wav(tmp_path, 8), model(shape, record=AudioInput(8000, 4))))
    assert [c["x"].shape for c in calls] == expected
    signal = np.concatenate([c["x"].ravel() for c in calls])
    np.testing.assert_array_equal(signal, np.arange(8, dtype=np.float32) / 64)


def test_other_arrays_go_into_every_run(tmp_path: Path) -> None:
    np.save(tmp_path / "rate.npy", np.array(16_000))
    audio = model((1, 4), (), record=AudioInput(8000, 4))
    calls = list(calls_for([wav(tmp_path, 8), f"y={tmp_path}/rate.npy"], audio))
    assert [int(c["y"]) for c in calls] == [16_000, 16_000]


def test_media_of_the_wrong_rank_or_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected 5 axes"):
        feeds_for(pictures(tmp_path, 1), model((1, 1, 2, 2, 3), record=SMALL))
    with pytest.raises(InputError, match="2 axes: batch and samples"):
        feeds_for(wav(tmp_path, 4), model((1, 2, 2), record=AudioInput(8000, 4)))
    with pytest.raises(UsageError, match="a recording is float"):
        feeds_for(wav(tmp_path, 4), model((1, 4), record=AudioInput(8000), dtype="int16"))


def test_uint8_models_get_uint8(tmp_path: Path) -> None:
    raw = model((1, 2, 2, 3), record=SMALL, dtype="uint8")
    assert feeds_for(pictures(tmp_path, 1), raw)["x"].dtype == np.uint8


def test_images_are_read_one_run_at_a_time(tmp_path: Path) -> None:
    paths = pictures(tmp_path, 2)
    calls = calls_for(paths, model((1, 2, 2, 3), record=SMALL))
    next(calls)
    os.remove(paths[1])
    with pytest.raises(UsageError, match="no such file"):
        next(calls)
