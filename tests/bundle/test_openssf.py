"""Bundles that OpenSSF's model-signing signed, by its own library."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer import installed
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from edgeinfer.errors import NotAvailableError, SignatureError, UsageError

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("model_signing") is None, reason="model_signing is not installed"
)
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


def _keys(folder: Path, name: str, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> Path:
    """Write a pair of keys; the public one ends with .pub."""
    key = ec.generate_private_key(curve())
    private, public = folder / name, folder / f"{name}.pub"
    pem, none = form.Encoding.PEM, form.NoEncryption()
    private.write_bytes(key.private_bytes(pem, form.PrivateFormat.PKCS8, none))
    spki = form.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, spki))
    return private


@pytest.fixture(params=["folder", "zipped"])
def bundle(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def _sign(bundle: Path, key: Path) -> Path:
    signing = pytest.importorskip("model_signing.signing")
    place = bundle.with_name(bundle.name + ".sig")
    signing.Config().use_elliptic_key_signer(private_key=key).sign(bundle, place)
    return place


@needs_library
@pytest.mark.parametrize("curve", CURVES, ids=lambda c: c.name)
def test_one_that_a_trusted_key_signed_is_opened(
    bundle: Path, tmp_path: Path, curve: type[ec.EllipticCurve]
) -> None:
    key = _keys(tmp_path, "ours", curve)
    place = _sign(bundle, key)
    with edgeinfer.Bundle.open(bundle, trusted=[f"{key}.pub"], require_signature=True) as opened:
        assert len(opened.signed_by) == 16
        assert opened.native.allowed
        file = next(iter(opened.manifest.files().values()))
        assert opened.path(file).is_file()
        assert bundle not in opened.path(file).parents
    place.rename(tmp_path / "elsewhere")
    with edgeinfer.Bundle.open(
        bundle, trusted=[f"{key}.pub"], signature=tmp_path / "elsewhere"
    ) as opened:
        opened.check()
    with pytest.raises(SignatureError, match=r"is not signed by .*\.sig, or signature="):
        edgeinfer.Bundle.open(bundle, trusted=[f"{key}.pub"])
    with pytest.raises(UsageError, match="no such file"):
        edgeinfer.Bundle.open(bundle, trusted=[f"{key}.pub"], signature=tmp_path / "none")


@needs_library
def test_what_others_signed_or_changed_is_refused(bundle: Path, tmp_path: Path) -> None:
    ours, other = _keys(tmp_path, "ours"), _keys(tmp_path, "other")
    place = _sign(bundle, other)
    with pytest.raises(SignatureError, match="is by none of"):
        edgeinfer.Bundle.open(bundle, trusted=[f"{ours}.pub"])
    signed = place.read_bytes()
    for content in (b"", b"{}", b"[" * 100_000, signed[:-40], signed.replace(b"payload", b"x")):
        place.write_bytes(content)
        with pytest.raises(SignatureError, match="is by none of"):
            edgeinfer.Bundle.open(bundle, trusted=[f"{other}.pub"])


@needs_library
def test_a_signature_of_another_bundle_is_refused(
    zipped: Path, folder: Path, tmp_path: Path
) -> None:
    key = _keys(tmp_path, "ours")
    one, other = folder, zipped
    manifest = json.loads((one / "manifest.json").read_text())
    (one / "manifest.json").write_text(json.dumps({**manifest, "name": "another"}))
    place = _sign(one, key)
    with edgeinfer.Bundle.open(one, trusted=[f"{key}.pub"]):
        pass
    with pytest.raises(SignatureError, match=r"has no SHA-256 of \."):
        edgeinfer.Bundle.open(other, trusted=[f"{key}.pub"], signature=place)
    (one / "manifest.json").write_text(json.dumps({**manifest, "name": "yet another"}))
    with pytest.raises(SignatureError, match="is of another bundle, or it was altered"):
        edgeinfer.Bundle.open(one, trusted=[f"{key}.pub"], signature=place)
    place = _sign(other, key)
    with other.open("r+b") as file:
        # The time of the first member, which nobody reads.
        file.seek(10)
        file.write(b"\1")
    with pytest.raises(SignatureError, match="is of another bundle, or it was altered"):
        edgeinfer.Bundle.open(other, trusted=[f"{key}.pub"])


@needs_library
def test_keys_of_both_kinds_count_together(bundle: Path, tmp_path: Path) -> None:
    theirs = _keys(tmp_path, "theirs")
    new_keys(tmp_path / "ours", tmp_path / "ours.pub")
    both = [f"{theirs}.pub", str(tmp_path / "ours.pub")]
    with pytest.raises(SignatureError, match=r"is not signed by .*; is not signed, and"):
        edgeinfer.Bundle.open(bundle, trusted=both)
    _sign(bundle, theirs)
    with edgeinfer.Bundle.open(bundle, trusted=both) as opened:
        assert len(opened.signatures_by) == 1
        content, _ = sign(opened.manifest_bytes(), tmp_path / "ours")
    with pytest.raises(SignatureError, match="expected 2 of those trusted"):
        edgeinfer.Bundle.open(bundle, trusted=both, signers=2)
    put_signatures(bundle, content)
    # What ours changed of the bundle, theirs has to sign again.
    _sign(bundle, theirs)
    with edgeinfer.Bundle.open(bundle, trusted=both, signers=2) as opened:
        first, second = (signature.key for signature in opened.signatures_by)
    revoked = tmp_path / "revoked"
    revoked.write_text(f"{first}\n")
    with edgeinfer.Bundle.open(bundle, trusted=both, revoked=revoked) as opened:
        assert opened.signed_by == second


@needs_library
def test_commands_take_it(bundle: Path, tmp_path: Path) -> None:
    key = _keys(tmp_path, "ours")
    place = _sign(bundle, key)
    place.rename(tmp_path / "s")
    words = ["inspect", str(bundle), "--trusted", f"{key}.pub"]
    assert guarded(group, [*words, "--signature", str(tmp_path / "s")]) == 0
    assert guarded(group, words) == 1


def test_without_the_library_it_says_what_to_install(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = _keys(tmp_path, "ours")
    bundle.with_name(bundle.name + ".sig").write_text("{}")
    monkeypatch.setitem(sys.modules, "model_signing", None)
    monkeypatch.setattr(installed, "package", lambda: installed.RUNTIME)
    line = r"need its library .*; pip install 'edgeinfer-runtime\[model-signing\]'"
    with pytest.raises(NotAvailableError, match=line):
        edgeinfer.Bundle.open(bundle, trusted=[f"{key}.pub"])
