"""Bundles encrypted at rest: a zip in chunks of AES-256-GCM.

::

    magic 8 │ key id 8 │ salt 16 │ chunk size 4 │ chunk │ chunk │ … │ last chunk
    chunk = AES-GCM(file key, nonce = number 11 │ is last 1, plain bytes, header) = bytes │ tag 16

The file key is derived from the caller's key and the salt (HKDF-SHA256, RFC 5869), so that no two
files share one and the numbers of chunks serve as nonces (NIST SP 800-38D, 8.2.1). The header is
authenticated with every chunk. A chunk that is altered, swapped, left out or of another file does
not open; a file that is cut off has no last chunk. The key id is derived from the key one way; it
is there to tell a wrong key from damage.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edgeinfer.bounded import open_file
from edgeinfer.bundle.secrets import wipe
from edgeinfer.bundle.storage import SEALED
from edgeinfer.errors import ClosedError, DecryptionError, NotAvailableError, UsageError
from edgeinfer.installed import install

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

KEY_ENV = "EDGEINFER_BUNDLE_KEY"
"""The key itself, 64 hexadecimal digits."""
KEY_FILE_ENV = "EDGEINFER_BUNDLE_KEY_FILE"
"""A file with the key."""

CHUNK = 1 << 18
_MAX_CHUNK = 1 << 26
_TAG = 16
KEY_BYTES = 32
HEADER = struct.Struct(">8s8s16sI")
_FOR_FILE = b"edgeinfer bundle encryption v1: file"
_FOR_ID = b"edgeinfer bundle encryption v1: id"
_DIGITS = b"0123456789abcdef"
_MAKE = "make one with `openssl rand -hex 32`"


class Key:
    """A secret of 32 bytes that no message and no log shows.

    Attributes:
        id: 16 hex digits that tell keys apart.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes | bytearray) -> None:
        self._secret = bytearray(secret)
        self.id = _derived(self._secret, b"", _FOR_ID, 8).hex()

    def __repr__(self) -> str:
        return f"<Key {self.id}>"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def for_file(self, salt: bytes) -> bytes:
        """Return the key of one file.

        Raises:
            ClosedError: after ``forget``.
        """
        if not any(self._secret):
            raise ClosedError(f"key {self.id} was forgotten")
        return _derived(self._secret, salt, _FOR_FILE, KEY_BYTES)

    def forget(self) -> None:
        """Overwrite the secret, once the keys of files are derived from it."""
        wipe(self._secret)


def key_from(
    path: str | os.PathLike[str] | None, environment: Mapping[str, str] | None = None
) -> Key:
    """Read a key from a file, or from where the environment has it.

    Args:
        path: Path of the file; None looks into ``EDGEINFER_BUNDLE_KEY`` (the key) and
            ``EDGEINFER_BUNDLE_KEY_FILE`` (a file with it).
        environment: None takes this process's.

    Raises:
        DecryptionError: there is none.
        UsageError: it is no key, or cannot be read; the message shows nothing of it.
        NotAvailableError: the library is missing; has the install line.
    """
    known = os.environ if environment is None else environment
    if path is None:
        text = known.get(KEY_ENV)
        if text is not None:
            return _read(bytearray(text.encode("utf-8", "replace")), KEY_ENV)
        path = known.get(KEY_FILE_ENV)
    if path is None:
        raise DecryptionError(
            f"needs a key: set {KEY_ENV} or {KEY_FILE_ENV}, or give the key's file"
        )
    try:
        raw = bytearray(4096)
        # Without a buffer, which would keep a copy.
        with open_file(path, buffering=0) as stream:
            del raw[stream.readinto(raw) or 0 :]
    except OSError as e:
        raise UsageError(f"{path}: the key cannot be read: {e.strerror or e}") from None
    return _read(raw, str(path))


