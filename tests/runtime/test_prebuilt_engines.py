"""Options that somebody named for engines, and who may name them."""

import json
import os
from pathlib import Path

import pytest

from edgeinfer.bundle.cache import cache_root, writable_folder
from edgeinfer.bundle.manifest import FileRecord, Variant
from edgeinfer.runtime import prebuilt_engines

VARIANT = Variant("a", "cpu", "onnx", "fp32", (FileRecord("m.onnx", "0" * 64, 1),), ())
OPTIONS = {"workspace_mb": "1"}


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    prebuilt_engines._remember(VARIANT, "tensorrt", {"x": ((1,), (2,), (3,))}, OPTIONS)
    (file,) = writable_folder("engines", "named").iterdir()
    return file


def test_what_was_named_is_remembered(named: Path) -> None:
    assert prebuilt_engines.options_named(VARIANT, "tensorrt") == OPTIONS
    assert prebuilt_engines._remembered(VARIANT).shapes == {"x": ((1,), (2,), (3,))}


@pytest.mark.parametrize("level", ["", "engines", "engines/named"])
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_folders_of_others_name_nothing(named: Path, tmp_path: Path, level: str, how: str) -> None:
    place = cache_root() / level
    if how == "owner":
        if os.geteuid():
            pytest.skip("only root gives folders away")
        os.chown(place, 65534, 65534)
    elif how == "mode":
        place.chmod(0o777)
    else:
        place.rename(tmp_path / "theirs")
        place.symlink_to(tmp_path / "theirs")
    assert named.is_file()
    assert prebuilt_engines.options_named(VARIANT, "tensorrt") == {}
    assert prebuilt_engines._remembered(VARIANT).shapes == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", " " * (2 << 20) + json.dumps({})])
def test_damaged_files_name_nothing(named: Path, content: str) -> None:
    named.write_text(content)
    assert prebuilt_engines.options_named(VARIANT, "tensorrt") == {}
