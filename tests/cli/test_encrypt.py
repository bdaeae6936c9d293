"""``edgeinfer encrypt`` and ``decrypt``, and every other command on what they make."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edgeinfer
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.types import TensorSpec

pytest.importorskip("cryptography")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EDGEINFER_BUNDLE_KEY", "EDGEINFER_BUNDLE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "bundle.key"


def test_encrypt_run_and_decrypt(
    cli: Any, bundle: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cli("encrypt", bundle, "--key", key, "--new-key", "--json")
    assert made.code == 0
    data = json.loads(made.out)
    sealed = Path(data["output"])
    assert sealed.name == f"{bundle.name.removesuffix('.edge')}.enc.edge"
    assert data["warnings"] == []
    locked = cli("verify", sealed)
    assert locked.code == 1
    assert "is encrypted and needs a key" in locked.err
    monkeypatch.setenv("EDGEINFER_BUNDLE_KEY_FILE", str(key))
    assert cli("verify", sealed).code == 0
    plain = json.loads(cli("inspect", bundle, "--json").out)
    hidden = json.loads(cli("inspect", sealed, "--json").out)
    assert hidden["variants"] == plain["variants"]
    back = tmp_path / "back.edge"
    assert cli("decrypt", sealed, "-o", back).out == f"{back}: decrypted with key {data['key']}\n"
    assert back.read_bytes() == bundle.read_bytes()
    signed = cli("sign", sealed, "--key", tmp_path / "a.pem", "--new-key", tmp_path / "a.pub")
    assert signed.code == 2
    assert "sign it first" in signed.err


def test_what_is_encrypted_already_is_told_so_with_or_without_its_key(
    cli: Any, bundle: Path, key: Path, tmp_path: Path
) -> None:
    sealed = tmp_path / "sealed.edge"
    assert cli("encrypt", bundle, "--key", key, "--new-key", "-o", sealed).code == 0
    again = cli("encrypt", sealed, "--key", key)
    assert (again.code, again.err) == (2, f"edgeinfer: {sealed}: is encrypted already\n")


def test_a_key_made_for_nothing_does_not_stay(
    cli: Any, bundle: Path, key: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.edge"
    broken.write_bytes(b"")
    for wrong in (tmp_path / "missing.edge", broken):
        assert cli("encrypt", wrong, "--key", key, "--new-key").code in (1, 2)
        assert not key.exists()
        pair = ("--key", tmp_path / "a.pem", "--new-key", tmp_path / "a.pub")
        assert cli("sign", wrong, *pair).code in (1, 2)
        assert not list(tmp_path.glob("a.p*"))
    assert cli("encrypt", bundle, "--key", key, "--new-key").code == 0
    assert cli("encrypt", bundle, "--key", key, "--new-key", "--overwrite").code == 2
    assert key.exists()
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG")
    sealed = next(tmp_path.glob("**/*.enc.edge"))
    for command, given in (("encrypt", bundle), ("decrypt", sealed)):
        refused = cli(command, given, "--key", key, "-o", photo, "--overwrite")
        assert refused.code == 2
        assert "photo.png: exists and is not a bundle" in refused.err
    assert photo.read_bytes() == b"\x89PNG"


def test_a_key_that_cannot_be_written_is_told_as_a_full_disk(
    cli: Any, bundle: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edgeinfer.bundle.sealing.os.fdopen", full)
    made = cli("encrypt", bundle, "--key", key, "--new-key")
    assert (made.code, made.err) == (
        3,
        f"edgeinfer: {key}: cannot be written: No space left on device\n",
    )
    assert not key.exists()


def test_key_never_shows(
    cli: Any, bundle: Path, key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    shown = [cli("encrypt", bundle, "--key", key, "--new-key")]
    secret = key.read_text().strip()
    sealed = bundle.with_name(f"{bundle.name.removesuffix('.edge')}.enc.edge")
    shown.append(cli("verify", sealed))
    key.write_text(secret[:-1])
    shown.append(cli("decrypt", sealed, "-k", key, "-o", bundle.with_name("back.edge")))
    assert shown[-1].code == 2
    key.chmod(0o644)
    key.write_text(secret)
    shown.append(cli("encrypt", bundle, "--key", key, "--overwrite"))
    assert "can be read by others than its owner" in shown[-1].out
    for result in shown:
        assert secret[:-1] not in result.out + result.err + caplog.text


def test_new_key_needs_a_place(cli: Any, bundle: Path) -> None:
    result = cli("encrypt", bundle, "--new-key")
    assert result.code == 2
    assert "to the file that --key names" in result.err


@pytest.mark.parametrize("isolate", [False, True])
def test_weights_in_a_file_of_their_own_stay_in_memory(
    cli: Any, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolate: bool
) -> None:
    """ONNX Runtime refuses links for external weights, so they go in from memory."""
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1, 64] x) => (float[1, 64] y) '
        "{ y = MatMul (x, w) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    source = tmp_path / "parts" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source, save_as_external_data=True, location="model.data", size_threshold=0)
    inputs, outputs = ((TensorSpec(name, "float32", (1, 64)),) for name in "xy")
    x = np.ones((1, 64), np.float32)
    plain = tmp_path / "parts.edge"
    with BundleWriter(plain) as writer:
        files = tuple(
            writer.add_bytes(f"variants/a/{n}", (source.parent / n).read_bytes())
            for n in ("model.onnx", "model.data")
        )
        vector = writer.add_vector(inputs, outputs, {"x": x}, {"y": x @ weights}, "user")
        writer.finish(
            Manifest(
                name="parts",
                inputs=inputs,
                outputs=outputs,
                variants=(
                    Variant(
                        id="a",
                        target="cpu",
                        format="onnx",
                        precision="fp32",
                        files=files,
                        engines=(EngineRequirement("onnxruntime"),),
                    ),
                ),
                vectors=(vector,),
                source=SourceRecord("onnx", "model.onnx", "0" * 64),
            )
        )
    sealed = tmp_path / "parts.enc.edge"
    assert cli("encrypt", plain, "--key", key, "--new-key", "-o", sealed).code == 0
    cache = tmp_path / "cache"
    monkeypatch.setenv("EDGEINFER_CACHE", str(cache))
    with edgeinfer.load(sealed, key=key, isolate=isolate) as session:
        np.testing.assert_allclose(session(x), x @ weights, rtol=1e-4)
    assert not [p for p in cache.rglob("*") if p.is_file() and p.stat().st_size > 1 << 16]
    assert not (cache / "bundles").exists()


def test_processes_of_engines_do_not_get_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.backends.process import child

    names = ("EDGEINFER_BUNDLE_KEY", "EDGEINFER_SERVE_KEYS", "EDGEINFER_UPSTREAM_KEY_BIG")
    for name in names:
        monkeypatch.setenv(name, "ab" * 32)
    assert "ab" * 32 not in child._environment("/tmp", None).values()
