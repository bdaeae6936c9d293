"""What killed processes leave, what fills disks, what hides in files, and what never ends."""

import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer import cli
from edgeinfer.bundle import eviction, writer
from edgeinfer.bundle.staging import Staging
from edgeinfer.convert.verify.witness import Abstains, OnnxRuntime
from edgeinfer.errors import BundleError, OutputError, RefusedError, UsageError
from tests.trust import marked
from tests.trust.marked import Mark

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    mark = Mark(tmp_path / "mark")
    return marked.write(tmp_path / "b.edge", tmp_path, mark, formats=("onnx",), name="b")


@posix
def test_what_a_killed_writer_left_is_swept_by_the_next_one_of_any_output(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from edgeinfer.bundle.staging import Staging\n"
        "made = Staging(Path(sys.argv[1])); (made.tree / 'x').write_text('x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    place = str(tmp_path / "killed.edge")
    ended = subprocess.run([sys.executable, "-c", code, place], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".killed.edge.tmp-*")
    alive = Staging(tmp_path / "alive.edge")
    assert not left.exists()
    other = Staging(tmp_path / "other.edge")
    assert alive.root.exists()
    for staging in (alive, other):
        staging.remove()
    assert not list(tmp_path.iterdir())


def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    free = {temporary: 0, tmp_path: 1 << 40}
    monkeypatch.setattr(writer, "free_bytes", lambda folder: free[folder])
    full = OSError(28, "No space left on device")

    def told() -> str:
        with pytest.raises(OutputError) as caught, writer.writing(tmp_path / "m.edge"):
            raise full
        return str(caught.value)

    assert told().endswith(f"in the temporary folder {temporary}; set TMPDIR to another one")
    free[tmp_path] = 0
    assert told().endswith("m.edge: No space left on device")


def test_the_cache_stays_below_its_limit(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("EDGEINFER_CACHE", str(cache))
    old, older, lately = (cache / "bundles" / name for name in ("old", "older", "lately"))
    for entry, age_s in ((old, 7200), (older, 9000), (lately, 60)):
        entry.mkdir(parents=True, mode=0o700)
        (entry / "x").write_bytes(bytes(600_000))
        os.utime(entry, (time.time() - age_s,) * 2)
    for level in (cache, cache / "bundles"):
        level.chmod(0o700)
    monkeypatch.setenv(eviction.ENV, "1.5")
    with edgeinfer.Bundle.open(bundle) as opened:
        opened.paths(opened.manifest.variants[0])
        # What may be about to be opened stays, whatever the limit is.
        assert [p.exists() for p in (old, older, lately)] == [True, False, True]
    monkeypatch.setenv(eviction.ENV, "0")
    monkeypatch.setenv("EDGEINFER_CACHE", str(cache))
    eviction.trim(cache / "bundles" / opened.digest)
    assert [p.exists() for p in (old, lately)] == [False, True]
    assert (cache / "bundles" / opened.digest).exists()
    monkeypatch.setenv(eviction.ENV, "much")
    with pytest.raises(UsageError, match="EDGEINFER_CACHE_MB: expected megabytes"):
        eviction.limit_bytes()


def _behind(raw: bytes, other: bytes) -> bytes:
    return raw + other


def _before(raw: bytes, other: bytes) -> bytes:
    return other + raw


def _as_comment(raw: bytes, other: bytes) -> bytes:
    stream = io.BytesIO(raw)
    with zipfile.ZipFile(stream, "a") as opened:
        opened.comment = other[:60_000]
    return stream.getvalue()


def _between(raw: bytes, other: bytes) -> bytes:
    """Move the list of members behind another zip."""
    start = zipfile.ZipFile(io.BytesIO(raw)).start_dir
    moved = (start + len(other)).to_bytes(4, "little")
    return raw[:start] + other + raw[start:-6] + moved + raw[-2:]


@pytest.mark.parametrize("hide", [_behind, _before, _as_comment, _between])
def test_a_second_zip_in_a_file_is_refused(
    bundle: Path, tmp_path: Path, hide: Callable[[bytes, bytes], bytes]
) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as other:
        other.writestr("manifest.json", "{}")
    path = tmp_path / "two.edge"
    path.write_bytes(hide(bundle.read_bytes(), stream.getvalue()))
    with pytest.raises(BundleError, match=r"that belong to none|which may be another zip"):
        edgeinfer.Bundle.open(path)


@pytest.mark.parametrize("how", ["plain", "streamed", "deflated", "zip64"])
def test_zips_of_other_tools_are_read(
    bundle: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return how != "streamed"

        def tell(self) -> int:
            if how == "streamed":
                raise OSError
            return super().tell()

    if how == "zip64":
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    out = Stream()
    kind = zipfile.ZIP_DEFLATED if how == "deflated" else zipfile.ZIP_STORED
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(out, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    path = tmp_path / "other.edge"
    path.write_bytes(out.getvalue())
    with edgeinfer.Bundle.open(path) as opened:
        assert opened.manifest.name == "b"


def test_an_interrupt_before_a_command_begins_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_main", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "edgeinfer: interrupted\n"


@posix
def test_too_few_addresses_are_a_line_and_no_finding_about_the_model(bundle: Path) -> None:
    command = f"ulimit -v 100000; exec '{sys.executable}' -m edgeinfer inspect '{bundle}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("edgeinfer: the limit of addresses is 97 MB")


def test_an_artifact_that_its_only_engine_refuses_is_the_bundles_fault(
    bundle: Path, tmp_path: Path
) -> None:
    from tests.fuzz.mutate import refitted

    def damage(members: dict[str, bytes]) -> None:
        (name,) = [n for n in members if n.endswith(".onnx")]
        members[name] = b"\xff" * len(members[name])

    path = tmp_path / "damaged.edge"
    path.write_bytes(refitted(bundle.read_bytes(), damage))
    with pytest.raises(RefusedError, match="onnxruntime refuses") as caught:
        edgeinfer.load(path, backend="onnxruntime")
    assert caught.value.exit_code == 1


def test_a_run_without_end_is_ended(tmp_path: Path) -> None:
    body = "b (int64 i, bool k, float[2] v) => (bool o, float[2] w) { o = Identity(k) w = Neg(v) }"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c) => (float[2] y)'
        f"{{ y = Loop <body = {body}> (, c, x) }}"
    )
    onnx.save(model, str(tmp_path / "m.onnx"))
    witness = OnnxRuntime(tmp_path / "m.onnx", 0.2)
    feeds = {"x": np.ones(2, np.float32), "c": np.array(False)}
    assert witness.run(feeds)["y"].tolist() == [1, 1]
    with pytest.raises(Abstains, match=r"no end after 0.2 s; --time-limit"):
        witness.run({**feeds, "c": np.array(True)})
