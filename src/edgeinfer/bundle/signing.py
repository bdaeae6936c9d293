"""Signatures of bundles: Ed25519 over the manifest, which holds the hash of every file.

Keys are PEM files as OpenSSL writes them (``openssl genpkey -algorithm ed25519 -out key.pem``,
``openssl pkey -in key.pem -pubout -out public.pem``). The signed message is a fixed prefix, a zero
byte and the bytes of ``manifest.json``; signatures (RFC 8032) lie in ``signatures.json``.
A signature that says more, a counter and when it was made, is over another prefix, those claims as
canonical JSON, a zero byte and the manifest; the time is the signer's word.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.bounded import parse_json, read_bounded
from edgeinfer.bundle.rules import SIGNATURES_NAME
from edgeinfer.errors import NotAvailableError, SignatureError, UsageError
from edgeinfer.installed import install
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ALGORITHM = "Ed25519"

_PREFIX = b"edgeinfer bundle manifest v1\0"
_PREFIX_CLAIMS = b"edgeinfer bundle statement v1\0"
MAX_COUNTER = 2**53
_BEGIN = b"-----BEGIN "


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed.

    Attributes:
        key: first 16 hex digits of the SHA-256 of the raw public key.
        value: the signature's 64 bytes.
        counter: which may not fall from one version of a model to the next; None says nothing.
        time: seconds since 1970 when it was made, as the signer says; None likewise.
    """

    key: str
    value: bytes
    counter: int | None = None
    time: int | None = None

    @property
    def claims(self) -> dict[str, int]:
        """What it says besides that the key signed the manifest."""
        said = {"counter": self.counter, "time": self.time}
        return {name: value for name, value in said.items() if value is not None}

    def message(self, manifest: bytes) -> bytes:
        """Return the very bytes that it is over."""
        if not self.claims:
            return _PREFIX + manifest
        text = json.dumps(self.claims, sort_keys=True, separators=(",", ":"))
        return _PREFIX_CLAIMS + text.encode() + b"\0" + manifest


def verified(
    manifest: bytes,
    signatures: bytes | None,
    keys: Sequence[Path],
    *,
    signers: int = 1,
    revoked: Collection[str] = (),
) -> tuple[Signature, ...]:
    """Return the signatures of the manifest by trusted keys, in the file's order.

    Args:
        manifest: bytes of ``manifest.json``.
        signatures: bytes of ``signatures.json``; None when the bundle has none.
        keys: PEM files of public keys that are trusted.
        signers: how many of them must have signed it.
        revoked: ids of keys that count no more.

    Raises:
        SignatureError: it is unsigned, signed by others only or by too few, or a signature by a
            trusted key is not of it.
        UsageError: a key cannot be read or is of another kind.
        NotAvailableError: the library is missing; has the install line.
    """
    if not keys:
        raise UsageError("a signature is required, but no public key was given")
    trusted = {key_id(key): key for key in map(_public, keys)}
    trusted = {identity: key for identity, key in trusted.items() if identity not in revoked}
    if signatures is None:
        raise SignatureError("is not signed, and a signature is required")
    found = parse(signatures)
    good = _good(manifest, found, trusted)
    if len(good) < max(1, signers):
        number = "one" if signers <= 1 else str(signers)
        raise SignatureError(
            f"is signed by {_list(s.key for s in found)}, expected {number} of {_list(trusted)}"
        )
    return good


def _good(
    manifest: bytes, found: Iterable[Signature], trusted: Mapping[str, Ed25519PublicKey]
) -> tuple[Signature, ...]:
    """Return those by trusted keys, each key's once.

    Raises:
        SignatureError: one of them is not of the manifest.
    """
    from cryptography.exceptions import InvalidSignature

    good: dict[str, Signature] = {}
    for signature in found:
        key = trusted.get(signature.key)
        if key is None:
            continue
        try:
            key.verify(signature.value, signature.message(manifest))
        except InvalidSignature as e:
            raise SignatureError(f"the signature by key {signature.key} is not of it") from e
        good.setdefault(signature.key, signature)
    return tuple(good.values())


def curve_keys(keys: Sequence[Path]) -> dict[str, Path]:
    """Return those public keys that are of elliptic curves, by id: model-signing's, not ours.

    Raises:
        UsageError: a key cannot be read or is of another kind.
        NotAvailableError: the library is missing; has the install line.
    """
    library()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    found = {}
    for path in keys:
        key = _loaded(path)
        if isinstance(key, EllipticCurvePublicKey):
            spki = form.PublicFormat.SubjectPublicKeyInfo
            pem = key.public_bytes(form.Encoding.PEM, spki)
            # The hint that model-signing's signatures have of their key.
            found[hashlib.sha256(pem).hexdigest()[:16]] = path
    return found


def ids_of(keys: Sequence[Path]) -> list[str]:
    """Return the ids of those public keys that are ours.

    Raises:
        UsageError: a key cannot be read or is of another kind.
        NotAvailableError: the library is missing; has the install line.
    """
    return [key_id(_public(path)) for path in keys if not curve_keys([path])]


def parse(raw: bytes) -> list[Signature]:
    """Read ``signatures.json``.

    Raises:
        SignatureError: it is malformed.
    """
    try:
        entries = parse_json(raw)["signatures"]
        return [_signature(entry) for entry in entries]
    except (ValueError, KeyError, TypeError) as e:
        raise SignatureError(f"{SIGNATURES_NAME} is malformed: {e}") from e


def _signature(entry: Any) -> Signature:
    if entry["algorithm"] != ALGORITHM:
        raise ValueError(f"algorithm {entry['algorithm']!r}, expected {ALGORITHM}")
    try:
        value = base64.b64decode(entry["signature"], validate=True)
    except binascii.Error as e:
        raise ValueError(f"a signature is not base64: {e}") from e
    claims = entry.get("claims", {})
    known = isinstance(claims, dict) and not set(claims) - {"counter", "time"}
    if not known or not all(map(_is_count, claims.values())):
        raise ValueError("claims: expected counter and time, whole numbers of at least 0")
    return Signature(str(entry["key"])[:64], value, claims.get("counter"), claims.get("time"))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNTER


def key_id(key: Ed25519PublicKey) -> str:
    """Return the first 16 hex digits of the SHA-256 of the raw public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _public(path: Path) -> Ed25519PublicKey:
    library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = _loaded(path)
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path}: expected an {ALGORITHM} key, received {type(key).__name__}")
    return key


def _loaded(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    raw = pem_of(path)
    if b"PRIVATE KEY" in raw:
        raise UsageError(f"{path}: is a private key; give the public one to whoever checks")
    try:
        return load_pem_public_key(raw)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise UsageError(f"{path}: not a public key in PEM form: {e}") from e


_MOST_KEY = 64 << 10
"""Bytes of a key's file; real ones have a few hundred."""


def pem_of(path: Path) -> bytes:
    """Return the bytes of a file in PEM form, or raise UsageError."""
    try:
        raw = read_bounded(path, _MOST_KEY)
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
    if not raw.lstrip().startswith(_BEGIN):
        raise UsageError(f"{path}: not a key in PEM form")
    return raw


def library() -> None:
    """Raise NotAvailableError where the library is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as e:
        raise NotAvailableError(
            f"signatures need the package cryptography; {install('sign')}"
        ) from e


def _list(keys: Iterable[str]) -> str:
    return ", ".join(keys) or "nobody"
