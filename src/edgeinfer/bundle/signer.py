"""Signing a bundle's manifest, and keys to do it with; ``signing`` says what a signature is."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.bundle.signing import (
    ALGORITHM,
    MAX_COUNTER,
    Signature,
    key_id,
    library,
    parse,
    pem_of,
)
from edgeinfer.errors import OutputError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign(
    manifest: bytes,
    private_key: Path,
    earlier: bytes | None = None,
    *,
    counter: int | None = None,
    time: int | None = None,
) -> tuple[bytes, str]:
    """Return the contents of ``signatures.json`` with one more signature, and the key's id.

    Args:
        manifest: bytes of ``manifest.json``.
        private_key: PEM file of an unencrypted Ed25519 key.
        earlier: signatures by others, kept; one by the same key is replaced.
        counter: Counter of this version of the model; None says nothing.
        time: seconds since 1970; None says nothing.

    Raises:
        UsageError: the key cannot be read or is of another kind.
        SignatureError: the earlier signatures are malformed.
        NotAvailableError: the library is missing; has the install line.
    """
    key = _private(private_key)
    identity = key_id(key.public_key())
    others = [s for s in parse(earlier) if s.key != identity] if earlier else []
    if counter is not None and not 0 <= counter <= MAX_COUNTER:
        raise UsageError(f"counter: expected 0 to {MAX_COUNTER}, received {counter}")
    unsigned = Signature(identity, b"", counter, time)
    signatures = [*others, replace(unsigned, value=key.sign(unsigned.message(manifest)))]
    entries = [
        {
            "algorithm": ALGORITHM,
            "key": s.key,
            "signature": base64.b64encode(s.value).decode(),
            **({"claims": s.claims} if s.claims else {}),
        }
        for s in sorted(signatures, key=lambda s: s.key)
    ]
    return (json.dumps({"signatures": entries}, indent=1) + "\n").encode(), identity


def new_keys(private_key: Path, public_key: Path) -> str:
    """Write a new pair of keys, the private one readable by its owner only; return the id.

    Raises:
        UsageError: a file exists.
        OutputError: one cannot be written.
        NotAvailableError: the library is missing; has the install line.
    """
    library()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    shown = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    for path, content, mode in ((private_key, secret, 0o600), (public_key, shown, 0o644)):
        try:
            path.touch(mode=mode, exist_ok=False)
            path.write_bytes(content)
        except FileExistsError as e:
            raise UsageError(f"{path}: exists; keys are never replaced") from e
        except OSError as e:
            # It is not whole, and it was not there before.
            with suppress(OSError):
                path.unlink()
            raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
    return key_id(key.public_key())


def _private(path: Path) -> Ed25519PrivateKey:
    library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem_of(path), password=None)
    # The library raises TypeError where a key is encrypted.
    except (ValueError, TypeError) as e:
        raise UsageError(f"{path}: not an unencrypted private key in PEM form: {e}") from e
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path}: expected an {ALGORITHM} key, received {type(key).__name__}")
    return key
