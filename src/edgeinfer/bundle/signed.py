"""What a device asks of a bundle beyond that a trusted key signed it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.counters import raise_counter
from edgeinfer.bundle.signing import Signature, verified
from edgeinfer.errors import SignatureError, UsageError

REVOKED_ENV = "EDGEINFER_REVOKED"
"""A file of digests of bundles and ids of keys that are not trusted any more, one a line."""

_MAX_REVOKED = 16 << 20


@dataclass(frozen=True, slots=True)
class SignedRules:
    """The rules of one opening; see ``Bundle.open``.

    Attributes:
        expect_name: of the model.
        protect_rollback: its counter may not fall.
        signers: how many trusted keys must have signed it.
        revoked: digests of bundles and ids of keys that count no more.
    """

    expect_name: str | None = None
    protect_rollback: bool = False
    signers: int = 1
    revoked: frozenset[str] = frozenset()

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
        return verified(manifest, signatures(), keys, signers=self.signers, revoked=self.revoked)

    def check_name(self, name: str) -> None:
        """Refuse another model than the one that is expected.

        Raises:
            SignatureError: it is another one.
        """
        if self.expect_name not in (None, name):
            raise SignatureError(f"expected the model {self.expect_name!r}, received {name[:60]!r}")

    def check_counters(self, name: str, signatures: Sequence[Signature]) -> None:
        """Hold every trusted signature's counter to what was seen; each key counts for itself.

        Raises:
            SignatureError: one fell, or is missing.
        """
        for signature in signatures if self.protect_rollback else ():
            if signature.counter is None:
                hint = "`edgeinfer sign --counter`"
                raise SignatureError(f"the signature by key {signature.key} has no counter: {hint}")
            raise_counter(signature.key, name, signature.counter)


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
