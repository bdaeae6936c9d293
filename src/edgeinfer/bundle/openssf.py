"""Signatures by OpenSSF's model-signing, checked by its own library.

Such a signature is a Sigstore bundle in a file of its own, ``NAME.sig`` next to the bundle: a
statement with the hash of every file, signed by an elliptic curve key (P-256, P-384, P-521). The
library says whether a trusted key signed the statement; what it says of the manifest, which has the
hash of everything else, or of the zip as a whole, is compared here with what is opened.

Source: the model signing specification, version 1.0.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.rules import MANIFEST_NAME
from edgeinfer.errors import NotAvailableError, SignatureError, UsageError
from edgeinfer.installed import install
from edgeinfer.printable import visible

SUFFIX = ".sig"
WHOLE = "."
"""What a statement calls a model that is one file."""

_MOST = 4 << 20
"""Bytes of a signature's file, some 150 for each file of a model; the library makes objects of
them that take 27 times as much."""


def beside(location: Path, given: str | os.PathLike[str] | None) -> Path | None:
    """Return the file with the signature; None where there is none.

    Raises:
        UsageError: the one that was named is not there.
    """
    if given is not None:
        if not Path(given).is_file():
            raise UsageError(f"{given}: no such file")
        return Path(given)
    found = location.with_name(location.name + SUFFIX)
    return found if found.is_file() else None


def signed_by(signature: Path, keys: Mapping[str, Path], wanted: Mapping[str, str]) -> list[str]:
    """Return the ids of the keys that signed what is opened.

    Args:
        signature: the file with it.
        keys: PEM files of public keys by their ids.
        wanted: SHA-256 by name: of the manifest, and of the file that a bundle is, if it is one.

    Raises:
        SignatureError: it is by another key, malformed, or of something else.
        NotAvailableError: the library is missing; has the install line.
    """
    try:
        from model_signing import verifying
    except ImportError as e:
        raise NotAvailableError(
            f"{signature}: signatures of OpenSSF's model-signing need its library ({e}); "
            f"{install('model-signing')}"
        ) from e
    try:
        read_bounded(signature, _MOST)
    except OSError as e:
        raise SignatureError(f"{signature.name} cannot be read: {e.strerror or e}") from e
    found, reasons = [], []
    for identity, key in keys.items():
        hashing = _Told()
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
        try:
            # It prints of signatures by versions before 1.0.
            with contextlib.redirect_stdout(io.StringIO()):
                config.set_hashing_config(hashing).verify(Path(signature.name), signature)
        # The library lets through whatever a malformed file provokes in it.
        except Exception as e:
            reasons.append(visible(" ".join(str(e).split()))[:160] or type(e).__name__)
            continue
        _compare(signature.name, hashing.digests, wanted)
        found.append(identity)
    if not found:
        raise SignatureError(f"{signature.name} is by none of {', '.join(keys)}: {reasons[0]}")
    return found


def _compare(name: str, signed: Mapping[str, tuple[str, str]], wanted: Mapping[str, str]) -> None:
    what = WHOLE if WHOLE in wanted else MANIFEST_NAME
    if what not in signed or signed[what][0] != "sha256":
        hint = "sign it whole and with SHA-256, as the library does unless it is set otherwise"
        raise SignatureError(f"{name} has no SHA-256 of {what}; {hint}")
    if signed[what][1] != wanted[what]:
        raise SignatureError(f"{name} is of another bundle, or it was altered since")


class _Told:
    """Takes the place of the library's hashing, and learns what was signed."""

    def __init__(self) -> None:
        self.digests: dict[str, tuple[str, str]] = {}

    def add_ignored_paths(self, *, model_path: object, paths: Sequence[object]) -> None:
        """What the signer left out does not matter: the manifest has the hash of every file."""

    def hash(self, model_path: object, files_to_hash: object = None) -> _Told:
        """Return what the library compares with the statement."""
        return self

    def __eq__(self, statement: object) -> bool:
        descriptors: Any = getattr(statement, "resource_descriptors")()  # noqa: B009
        self.digests = {
            each.identifier: (each.digest.algorithm, each.digest.digest_hex) for each in descriptors
        }
        return True

    __hash__ = None  # type: ignore[assignment]
