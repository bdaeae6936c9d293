"""The search by meaning, on images and on real texts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from edgeinfer.heads import Embed
from tests.runtime.pipelines.conftest import MakeBundle, make
from tests.runtime.pipelines.test_image import COLOURS, SIZED

__all__ = ["make"]

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "search" / "search.py"


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("search_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_nearest_are_those_of_scikit_learn(search: ModuleType) -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = search.Index(vectors, tuple(map(str, range(500))))
    right = neighbors.NearestNeighbors(n_neighbors=7, metric="cosine").fit(vectors)
    for query in rng.normal(size=(20, 32)).astype(np.float32):
        found = index.nearest(query, 7)
        distances, places = right.kneighbors(query[None])
        assert [int(name) for _, name in found] == places[0].tolist()
        np.testing.assert_allclose([c for c, _ in found], 1 - distances[0], atol=1e-6)


def test_images_are_found_by_a_picture(
    search: ModuleType, make: MakeBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make("colours", COLOURS, head=Embed(), preprocessing={"image": SIZED})
    (tmp_path / "photos").mkdir()
    for name, colour in {
        "sky": (30, 60, 250),
        "leaf": (20, 200, 30),
        "rose": (240, 10, 60),
    }.items():
        Image.new("RGB", (9, 7), colour).save(tmp_path / "photos" / f"{name}.png")
    Image.new("RGB", (5, 5), (90, 230, 80)).save(tmp_path / "grass.png")
    index = str(tmp_path / "photos.npz")
    assert search.main([str(bundle), "index", str(tmp_path / "photos"), "-o", index]) == 0
    assert "3 vectors of 3 numbers" in capsys.readouterr().out
    assert search.main([str(bundle), "find", index, str(tmp_path / "grass.png"), "--top", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("leaf.png")
    assert float(first.split()[0]) > float(second.split()[0]) > 0


def test_an_index_is_what_was_written(search: ModuleType, tmp_path: Path) -> None:
    made = search.Index(np.eye(2, dtype=np.float32), ("größer", "two words"))
    made.save(tmp_path / "i.npz")
    found = search.load(tmp_path / "i.npz")
    assert found.names == made.names
    np.testing.assert_array_equal(found.vectors, made.vectors)
