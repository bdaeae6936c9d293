"""Signed bundles: only what a trusted key signed is opened, and not a byte of it may differ."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.rules import SIGNATURES_NAME
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.errors import BundleError, SignatureError, UsageError
from tests.cli.conftest import write_bundle


class Keys:
    def __init__(self, folder: Path, name: str) -> None:
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        self.id = new_keys(self.private, self.public)


@pytest.fixture
def ours(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "ours")


def signed(path: Path, *keys: Keys) -> Path:
    for key in keys:
        with Bundle.open(path) as bundle:
            content, identity = sign(bundle.manifest_bytes(), key.private, bundle.signatures())
        assert identity == key.id
        put_signatures(path, content)
    return path


@pytest.mark.parametrize("form", ["m.edge", "folder/"])
def test_a_signed_bundle_opens_with_its_key(tmp_path: Path, ours: Keys, form: str) -> None:
    path = signed(write_bundle(f"{tmp_path}/{form}"), ours)  # type: ignore[arg-type]
    with Bundle.open(path, trusted=[ours.public]) as bundle:
        assert bundle.signed_by == ours.id
        bundle.check()
    with edgeinfer.load(path, trusted=[ours.public]) as session:
        assert session.verify().passed
    with Bundle.open(path) as bundle:
        assert bundle.signed_by == ""
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_signing_keeps_the_other_bytes_and_other_signatures(tmp_path: Path, ours: Keys) -> None:
    path = write_bundle(tmp_path / "m.edge")
    with zipfile.ZipFile(path) as archive:
        before = {i.filename: archive.read(i) for i in archive.infolist()}
    theirs = Keys(tmp_path, "theirs")
    signed(path, ours, theirs, ours)
    once = path.read_bytes()
    signed(path, theirs)
    assert path.read_bytes() == once
    with zipfile.ZipFile(path) as archive:
        after = {i.filename: archive.read(i) for i in archive.infolist()}
        assert [i.filename for i in archive.infolist()][:2] == ["manifest.json", SIGNATURES_NAME]
    assert len(json.loads(after.pop(SIGNATURES_NAME))["signatures"]) == 2
    assert after == before
    for key in (ours, theirs):
        with Bundle.open(path, trusted=[key.public]) as bundle:
            assert bundle.signed_by == key.id


def test_what_is_not_trusted_is_refused(tmp_path: Path, ours: Keys) -> None:
    path = write_bundle(tmp_path / "m.edge")
    with pytest.raises(SignatureError, match="is not signed, and a signature is required"):
        Bundle.open(path, trusted=[ours.public])
    theirs = Keys(tmp_path, "theirs")
    signed(path, theirs)
    with pytest.raises(
        SignatureError, match=f"is signed by {theirs.id}, expected one of {ours.id}"
    ):
        edgeinfer.load(path, trusted=[ours.public])


def test_an_altered_manifest_is_refused(tmp_path: Path, ours: Keys) -> None:
    path = signed(write_bundle(f"{tmp_path}/m/"), ours)  # type: ignore[arg-type]
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"colours"', '"colors"'))
    Bundle.open(path).close()
    with pytest.raises(SignatureError, match=f"the signature by key {ours.id} is not of it"):
        Bundle.open(path, trusted=[ours.public])


def test_an_altered_file_is_refused(tmp_path: Path, ours: Keys) -> None:
    path = signed(write_bundle(f"{tmp_path}/m/"), ours)  # type: ignore[arg-type]
    report = path / "report.json"
    report.write_text(report.read_text().replace("test", "tesT"))
    with pytest.raises(BundleError, match=r"report\.json is altered"):
        Bundle.open(path, trusted=[ours.public])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "malformed"),
        ("[]", "malformed"),
        ('{"signatures": [{"algorithm": "RSA"}]}', "algorithm 'RSA', expected Ed25519"),
        (
            '{"signatures": [{"algorithm": "Ed25519", "key": "k", "signature": "*"}]}',
            "not base64",
        ),
        ('{"signatures": []}', "is signed by nobody"),
        (" " * 70000, "too long"),
    ],
)
def test_malformed_signatures(tmp_path: Path, ours: Keys, content: str, message: str) -> None:
    path = write_bundle(f"{tmp_path}/m/")  # type: ignore[arg-type]
    (path / SIGNATURES_NAME).write_text(content)
    with pytest.raises(SignatureError, match=message):
        Bundle.open(path, trusted=[ours.public])


def test_a_device_may_demand_signatures_of_everything(
    tmp_path: Path, ours: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bundle(tmp_path / "m.edge")
    other = signed(Path(shutil.copy(path, tmp_path / "signed.edge")), ours)
    monkeypatch.setenv("EDGEINFER_TRUSTED_KEYS", str(ours.public))
    edgeinfer.load(other).close()
    with pytest.raises(SignatureError, match="is not signed"):
        edgeinfer.load(path)
    monkeypatch.setenv("EDGEINFER_TRUSTED_KEYS", "")
    with pytest.raises(UsageError, match="is set but names no key"):
        edgeinfer.load(other)


def test_keys_of_openssl(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private, public = tmp_path / "k.pem", tmp_path / "k.pub"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "pkey", "-in", private, "-pubout", "-out", public],
        check=True,
        capture_output=True,
    )
    content, identity = sign(b"{}", private)
    from edgeinfer.bundle.signing import verified

    assert verified(b"{}", content, [public])[0].key == identity


def test_keys_that_are_none(tmp_path: Path, ours: Keys) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        sign(b"", tmp_path / "absent")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UsageError, match="not a key in PEM form"):
        sign(b"", tmp_path / "text")
    with pytest.raises(UsageError, match="not an unencrypted private key"):
        sign(b"", ours.public)
    path = write_bundle(tmp_path / "m.edge")
    with pytest.raises(UsageError, match="is a private key; give the public one"):
        Bundle.open(path, trusted=[ours.private])
    with pytest.raises(UsageError, match="exists; keys are never replaced"):
        new_keys(ours.private, tmp_path / "other")
    assert ours.private.stat().st_mode & 0o077 == 0


def test_keys_of_another_kind(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    key = generate_private_key(SECP256R1())
    path = tmp_path / "ec.pem"
    path.write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
    with pytest.raises(UsageError, match="expected an Ed25519 key"):
        sign(b"", path)


def test_a_signature_that_is_required_needs_a_key(
    zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEINFER_TRUSTED_KEYS", raising=False)
    with Bundle.open(zipped):
        pass
    with pytest.raises(SignatureError, match="required, but no key is trusted"):
        Bundle.open(zipped, require_signature=True)
