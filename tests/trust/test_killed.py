"""Every step of load, convert, sign and encrypt is ended by a signal once.

A few steps by default; a sample of all of them by ``make test-faults``.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.bundle.sealer import new_key
from edgeinfer.bundle.signer import new_keys
from edgeinfer.cli.failures import TERMINATED
from tests.trust import marked
from tests.trust.injection import Kind, leftovers
from tests.trust.killed import Commands
from tests.trust.marked import Mark

pytest.importorskip("cryptography")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals and forks")

MOST = 20
"""Steps of an operation that are tried, evenly spread; of longer ones some are left out."""


class Place:
    """A folder with a bundle and keys; commands that read it and write next to it."""

    def __init__(self, folder: Path) -> None:
        self.out, self.temporary, self.cache = (folder / n for n in ("out", "temporary", "cache"))
        for made in (self.out, self.temporary):
            made.mkdir()
        self.cache.mkdir(mode=0o700)
        self.bundle = marked.write(
            folder / "b.edge", folder, Mark(folder / "mark"), formats=("onnx",)
        )
        new_keys(folder / "private", folder / "public")
        new_key(folder / "secret")
        np.savez(folder / "x.npz", image=np.ones((1, 3, 8, 8), np.float32))
        onnx.save(onnx.parser.parse_model(marked.GRAPH), str(folder / "m.onnx"))
        self.secret, self.output = folder / "secret", self.out / "o.edge"
        self.tree, self.arrays = self.out / "tree.edge", self.out / "o.npz"
        convert = ["convert", str(folder / "m.onnx"), "-t", "onnxruntime", "--overwrite", "-q"]
        sealed = ["-k", str(self.secret), "-o", str(self.output), "--overwrite"]
        self.words = {
            "load": ["run", str(self.bundle), str(folder / "x.npz"), "-o", str(self.arrays)],
            "convert": [*convert, "-o", str(self.output)],
            "convert-folder": [*convert, "-o", f"{self.tree}/"],
            "sign": ["sign", str(self.output), "-k", str(folder / "private")],
            "encrypt": ["encrypt", str(self.bundle), *sealed],
        }

    def before(self, operation: str) -> None:
        """Put a whole result there, which the command is to replace, and forget the cache."""
        shutil.rmtree(self.cache)
        self.cache.mkdir(mode=0o700)
        if operation == "convert-folder" and not self.tree.exists():
            shutil.unpack_archive(self.bundle, self.tree, "zip")
        elif operation != "load":
            shutil.copy(self.bundle, self.output)

    def check(self, *, killed: bool = False) -> None:
        """Whatever has a result's name is whole; nothing else is there, but after a kill."""
        if self.arrays.exists():
            with np.load(self.arrays) as found:
                assert found["scores"].tolist() == [[1.0, 1.0, 1.0]]
        names = [p for p in (self.output, self.tree) if p.exists()]
        for name in names:
            with edgeinfer.Bundle.open(name, key=self.secret) as opened:
                opened.check()
        if not killed:
            assert self.left() == []

    def left(self) -> list[Path]:
        """What is neither a result nor the cache's."""
        known = {self.output, self.tree, self.arrays}
        found = [p for p in self.out.iterdir() if p not in known]
        return [*found, *self.temporary.iterdir(), *leftovers(self.cache)]

    def age(self) -> None:
        """Let what is left be of another day."""
        for path in self.left():
            if not path.is_symlink():
                os.utime(path, (time.time() - 86_400,) * 2)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def commands(place: Place, tmp_path: Path) -> Iterator[Commands]:
    environment = {
        "TMPDIR": str(place.temporary),
        "EDGEINFER_CACHE": str(place.cache),
        "EDGEINFER_STATE": str(tmp_path / "state"),
        "EDGEINFER_IN_PROCESS": "1",
    }
    made = Commands(tmp_path, environment)
    yield made
    made.close()


def _end_at(place: Place, commands: Commands, operation: str, kind: Kind, at: int) -> None:
    words = place.words[operation]
    place.before(operation)
    code = commands.run(words, kind, at)
    told = commands.told
    if kind == "terminate":
        assert code == TERMINATED, f"step {at}: {code}: {told}"
        assert "Traceback" not in told
    else:
        assert code == -signal.SIGKILL
    place.check(killed=kind == "kill")
    place.age()
    assert commands.run(words) == 0, f"after step {at}: {commands.told}"
    place.check()


def _run(place: Place, commands: Commands, operation: str, kind: Kind, most: int) -> None:
    for _ in range(2):
        place.before(operation)
        assert commands.run(place.words[operation]) == 0, commands.told
        place.check()
    steps = commands.steps
    assert steps >= most or most == MOST
    chosen = np.unique(np.linspace(1, steps, most).astype(int)).tolist()
    for at in chosen:
        _end_at(place, commands, operation, kind, at)


OPERATIONS = ["load", "convert", "convert-folder", "sign", "encrypt"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["terminate", "kill"])
@pytest.mark.parametrize("operation", ["sign", "encrypt"])
def test_a_few_steps(place: Place, commands: Commands, operation: str, kind: Kind) -> None:
    _run(place, commands, operation, kind, 4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["terminate", "kill"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_steps(place: Place, commands: Commands, operation: str, kind: Kind) -> None:
    _run(place, commands, operation, kind, MOST)
