"""``edgeinfer extract``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import profiles
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.signer import new_keys
from tests.cli.conftest import write_bundle


def test_all_variants_as_plain_files(cli: Any, bundle: Path, tmp_path: Path) -> None:
    told = cli("extract", bundle, "-o", tmp_path / "out")
    assert (told.code, told.err) == (0, "")
    names = [p.name for p in sorted((tmp_path / "out").iterdir())]
    assert names == ["cpu-onnx-fp32", "onnxruntime-onnx-fp32"]
    models = [tmp_path / "out" / name / "model.onnx" for name in names]
    assert told.out == "".join(
        f"{m}  144 B, onnx fp32 for {t}\n"
        for m, t in zip(models, ("cpu", "onnxruntime"), strict=True)
    )
    assert models[1].is_file()


def test_a_target_or_an_id_chooses(cli: Any, bundle: Path, tmp_path: Path) -> None:
    for number, given in enumerate((("-t", "cpu"), ("--variant", "cpu-onnx-fp32"))):
        data = json.loads(
            cli("extract", bundle, *given, "-o", tmp_path / f"{number}", "--json").out
        )
        (variant,) = data["variants"]
        folder = tmp_path / f"{number}" / "cpu-onnx-fp32"
        assert variant["artifact"] == str(folder / "model.onnx")
        assert set(variant["files"]) == {str(f) for f in folder.iterdir()}
    told = cli("extract", bundle, "-t", "ios", "-o", tmp_path / "none")
    assert (told.code, told.out) == (2, "")
    assert "no variant of 'ios'; the bundle has cpu-onnx-fp32 (target cpu)" in told.err
    assert not (tmp_path / "none").exists()


def test_an_alias_of_a_target_counts(cli: Any, bundle: Path, tmp_path: Path) -> None:
    alias, name = next((a, n) for n in profiles.names() for a in profiles.load(n).aliases)
    with Bundle.open(bundle) as opened:
        variant = replace(opened.manifest.variants[0], target=name)
    given = write_bundle(tmp_path / "m.edge", variants=(variant,))
    assert cli("extract", given, "-t", alias, "-o", tmp_path / "out").code == 0


def test_files_that_an_engine_is_told_about_are_written_once(
    cli: Any, bundle: Path, tmp_path: Path
) -> None:
    with Bundle.open(bundle) as opened:
        plain = opened.manifest.variants[0]
    row = replace(plain, id="told", precision="bf16", computed_in="bf16", consent="bf16")
    given = write_bundle(tmp_path / "m.edge", variants=(plain, row))
    assert cli("extract", given, "-o", tmp_path / "all").code == 0
    assert [p.name for p in (tmp_path / "all").iterdir()] == [plain.id]
    told = cli("extract", given, "--variant", "told", "-o", tmp_path / "one")
    assert "told: plain files of fp32: whoever opens them tells the engine to compute in bf16" in (
        " ".join(told.out.split())
    )


def test_nobody_signed_it(cli: Any, bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    new_keys(tmp_path / "key", tmp_path / "key.pub")
    for given in (("--trusted", tmp_path / "key.pub"), ("--require-signature",)):
        assert cli("extract", bundle, "-o", tmp_path / "out", *given).code == 1
        assert not (tmp_path / "out").exists()
    assert cli("sign", bundle, "--key", tmp_path / "key").code == 0
    given = ("--trusted", tmp_path / "key.pub")
    assert cli("extract", bundle, "-o", tmp_path / "out", *given).code == 0


def test_an_encrypted_one_needs_its_key(
    cli: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    for name in ("EDGEINFER_BUNDLE_KEY", "EDGEINFER_BUNDLE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    sealed, key = tmp_path / "m.enc.edge", tmp_path / "secret"
    assert cli("encrypt", bundle, "-k", key, "--new-key", "-o", sealed).code == 0
    refused = cli("extract", sealed, "-o", tmp_path / "out")
    assert (refused.code, "is encrypted and" in refused.err) == (1, True)
    assert not (tmp_path / "out").exists()
    told = cli("extract", sealed, "-o", tmp_path / "out", "-k", key)
    assert (told.code, "these files are in plain" in told.out) == (0, True)
    assert (tmp_path / "out" / "cpu-onnx-fp32" / "model.onnx").is_file()


@pytest.mark.parametrize("command", ["encrypt", "decrypt"])
def test_a_bundle_is_not_written_under_an_artifacts_name(
    cli: Any, command: str, bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    sealed, key = tmp_path / "m.enc.edge", tmp_path / "secret"
    assert cli("encrypt", bundle, "-k", key, "--new-key", "-o", sealed).code == 0
    given = bundle if command == "encrypt" else sealed
    refused = cli(command, given, "-k", key, "-o", tmp_path / "m.tflite")
    assert (refused.code, "end it with .edge" in refused.err) == (2, True)
    assert not (tmp_path / "m.tflite").exists()
