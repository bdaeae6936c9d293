"""Copies of files: each byte is read, hashed and handed on once."""

import hashlib
import io
import threading

import pytest

from edgeinfer.bundle import unpacking
from edgeinfer.bundle.unpacking import CHUNK, copied


class Counted(io.BytesIO):
    """Counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        return chunk


@pytest.mark.parametrize("alone", [0, CHUNK, 8 * CHUNK])
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_each_byte_is_read_and_handed_on_once(
    size: int, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "ALONE", alone)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    stream, out = Counted(data), io.BytesIO()
    assert copied(stream, out.write) == (hashlib.sha256(data).hexdigest(), size)
    assert (stream.taken, out.getvalue()) == (size, data)
    assert copied(io.BytesIO(data), None) == (hashlib.sha256(data).hexdigest(), size)


def test_one_thread_does_it_all_where_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(unpacking, "ALONE", 0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    data, out = bytes(3 * CHUNK + 7), io.BytesIO()
    assert copied(io.BytesIO(data), out.write) == (hashlib.sha256(data).hexdigest(), len(data))
    assert out.getvalue() == data


def test_each_byte_is_hashed_once_though_reads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    class Digest:
        def update(self, chunk: bytes) -> None:
            hashed.append(chunk)

        def hexdigest(self) -> str:
            return "0"

    class Short(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 1000))

    monkeypatch.setattr(hashlib, "sha256", Digest)
    data = bytes(range(200)) * 20_000
    for stream in (io.BytesIO(data), Short(data)):
        hashed.clear()
        assert copied(stream, None) == ("0", len(data))
        assert b"".join(hashed) == data


def test_chunks_are_handed_on_while_they_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_on = threading.Event()
    waited = []

    class Digest:
        def update(self, _: bytes) -> None:
            waited.append(handed_on.wait(30))

        def hexdigest(self) -> str:
            return "0"

    monkeypatch.setattr(hashlib, "sha256", Digest)
    monkeypatch.setattr(unpacking, "ALONE", 0)
    copied(io.BytesIO(bytes(CHUNK)), lambda _: handed_on.set())
    assert waited == [True]


@pytest.mark.parametrize("size", [5, 2 * CHUNK])
def test_who_cannot_take_a_chunk_is_heard(size: int) -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        copied(io.BytesIO(bytes(size)), full)
