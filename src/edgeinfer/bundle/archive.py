"""Reading a bundle, from a folder or a zip, without trusting it."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from edgeinfer import forks
from edgeinfer.bounded import open_file
from edgeinfer.bundle import eviction
from edgeinfer.bundle.cache import cache_root, exposure, readable_folder, writable_folder
from edgeinfer.bundle.manifest import FileRecord, Manifest, Variant
from edgeinfer.bundle.memory import MemoryFiles
from edgeinfer.bundle.opening import BundleOptions
from edgeinfer.bundle.paths import first_double
from edgeinfer.bundle.rules import MANIFEST_NAME, MAX_SIGNATURES, SIGNATURES_NAME
from edgeinfer.bundle.scratch import Scratch, sweep
from edgeinfer.bundle.signed import SignedRules, has_curves, revoked_here, signature_beside
from edgeinfer.bundle.storage import Folder, Sealed, Storage, Within, Zip, is_sealed, sniff
from edgeinfer.bundle.trust import HINT, Native, Verdict, judge, native_files, policy_of
from edgeinfer.bundle.unpacking import Compared, copied, matches, partial_file, remove_abandoned
from edgeinfer.bundle.vectors import load_vector
from edgeinfer.bundle.ziprules import no_manifest
from edgeinfer.errors import (
    BundleError,
    ClosedError,
    DecryptionError,
    NotAvailableError,
    OutputError,
    SignatureError,
    UntrustedError,
    UsageError,
)
from edgeinfer.options import called_with
from edgeinfer.types import Array

if TYPE_CHECKING:
    from typing import Self

    from edgeinfer.bundle.sealing import Key
    from edgeinfer.bundle.signing import Signature

T = TypeVar("T")

_CACHE = "bundles"
_MOST_FOUND = 5
TRUSTED_ENV = "EDGEINFER_TRUSTED_KEYS"
"""Public keys, separated as in PATH; where it is set nothing else is loaded."""

MAX_MANIFEST = 8 << 20
"""Bytes of a manifest; large label lists are the longest thing in one."""

MAX_REPORT = 64 << 20
"""Bytes of a report."""

MAX_CONTAINERS, MAX_ELEMENTS = 200_000, 2_000_000
"""Objects and lists, and all values, of one JSON document: in memory each takes many times what it
takes in the file."""

MAX_VECTOR = 256 << 20
"""Bytes of a test vector, as it lies in the bundle."""


class Bundle:
    """An open bundle; every file is compared with its hash before it is used.

    Attributes:
        location: the folder or file it was opened from.
        manifest: what is in it.
        signed_by: id of the trusted key that signed it; empty when no signature was required.
        sealed_by: id of the key that it is encrypted with; empty when it is not. No file of such a
            bundle is written to a disk.
        full_digest: SHA-256 of the manifest, by which a bundle is revoked.
        signatures_by: signatures by trusted keys, with what they say.
        native: whether its machine code may run here, and why.
        notes: what the user should know about this opening, e.g. an unusable cache.
        checks_later: whoever opened it ends with ``check``.
    """

    def __init__(
        self,
        location: Path,
        storage: Storage,
        keys: Sequence[Path] = (),
        native: Native = "auto",
        signed: SignedRules | None = None,
    ) -> None:
        self.location = location
        self.notes: list[str] = []
        self._storage = storage
        self.sealed_by = ""
        self._memory: MemoryFiles | None = None
        self._lock = forks.rlock()
        self._checked: dict[str, Path | None] = {}
        self._private: Scratch | None = None
        self._closed = False
        self.checks_later = False
        self._moves = 0
        raw = self._raw = self._read_manifest()
        # Before anything that a stranger may have written is looked at.
        rules = signed or SignedRules()
        digest = hashlib.sha256(raw).hexdigest()
        self.signatures_by: tuple[Signature, ...] = self._about(
            lambda: rules.check(raw, digest, self.signatures, keys)
        )
        self.signed_by = self.signatures_by[0].key if self.signatures_by else ""
        self._key, self.full_digest = digest[:32], digest
        self.manifest = self._parse(raw)
        self._files = self.manifest.files()
        self._about(lambda: rules.check_name(self.manifest.name))
        self._compare_listing()
        self._counters = functools.partial(
            rules.check_counters, self.manifest.name, self.signatures_by, keys
        )
        self._about(lambda: self._counters(keeps=False))
        self.native: Verdict = judge(native, self.signed_by, digest)
        self._native = frozenset(record.path for record in native_files(self.manifest))
        forks.watch(self)

    def forked(self) -> None:
        """Unpack for ourselves what lies in a temporary folder or in memory: it is the parent's."""
        if self._private is not None or self._memory is not None:
            self._checked.clear()
        self._private = None

    @property
    def digest(self) -> str:
        """Of the manifest, which has the hash of every file: bundles with the same are copies."""
        return self._key

    @staticmethod
    @called_with(BundleOptions)
    def open(options: BundleOptions) -> Bundle:
        """Open a folder or zip.

        {options}

        Raises:
            UsageError: nothing is there, a key cannot be read, or ``native`` is no policy.
            DecryptionError: it is encrypted, and there is no key, another one, or it is altered.
            SignatureError: it is not signed by a trusted key.
            BundleError: it is not a bundle, damaged, altered, unsafe or of an unknown schema.
        """
        asked, location, policy = options, Path(options.path), policy_of(options.native)
        try:
            is_there = location.exists()
        except OSError as e:
            raise UsageError(f"{str(location)[:60]}…: {e.strerror or e}") from e
        if not is_there:
            raise UsageError(f"{location}: no such file or folder")
        keys = [Path(k) for k in asked.trusted] or trusted_here()
        needs_one = asked.require_signature or asked.protect_rollback or asked.signers > 1
        beside = signature_beside(location, asked.signature, keys)
        rules = SignedRules(
            asked.expect_name,
            asked.protect_rollback,
            asked.signers,
            revoked_here(asked.revoked),
            beside,
        )
        if needs_one and not keys:
            raise SignatureError(
                f"{location}: a signature is required, but no key is trusted: give trusted= "
                f"(--trusted) or set {TRUSTED_ENV}"
            )
        own: Scratch | None = None
        try:
            place = location
            if beside is not None and location.is_file() and has_curves(keys):
                own = Scratch()
                place, whole = _copied_whole(location, own.path)
                rules = replace(rules, whole=whole)
            storage, sealed_by = _storage(location, place, asked.key)
        except OSError as e:
            raise BundleError(f"{location}: cannot be read: {e.strerror or e}") from e
        finally:
            # What is open stays readable.
            if own is not None:
                own.cleanup()
        try:
            bundle = Bundle(location, storage, keys, policy, rules)
            if sealed_by:
                bundle.sealed_by, bundle._memory = sealed_by, MemoryFiles()
            bundle.checks_later = asked.verify == "later"
            if asked.verify is True:
                bundle.check()
            if not isinstance(storage, Folder):
                sweep()
        except BaseException:
            storage.close()
            raise
        return bundle

    def part(self, folder: str) -> Bundle:
        """Open a folder of it that is a bundle of its own, and as far trusted as this one.

        It is of no use once this one is closed.

        Raises:
            UsageError: no such folder is a bundle.
            BundleError: it is damaged or altered.
        """
        if folder not in self.manifest.parts:
            raise UsageError(f"{self.location}: there is no bundle in it named {folder!r}")
        record = self._files[f"{folder}/{MANIFEST_NAME}"]
        found = Bundle(self.location / folder, Within(self._storage, folder))
        if found.full_digest != record.sha256:
            raise BundleError(f"{self.location}: {record.path} is altered")
        # They read one file.
        found._lock = self._lock
        found.native, found.signed_by = self.native, self.signed_by
        if self.sealed_by:
            found.sealed_by, found._memory = self.sealed_by, MemoryFiles()
        return found

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Bundle {self.location}: {len(self.manifest.variants)} variants{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; paths in the cache stay valid, private copies are removed."""
        with self._lock:
            self._closed = True
            self._storage.close()
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            if self._private is not None:
                self._private.cleanup()
                self._private = None

    def check(self) -> None:
        """Compare every file with its hash; that all of it is whole is kept, as ``keep_counters``.

        Raises:
            BundleError: a file is altered or cannot be read.
        """
        for record in self._files.values():
            with self._lock:
                if record.path not in self._checked:
                    self._stream(record, None)
                    self._checked[record.path] = None
        self.keep_counters()

    def keep_counters(self) -> None:
        """Let none of its counters fall from now on, where that was requested.

        What was used of it has been compared: a damaged one in its place leaves the one before.

        Raises:
            SignatureError: one has fallen meanwhile.
            OutputError: they cannot be kept.
        """
        self._about(lambda: self._counters(keeps=True))

    def path(self, record: FileRecord) -> Path:
        """Return where a file lies on disk, for an engine to open.

        Members of a zip, machine code, and all files of a signed bundle are copied into the cache
        while they are hashed: what is opened there is what was hashed, whoever may write the
        bundle's own folder. Files of one bundle keep their paths relative to each other.

        Raises:
            BundleError: the file is altered.
            UntrustedError: it is machine code that may not run here.
            OutputError: it cannot be unpacked anywhere.
        """
        with self._lock:
            self._own(record)
            if (known := self._checked.get(record.path)) is not None:
                return known
            if record.path in self._native and not self.native.allowed:
                raise UntrustedError(
                    f"{self.location}: {record.path} is machine code, and {self.native.why}; {HINT}"
                )
            on_disk = None if self._is_copied(record) else self._storage.path(record.path)
            if on_disk is not None:
                if record.path not in self._checked:
                    self._stream(record, None)
                self._checked[record.path] = on_disk
                return on_disk
            unpacked = self._checked[record.path] = self._unpacked(record)
            return unpacked

    def paths(self, variant: Variant) -> tuple[Path, ...]:
        """Return where all files of a variant lie; the first one is what the engine opens."""
        while True:
            moves = self._moves
            found = tuple(self.path(record) for record in variant.files)
            if moves == self._moves:
                return found

    def read(self, record: FileRecord, most: int | None = None) -> bytes:
        """Return a file's bytes.

        Args:
            record: Record of the file.
            most: bytes that it may have.

        Raises:
            BundleError: the file is altered, or larger.
        """
        with self._lock:
            self._own(record)
            if most is not None and record.size_bytes > most:
                limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
                raise BundleError(f"{self.location}: {record.path} is larger than {limit}")
            chunks: list[bytes] = []
            self._stream(record, chunks.append)
            return b"".join(chunks)

    def copy(self, record: FileRecord, out: BinaryIO) -> None:
        """Write a file's bytes to a stream; they are good only once this has returned.

        Raises:
            BundleError: the file is altered.
        """
        with self._lock:
            self._own(record)
            self._stream(record, out.write)

    def vectors(self) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        """Yield feeds and expected outputs of every test vector, by tensor name.

        Raises:
            BundleError: a vector is altered or does not fit the manifest.
        """
        manifest = self.manifest
        for vector in manifest.vectors:
            where = f"{self.location}: {vector.file.path}"
            data = self.read(vector.file, MAX_VECTOR)
            yield load_vector(where, data, manifest.inputs, manifest.outputs)

    def report(self) -> dict[str, Any] | None:
        """Return the conversion's report; None when the bundle has none.

        Raises:
            BundleError: it is altered, or is not JSON in the form of ``reported``.
        """
        from edgeinfer.bundle.reported import checked  # which no load has need of

        record = self._files.get("report.json")
        if record is None:
            return None
        name = f"{self.location}: report.json"
        return checked(_json(name, self.read(record, MAX_REPORT)), name)

    def _own(self, record: FileRecord) -> None:
        if self._closed:
            raise ClosedError(f"{self.location}: the bundle is closed")
        if self._files.get(record.path) != record:
            raise UsageError(f"{self.location}: {record.path!r} is not a file of this bundle")

    def _read_manifest(self) -> bytes:
        listing = self._storage.listing()
        if MANIFEST_NAME not in listing:
            raise BundleError(f"{self.location}: {no_manifest(listing)}")
        if listing[MANIFEST_NAME] > MAX_MANIFEST:
            limit = f"{MAX_MANIFEST >> 20} MiB"
            raise BundleError(f"{self.location}: {MANIFEST_NAME} is larger than {limit}")
        with self._storage.open(MANIFEST_NAME) as stream:
            return stream.read(MAX_MANIFEST + 1)

    def signatures(self) -> bytes | None:
        """Return the bytes of the signatures' file; None when there is none.

        Raises:
            SignatureError: it is too long.
        """
        listing = self._storage.listing()
        if SIGNATURES_NAME not in listing:
            return None
        if listing[SIGNATURES_NAME] > MAX_SIGNATURES:
            raise SignatureError(f"{self.location}: {SIGNATURES_NAME} is too long")
        with self._storage.open(SIGNATURES_NAME) as stream:
            return stream.read(MAX_SIGNATURES + 1)

    def manifest_bytes(self) -> bytes:
        """Return the very bytes that a signature is over: those that every file was held to."""
        return self._raw

    def _about(self, check: Callable[[], T]) -> T:
        """Say of which bundle a refusal is."""
        try:
            return check()
        except SignatureError as e:
            raise SignatureError(f"{self.location}: {e}") from e

    def _parse(self, raw: bytes) -> Manifest:
        try:
            return Manifest.from_json(_json(MANIFEST_NAME, raw))
        except BundleError as e:
            raise BundleError(f"{self.location}: {e}") from e

    def _compare_listing(self) -> None:
        """Before anything is unpacked: the very files of the manifest, with their sizes."""
        listing = self._storage.listing()
        found = [f"{path} is missing" for path in self._files if path not in listing]
        for path, size in listing.items():
            if path in (MANIFEST_NAME, SIGNATURES_NAME):
                continue
            if len(found) > _MOST_FOUND:
                break
            if path not in self._files:
                found.append(f"{path} is not listed in the manifest")
            elif size != (want := self._files[path].size_bytes):
                found.append(f"{path} is altered: expected {want} bytes, received {size}")
        if found:
            more = "; and more" if len(found) > 5 else ""
            raise BundleError(f"{self.location}: {'; '.join(found[:5])}{more}")

    def _stream(self, record: FileRecord, sink: Any) -> None:
        """Read a file once, hand its chunks on, and refuse it if it is not what was hashed."""
        with self._storage.open(record.path) as stream:
            digest, size = copied(stream, sink)
        if (digest, size) != (record.sha256, record.size_bytes):
            raise BundleError(
                f"{self.location}: {record.path} is altered: expected sha256 "
                f"{record.sha256[:12]}…, received {digest[:12]}…"
            )

    def _is_copied(self, record: FileRecord) -> bool:
        """Whether a file of a folder may not be opened where somebody else could swap it."""
        return bool(self.signed_by) or record.path in self._native

    def _unpacked(self, record: FileRecord) -> Path:
        if self._memory is not None:
            return self._in_memory(record)
        place = PurePosixPath(record.path)
        # Once one had no room there, all of them lie elsewhere: a file names another by its path.
        if not self._moves:
            # Looked for first: a cache that was filled earlier may be read-only now.
            filled = readable_folder(_CACHE, self._key, *place.parent.parts)
            entry = cache_root() / _CACHE / self._key
            if filled is not None and self._is_unpacked(record, filled / place.name):
                eviction.used(entry)
                remove_abandoned(filled)
                return filled / place.name
            try:
                folder = writable_folder(_CACHE, self._key, *place.parent.parts)
                eviction.trim(entry)
                return self._written(record, folder)
            except OSError as e:
                self._move(f"cache folder {cache_root()} cannot be written", e, "folder")
        try:
            self._private = self._private or Scratch()
            root = self._private.path
            if problem := exposure(root, root, owners={root.stat().st_uid}):
                raise PermissionError(errno.EPERM, problem)
            folder = self._private.path / place.parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._written(record, folder)
        except OSError as e:
            self._move("the temporary folder cannot be written either", e, "memory")
        return self._in_memory(record)

    def _is_unpacked(self, record: FileRecord, copy: Path) -> bool:
        """Whether the cache has a file; where all is to be checked, the bundle is read as well."""
        if not self.checks_later or record.path in self._checked:
            return matches(copy, record)
        try:
            if copy.is_symlink() or copy.stat().st_size != record.size_bytes:
                return False
            with open_file(copy) as stream:
                chunks = Compared(stream)
                self._stream(record, chunks.take)
        except OSError:
            return False
        return chunks.are_same

    def _in_memory(self, record: FileRecord) -> Path:
        try:
            self._memory = self._memory or MemoryFiles()
            return self._memory.put(record.path, functools.partial(self._stream, record))
        except (NotAvailableError, OutputError) as e:
            if self.sealed_by:
                raise
            text = "neither the cache nor the temporary folder can be written"
            hint = f"set EDGEINFER_CACHE or TMPDIR ({e})"
            raise OutputError(f"{self.location}: {text}: {hint}") from e

    def _move(self, why: str, error: OSError, where: str) -> None:
        """Begin to unpack somewhere else, where what was unpacked so far has to lie too."""
        what = "into a temporary folder" if where == "folder" else "into memory"
        why = f"{why} ({error.strerror or error})"
        self.notes.append(f"{why}: unpacked {what}, again at every load")
        self._checked = dict.fromkeys(self._checked)
        self._moves += 1

    def _written(self, record: FileRecord, folder: Path) -> Path:
        """Unpack a file into a folder.

        Raises:
            OSError: the folder cannot be written, or is full.
        """
        target = folder / PurePosixPath(record.path).name
        remove_abandoned(folder)
        # Another process may unpack the same file now; whoever is last replaces equal by equal.
        with partial_file(folder) as (partial, out):
            self._stream(record, out.write)
            out.close()
            os.replace(partial, target)
        return target


def _storage(
    location: Path, place: Path, key: str | os.PathLike[str] | None
) -> tuple[Storage, str]:
    """Open what a bundle is, with the id of the key that it is encrypted with.

    Args:
        location: Location of the bundle, for messages.
        place: where it lies, or a copy of it.
        key: file with the key; None takes what the environment has.
    """
    if not (place.is_file() and is_sealed(place)):
        return Folder(place) if place.is_dir() else Zip(sniff(place)), ""
    secret = _key(location, key)
    try:
        return Sealed(place, secret), secret.id
    finally:
        secret.forget()


def _copied_whole(location: Path, folder: Path) -> tuple[Path, str]:
    """Copy a file while it is hashed: what was signed is what is opened."""
    place = folder / location.name
    with open_file(location) as stream, place.open("xb") as out:
        digest, _ = copied(stream, out.write)
    return place, digest


def _key(location: Path, given: str | os.PathLike[str] | None) -> Key:
    # Few bundles are encrypted.
    from edgeinfer.bundle.sealing import key_from
    from edgeinfer.bundle.secrets import keep_out_of_core_dumps

    keep_out_of_core_dumps()
    try:
        return key_from(given)
    except DecryptionError as e:
        raise DecryptionError(f"{location}: is encrypted and {e}") from None


def trusted_here() -> list[Path]:
    """Return the public keys that this device demands of every bundle.

    Raises:
        UsageError: EDGEINFER_TRUSTED_KEYS is set and names none.
    """
    listed = os.environ.get(TRUSTED_ENV)
    if listed is None:
        return []
    keys = [Path(part) for part in listed.split(os.pathsep) if part]
    if not keys:
        raise UsageError(f"{TRUSTED_ENV} is set but names no key, so no bundle may be opened")
    return keys


def _json(where: str, raw: bytes) -> Any:
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS or raw.count(b",") > MAX_ELEMENTS:
        raise BundleError(f"{where} has more than {MAX_CONTAINERS} objects, or too many values")
    try:
        # UTF-8 alone, where json would guess: one file has one reading.
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as e:
        raise BundleError(f"{where} is not valid JSON: {e}") from e


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = first_double(key for key, _ in pairs)
        raise ValueError(f"key {str(twice)[:60]!r} is given twice")
    return result
