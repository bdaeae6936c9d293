"""``edgeinfer run`` on a bundle that says which colour an image has."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.cli.run import joined
from edgeinfer.errors import UsageError
from edgeinfer.media import read_arrays

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def red(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    return tmp_path / "red.png"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, image=np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3))
    return path


def test_a_picture_is_named(cli: Any, bundle: Path, red: Path) -> None:
    result = cli("run", bundle, red, "--backend", "onnxruntime", "--threads", "1")
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    assert first.split(" on ")[1].startswith("onnxruntime ")
    assert first.endswith(" (cpu), 1 threads")
    assert rest == ["", " score  label", "1.0000  red", "0.0000  green", "0.0000  blue"]


def test_arrays_in_and_out_by_the_model_s_names(cli: Any, bundle: Path, arrays: Path) -> None:
    saved = bundle.with_name("out.npz")
    result = cli("run", bundle, arrays, "-o", saved, "--quiet")
    assert result == type(result)(0, "", "")
    outputs = read_arrays(saved)
    assert list(outputs) == ["scores"]
    np.testing.assert_allclose(outputs["scores"], [[4.5, 5.5, 6.5]])


def test_an_earlier_result_is_replaced(cli: Any, bundle: Path, arrays: Path) -> None:
    saved = bundle.with_name("out.npz")
    for _ in range(2):
        assert cli("run", bundle, arrays, "-o", saved, "-q").code == 0
    saved.write_text("something else")
    result = cli("run", bundle, arrays, "-o", saved, "-q")
    assert result.code == 2
    assert result.err.endswith("exists and is no npz file; add --overwrite\n")
    assert saved.read_text() == "something else"
    assert cli("run", bundle, arrays, "-o", saved, "-q", "--overwrite").code == 0


def test_several_pictures_are_one_batch(cli: Any, bundle: Path, red: Path) -> None:
    blue = red.with_name("blue.png")
    Image.new("RGB", (4, 4), (0, 0, 255)).save(blue)
    result = cli("run", bundle, red, blue, red, "--json")
    data = json.loads(result.out)
    assert [row[0]["label"] for row in data["top"]] == ["red", "blue", "red"]
    assert data["outputs"]["scores"]["shape"] == [3, 3]


def test_no_latency_is_told_of_a_run_that_warms_up(cli: Any, bundle: Path, arrays: Path) -> None:
    assert json.loads(cli("run", bundle, arrays, "--json").out)["latency_ms"] is None


def test_json_says_what_ran(cli: Any, bundle: Path, arrays: Path) -> None:
    data = json.loads(cli("run", bundle, arrays, "--json", "--repeat", "4").out)
    assert data["backend"] == "onnxruntime"
    assert data["device"] == "cpu"
    assert data["latency_ms"]["runs"] == 4
    assert data["outputs"]["scores"] == {
        "dtype": "float32",
        "shape": [1, 3],
        "values": [[4.5, 5.5, 6.5]],
        "min": 4.5,
        "mean": 5.5,
        "max": 6.5,
    }


def test_outputs_without_labels_are_summed_up(cli: Any, tmp_path: Path, arrays: Path) -> None:
    from tests.cli.conftest import write_bundle

    plain = write_bundle(tmp_path / "plain.edge", labels=())
    lines = cli("run", plain, arrays, "--repeat", "3").out.splitlines()
    assert lines[2:4] == [
        "output  type     shape   min  mean  max",
        "scores  float32  [1, 3]  4.5   5.5  6.5",
    ]
    assert lines[5].startswith("3 runs: median ")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"image": np.zeros((1, 2, 2, 3))}, 1, "input 'image': expected float32, received float64"),
        (
            {"image": np.zeros((1, 3, 2, 3), np.float32)},
            1,
            "input 'image': expected",
        ),
        ({"image": np.full((1, 2, 2, 3), np.nan, np.float32)}, 1, "NaN or infinite"),
        ({"other": np.zeros(1)}, 1, "input 'other': expected an input of the model ('image')"),
    ],
)
def test_bad_arrays(
    cli: Any, bundle: Path, arrays: Path, change: dict[str, Any], code: int, message: str
) -> None:
    np.savez(arrays, **change)
    result = cli("run", bundle, arrays)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_nan_on_request(cli: Any, bundle: Path, arrays: Path) -> None:
    np.savez(arrays, image=np.full((1, 2, 2, 3), np.nan, np.float32))
    result = cli("run", bundle, arrays, "--allow-nonfinite", "--json")
    assert result.code == 0
    assert json.loads(result.out, parse_constant=pytest.fail)["outputs"]["scores"]["max"] == "nan"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no INPUT given; the model takes image: float32[N, 2, 2, 3]"),
        (["none.png"], 2, "none.png: no such file"),
        (["in.npz", "--backend", "nope"], 2, "unknown backend 'nope'"),
        (["in.npz", "--policy", "fast"], 2, "policy 'fast' is unknown"),
        (["in.npz", "-o", "out.txt"], 2, "expected a name that ends with .npz"),
        (["in.npz", "-o", "none/out.npz"], 3, "the folder none does not exist"),
        (["in.npz", "--repeat", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_bad_arguments(
    cli: Any,
    bundle: Path,
    arrays: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(arrays.parent)
    result = cli("run", bundle, *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_not_a_bundle(cli: Any, tmp_path: Path, arrays: Path) -> None:
    text = tmp_path / "text.edge"
    text.write_text("hello")
    assert cli("run", text, arrays).code == 1
    assert cli("run", tmp_path / "none.edge", arrays).code == 2


def test_outputs_are_joined_along_the_batch() -> None:
    whole = joined([{"y": np.zeros((2, 3))}, {"y": np.ones((1, 3))}], [2, 1])
    np.testing.assert_array_equal(whole["y"][:, 0], [0, 0, 1])


def test_outputs_without_a_batch_are_stacked() -> None:
    assert joined([{"y": np.zeros(3)}, {"y": np.ones(3)}], [None, None])["y"].shape == (2, 3)
    assert joined([{"y": np.zeros(())}, {"y": np.ones(())}], [1, 1])["y"].shape == (2,)


def test_outputs_of_several_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"another size in each run \(\[2\], \[3\]\)"):
        joined([{"y": np.zeros(2)}, {"y": np.ones(3)}], [None, None])


def test_verbose_says_why_this_engine(cli: Any, bundle: Path, red: Path) -> None:
    plain = cli("run", bundle, red).out
    told = cli("run", bundle, red, "-v").out
    assert told.startswith(plain)
    lines = told.removeprefix(plain).splitlines()
    assert lines[0] == ""
    assert ", policy latency" in lines[1]
    assert lines[2].startswith("  1. ")
    ranking = json.loads(cli("run", bundle, red, "--json").out)["ranking"]
    assert len(ranking["candidates"]) <= len(lines) - 2
    for place, candidate in enumerate(ranking["candidates"]):
        assert lines[2 + place].startswith(f"  {place + 1}. {candidate['variant']} on ")
    assert ranking["candidates"][0]["backend"] in lines[1]
    assert set(ranking) == {"candidates", "rejected"}