def _read(raw: bytearray, where: str) -> Key:
    """Make a key of its digits; every copy on the way is overwritten."""
    secret = bytearray(KEY_BYTES)
    try:
        digits = [_DIGITS.find(byte) for byte in raw.lower() if byte not in b" \t\r\n\f\v"]
        inside = len(raw.split()) == 1
        if not inside or len(digits) != 2 * KEY_BYTES or min(digits) < 0:
            raise UsageError(f"{where}: expected a key of 64 hexadecimal digits; {_MAKE}")
        for i in range(KEY_BYTES):
            secret[i] = digits[2 * i] << 4 | digits[2 * i + 1]
        return Key(secret)
    finally:
        wipe(secret)
        wipe(raw)


class SealedReader(io.RawIOBase):
    """An encrypted file as the bytes that were put in, anywhere; one chunk is kept.

    Raises:
        DecryptionError: it is not such a file, cut off, or encrypted with another key.
    """

    def __init__(self, path: Path, stream: BinaryIO, key: Key) -> None:
        super().__init__()
        self._path, self._stream = path, stream
        size = os.fstat(stream.fileno()).st_size
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size or header[:8] != SEALED:
            raise DecryptionError(f"{path}: is cut off: its header is incomplete")
        _, identity, salt, chunk = HEADER.unpack(header)
        self._chunk = int(chunk)
        if identity.hex() != key.id:
            text = f"is encrypted with key {identity.hex()}, the one given is {key.id}"
            raise DecryptionError(f"{path}: {text}")
        body = size - HEADER.size
        if not 0 < self._chunk <= _MAX_CHUNK or body < _TAG:
            raise DecryptionError(f"{path}: is cut off or its header is altered")
        self._header = header
        self._count = -(-body // (self._chunk + _TAG))
        self._length = body - self._count * _TAG
        self._cipher = cipher_of(key.for_file(salt))
        self._at = 0
        self._kept: tuple[int, bytes] = (-1, b"")
        # A file that was cut off at the end of a chunk shows here.
        self._plain(self._count - 1)

    def over(self, stream: BinaryIO) -> SealedReader:
        """Return a reader of the same file by another stream, with a position of its own."""
        made = SealedReader.__new__(SealedReader)
        made.__dict__.update(self.__dict__, _stream=stream, _at=0, _kept=(-1, b""))
        return made

    @property
    def length(self) -> int:
        """Bytes that were put in."""
        return self._length

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read anywhere."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go elsewhere."""
        base: int = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what is left of one chunk."""
        view = memoryview(buffer).cast("B")
        if self._at >= self._length or not len(view):
            return 0
        number, start = divmod(self._at, self._chunk)
        plain = self._plain(number)[start : start + len(view)]
        view[: len(plain)] = plain
        self._at += len(plain)
        return len(plain)

    def _plain(self, number: int) -> bytes:
        if self._kept[0] == number:
            return self._kept[1]
        from cryptography.exceptions import InvalidTag

        self._stream.seek(HEADER.size + number * (self._chunk + _TAG))
        raw = self._stream.read(self._chunk + _TAG)
        nonce = nonce_of(number, number == self._count - 1)
        try:
            plain: bytes = self._cipher.decrypt(nonce, raw, self._header)
        except InvalidTag:
            text = f"chunk {number + 1} of {self._count} is altered, moved or cut off"
            raise DecryptionError(f"{self._path}: {text}") from None
        self._kept = (number, plain)
        return plain


def nonce_of(number: int, last: bool) -> bytes:
    """Return the nonce of a chunk, by its number from 0."""
    return number.to_bytes(11, "big") + bytes([last])


def _derived(secret: bytes | bytearray, salt: bytes, purpose: bytes, length: int) -> bytes:
    _library()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived: bytes = HKDF(SHA256(), length, salt or None, purpose).derive(secret)
    return derived


def cipher_of(key: bytes):  # type: ignore[no-untyped-def]  # of a library that may be missing
    """Return AES-GCM with a file's key."""
    _library()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as e:
        raise NotAvailableError(
            f"encrypted bundles need the package cryptography; {install('sign')}"
        ) from e
