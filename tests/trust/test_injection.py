"""Every step of load, convert, sign and encrypt fails once: nothing half-written, nothing poisoned.

A few steps of the quick operations by default; all of them, conversion too, by
``make test-faults``.
"""

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.bundle.sealer import new_key, seal
from edgeinfer.bundle.sealing import key_from
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.cli.failures import BUG, describe
from edgeinfer.convert.pipeline.entry import export
from tests.trust import marked
from tests.trust.injection import CLOCKS, KINDS, Kind, injected, leftovers, steps_of
from tests.trust.marked import Mark

pytest.importorskip("cryptography")
pytest.importorskip("onnxruntime")

PART = (2, 5)
"""Steps of the default run."""


class Place:
    """A folder with a bundle and keys; operations that read it and write next to it."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary = folder, temporary
        self.bundle = marked.write(
            folder / "b.edge", folder, Mark(folder / "mark"), formats=("onnx",)
        )
        self.whole = self.bundle.read_bytes()
        self.key = new_keys(folder / "private", folder / "public")
        new_key(folder / "secret")
        onnx.save(onnx.parser.parse_model(marked.GRAPH), str(folder / "m.onnx"))

    def load(self) -> None:
        with edgeinfer.load(self.bundle, backend="onnxruntime", measure=False) as session:
            feeds = {"image": np.ones((1, 3, 8, 8), np.float32)}
            assert session.run(feeds)["scores"].tolist() == [[1.0, 1.0, 1.0]]

    def convert(self) -> None:
        export(self.folder / "m.onnx", self.output, targets=["onnxruntime"], overwrite=True)

    def sign(self) -> None:
        shutil.copy(self.bundle, self.output)
        with edgeinfer.Bundle.open(self.output) as opened:
            content, _ = sign(opened.manifest_bytes(), self.folder / "private")
        put_signatures(self.output, content)

    def encrypt(self) -> None:
        secret = key_from(self.folder / "secret")
        seal(self.bundle, self.output, secret, overwrite=True)

    @property
    def output(self) -> Path:
        return self.folder / "out" / "o.edge"

    def check(self) -> None:
        """Nothing is half-written, and nothing is left behind."""
        gc.collect()
        assert self.bundle.read_bytes() == self.whole
        assert leftovers(self.folder / "out", self.temporary) == []
        if self.output.exists() and self.output.stat().st_size:
            with edgeinfer.Bundle.open(self.output, key=self.folder / "secret") as opened:
                opened.check()
            self.output.unlink()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("EDGEINFER_IN_PROCESS", "1")
    for name in ("work", "work/out", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return Place(tmp_path / "work", tmp_path / "temporary")


def _fail(
    act: Callable[[], None], place: Place, kind: Kind, at: int, fresh: Callable[[int], None]
) -> None:
    """Fail one step, look at what is left, and do it again without a failure."""
    fresh(at)
    error: BaseException | None = None
    try:
        with injected(kind, at):
            act()
    except (Exception, KeyboardInterrupt) as e:
        error = e
    if isinstance(error, Exception):
        assert describe(error).code != BUG, f"step {at}: {error!r}"
    assert kind not in CLOCKS or error is None, f"step {at}: {error!r}"
    assert kind == "interrupt" or not isinstance(error, KeyboardInterrupt)
    # What it holds of the frames would keep what they hold.
    del error
    place.check()
    act()
    place.check()


def _run(
    place: Place,
    operation: str,
    kind: Kind,
    chosen: Callable[[int], Iterator[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    act = getattr(place, operation)

    def fresh(number: int) -> None:
        # What a failed attempt left in the cache is what the next one finds.
        monkeypatch.setenv("EDGEINFER_CACHE", str(place.folder / f"cache-{number}"))

    fresh(0)
    act()
    place.check()
    fresh(-1)
    steps = steps_of(act)
    place.check()
    assert steps >= max(PART)
    for at in chosen(steps):
        _fail(act, place, kind, at, fresh)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["load", "sign", "encrypt"])
def test_a_few_steps(
    place: Place, operation: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(place, operation, kind, lambda steps: iter(PART), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["load", "convert", "sign", "encrypt"])
def test_every_step(
    place: Place, operation: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(place, operation, kind, lambda steps: iter(range(1, steps + 1)), monkeypatch)
