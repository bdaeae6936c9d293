"""What a device asks of a bundle beyond that a trusted key signed it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.rules import MANIFEST_NAME
from edgeinfer.errors import SignatureError, UsageError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.bundle.signing import Signature

REVOKED_ENV = "EDGEINFER_REVOKED"
"""A file of digests of bundles and ids of keys that are not trusted any more, one a line."""

_MAX_REVOKED = 16 << 20


@dataclass(frozen=True, slots=True)
class SignedRules:
    """The rules of one opening; see ``Bundle.open``.

    Attributes:
        expect_name: Expected name of the model.
        protect_rollback: its counter may not fall.
        signers: how many trusted keys must have signed it.
        revoked: digests of bundles and ids of keys that count no more.
        signature: file with a signature by OpenSSF's model-signing; None for none.
        whole: SHA-256 of the file that the bundle is; empty for a folder.
    """

    expect_name: str | None = None
    protect_rollback: bool = False
    signers: int = 1
    revoked: frozenset[str] = frozenset()
    signature: Path | None = None
    whole: str = ""

    def check(
        self,
        manifest: bytes,
        digest: str,
        signatures: Callable[[], bytes | None],
        keys: Sequence[Path],
    ) -> tuple[Signature, ...]:
        """Return the signatures by trusted keys; none where no key is trusted.

        Raises:
            SignatureError: it is revoked, or not signed as it has to be.
        """
        if digest in self.revoked:
            raise SignatureError(f"is revoked (digest {digest[:16]}…)")
        if not keys:
            return ()
        from edgeinfer.bundle.signing import curve_keys, verified

        curves = curve_keys(keys)
        # One key may be in several files.
        ours = [key for key in keys if not curve_keys([key])]
        if not curves:
            return verified(
                manifest, signatures(), ours, signers=self.signers, revoked=self.revoked
            )
        good: list[Signature] = []
        problems: list[str] = []
        try:
            good += self._by_curves(digest, curves)
        except SignatureError as e:
            problems.append(str(e))
        if ours:
            try:
                good += verified(manifest, signatures(), ours, revoked=self.revoked)
            except SignatureError as e:
                problems.append(str(e))
        if len(good) < self.signers:
            if good:
                found = ", ".join(s.key for s in good)
                problems.append(f"is signed by {found}, expected {self.signers} of those trusted")
            raise SignatureError("; ".join(problems))
        return tuple(good)

    def _by_curves(self, digest: str, curves: dict[str, Path]) -> tuple[Signature, ...]:
        """Return the signatures by keys of elliptic curves, which are OpenSSF's model-signing's."""
        from edgeinfer.bundle import openssf
        from edgeinfer.bundle.signing import Signature

        left = {identity: key for identity, key in curves.items() if identity not in self.revoked}
        if self.signature is None or not left:
            names = ", ".join(left) or "a key that counts"
            raise SignatureError(
                f"is not signed by {names}: keys of this kind sign "
                f"into a file of its own, which is the bundle's name and {openssf.SUFFIX}, or "
                "signature= (--signature)"
            )
        wanted = {MANIFEST_NAME: digest}
        if self.whole:
            wanted[openssf.WHOLE] = self.whole
        return tuple(Signature(key, b"") for key in openssf.signed_by(self.signature, left, wanted))

    def check_name(self, name: str) -> None:
        """Refuse another model than the one that is expected.

        Raises:
            SignatureError: it is another one.
        """
        if self.expect_name not in (None, name):
            raise SignatureError(f"expected the model {self.expect_name!r}, received {name[:60]!r}")

    def check_counters(
        self, name: str, signatures: Sequence[Signature], keys: Sequence[Path], *, keeps: bool
    ) -> None:
        """Hold the counters of trusted signatures to what was seen of these and other keys.

        Args:
            name: Name of the model.
            signatures: by trusted keys.
            keys: all that are trusted.
            keeps: remember them: what the bundle consists of was compared.

        Raises:
            SignatureError: one fell, or is missing.
        """
        if not self.protect_rollback:
            return
        from edgeinfer.bundle.counters import raise_counters
        from edgeinfer.bundle.signing import ids_of

        for signature in signatures:
            if signature.counter is None:
                hint = "`edgeinfer sign --counter`"
                raise SignatureError(f"the signature by key {signature.key} has no counter: {hint}")
        signed = {s.key: s.counter for s in signatures if s.counter is not None}
        raise_counters(name, ids_of(keys), signed, keeps=keeps)


def revoked_here(given: str | os.PathLike[str] | None) -> frozenset[str]:
    """Read the list of what is not trusted any more; one that cannot be read is no empty one.

    Args:
        given: the file; None takes the one that the environment names, if it does.

    Raises:
        UsageError: it cannot be read, or a line is neither a digest nor an id.
    """
    path = given or os.environ.get(REVOKED_ENV)
    if not path:
        return frozenset()
    try:
        lines = read_bounded(Path(path), _MAX_REVOKED).decode().split("\n")
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: the list of what is revoked cannot be read: {e}") from e
    entries = [line.partition("#")[0].strip().lower() for line in lines]
    for number, entry in enumerate(entries, 1):
        if entry and not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{16}", entry):
            expected = "a bundle's digest (64 hex digits) or a key's id (16)"
            raise UsageError(f"{path}: line {number}: expected {expected}, received {entry[:40]!r}")
    return frozenset(filter(None, entries))


def signature_beside(
    location: Path, given: str | os.PathLike[str] | None, keys: Sequence[Path]
) -> Path | None:
    """Return the file with OpenSSF's signature of a bundle, where a key is trusted; see there."""
    if not keys:
        return None
    from edgeinfer.bundle import openssf

    return openssf.beside(location, given)


def has_curves(keys: Sequence[Path]) -> bool:
    """Whether one of the keys is of an elliptic curve."""
    from edgeinfer.bundle.signing import curve_keys

    return bool(curve_keys(keys))
