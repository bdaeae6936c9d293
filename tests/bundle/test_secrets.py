"""Keys and plain weights leave no trace in core files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.bundle.sealer import new_key, seal
from edgeinfer.bundle.sealing import Key, key_from
from edgeinfer.bundle.secrets import wipe
from edgeinfer.errors import ClosedError

pytest.importorskip("cryptography")

_CRASH = """
import os, resource, signal, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from edgeinfer.bundle.archive import Bundle
bundle = Bundle.open(sys.argv[1], key=sys.argv[2])
held = bundle.read(bundle.manifest.variants[0].files[0])
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
print(open("/proc/self/coredump_filter").read() if sys.platform == "linux" else "0")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no core files")
def test_a_crash_leaves_no_core_file(zipped: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    seal(zipped, tmp_path / "sealed.edge", new_key(key))
    place = tmp_path / "cores"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _CRASH, str(tmp_path / "sealed.edge"), str(key)],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == -signal.SIGSEGV, done.stderr
    limit, kept = done.stdout.split()
    assert int(limit) in (0, 1)
    assert int(kept, 16) == 0
    assert not list(place.iterdir())


def test_the_key_is_overwritten_once_it_is_not_needed(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Manifest
) -> None:
    key = tmp_path / "key"
    seal(zipped, tmp_path / "sealed.edge", new_key(key))
    made: list[Key] = []

    def keep(given: Path) -> Key:
        made.append(key_from(given))
        return made[-1]

    monkeypatch.setattr("edgeinfer.bundle.sealing.key_from", keep)
    with Bundle.open(tmp_path / "sealed.edge", key=key) as bundle:
        assert bundle.manifest == manifest
        assert bundle.read(manifest.variants[0].files[0])
        (used,) = made
        assert not any(used._secret)
        with pytest.raises(ClosedError, match="was forgotten"):
            used.for_file(b"salt")


def test_digits_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("  " + "aB" * 32 + "\n")
    assert key_from(path)._secret == bytes.fromhex("ab" * 32)


def test_wiping_overwrites_in_place() -> None:
    secret = bytearray(b"secret")
    held = memoryview(secret)
    wipe(secret)
    assert bytes(held) == bytes(6)
