import io
import json
import os
import pickle
import traceback
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bundle import sealing
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.memory import MemoryFiles, is_in_memory
from edgeinfer.bundle.sealer import SealingWriter, is_exposed, new_key, seal, unseal
from edgeinfer.bundle.sealing import Key, SealedReader, key_from
from edgeinfer.bundle.signer import new_keys
from edgeinfer.bundle.signer import sign as signed
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.errors import (
    BundleError,
    DecryptionError,
    NotAvailableError,
    OutputError,
    SignatureError,
    UsageError,
)
from tests.forked import in_fork
from tests.fuzz import mutate

pytest.importorskip("cryptography")

SECRET = bytes(range(32))


def sealed(plain: bytes, path: Path, key: Key | None = None, chunk: int = 64) -> Path:
    with path.open("wb") as out:
        writer = SealingWriter(out, key or Key(SECRET), chunk)
        for start in range(0, len(plain), 37):
            writer.write(plain[start : start + 37])
        writer.close()
    return path


def opened(path: Path, key: Key | None = None) -> bytes:
    with path.open("rb") as stream:
        return io.BufferedReader(SealedReader(path, stream, key or Key(SECRET))).read()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_what_went_in_comes_out(tmp_path: Path, size: int) -> None:
    plain = os.urandom(size)
    path = sealed(plain, tmp_path / "x")
    assert opened(path) == plain
    assert size < 16 or plain not in path.read_bytes()


def test_reading_anywhere_is_the_same(tmp_path: Path) -> None:
    plain = os.urandom(1000)
    path = sealed(plain, tmp_path / "x")
    with path.open("rb") as stream:
        reader = SealedReader(path, stream, Key(SECRET))
        buffered = io.BufferedReader(reader)
        for start, size in ((990, 50), (0, 10), (60, 10), (500, 64), (1000, 1)):
            assert buffered.seek(start) == start
            assert buffered.read(size) == plain[start : start + size]
        assert reader.seek(-10, io.SEEK_END) == 990
        with pytest.raises(ValueError, match="before the beginning"):
            reader.seek(-1)


def test_the_same_bundle_twice_shares_no_bytes(tmp_path: Path) -> None:
    one, two = (sealed(b"a" * 640, tmp_path / n).read_bytes() for n in "ab")
    head = 36
    assert one[16:] != two[16:]
    blocks = {one[i : i + 16] for i in range(head, len(one), 16)}
    assert len(blocks) == len(range(head, len(one), 16)), "equal chunks must not look equal"
    assert not blocks & {two[i : i + 16] for i in range(head, len(two), 16)}


def test_every_altered_byte_is_refused(tmp_path: Path) -> None:
    path = sealed(os.urandom(200), tmp_path / "x")
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(DecryptionError):
            opened(path)


def test_every_length_it_is_cut_to_is_refused(tmp_path: Path) -> None:
    path = sealed(os.urandom(200), tmp_path / "x")
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(DecryptionError):
            opened(path)
    path.write_bytes(good + b"x")
    with pytest.raises(DecryptionError):
        opened(path)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3), (0, 0, 1, 2, 3), (3,)])
def test_chunks_in_another_order_are_refused(tmp_path: Path, order: tuple[int, ...]) -> None:
    path = sealed(os.urandom(4 * 64), tmp_path / "x")
    raw = path.read_bytes()
    head, size = raw[:36], 64 + 16
    chunks = [raw[36 + i * size : 36 + (i + 1) * size] for i in range(4)]
    path.write_bytes(head + b"".join(chunks[i] for i in order))
    with pytest.raises(DecryptionError, match="altered, moved or cut off"):
        opened(path)


def test_chunks_of_another_file_are_refused(tmp_path: Path) -> None:
    one, two = (sealed(os.urandom(256), tmp_path / n) for n in "ab")
    raw, other = one.read_bytes(), two.read_bytes()
    one.write_bytes(raw[:36] + other[36:116] + raw[116:])
    with pytest.raises(DecryptionError, match=r"chunk 1 of 4 is altered, moved or cut off"):
        opened(one)


def test_another_key_is_told_by_its_id(tmp_path: Path) -> None:
    path = sealed(b"secret", tmp_path / "x")
    other = Key(bytes(32))
    with pytest.raises(DecryptionError, match=f"encrypted with key {Key(SECRET).id}.*{other.id}"):
        opened(path, other)


class TestKey:
    def test_comes_from_a_file_or_the_environment(self, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text(SECRET.hex() + "\n")
        wanted = Key(SECRET).id
        assert key_from(file, {}).id == wanted
        assert key_from(None, {sealing.KEY_ENV: SECRET.hex().upper()}).id == wanted
        assert key_from(None, {sealing.KEY_FILE_ENV: str(file)}).id == wanted
        with pytest.raises(DecryptionError, match="set EDGEINFER_BUNDLE_KEY or"):
            key_from(None, {})

    @pytest.mark.parametrize("text", ["", "§too short", "zz" * 32, SECRET.hex() + "00", "é" * 32])
    def test_that_is_none_is_refused_without_showing_it(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "key"
        file.write_text(text)
        for place, known in ((file, {}), (None, {sealing.KEY_ENV: text})):
            with pytest.raises(UsageError, match="expected a key of 64 hexadecimal") as caught:
                key_from(place, known)
            shown = "".join(traceback.format_exception(caught.value))
            assert not text or text not in shown

    def test_is_never_shown_or_pickled(self) -> None:
        key = Key(SECRET)
        assert repr(key) == f"<Key {key.id}>"
        assert str(key) == repr(key)
        assert SECRET.hex() not in repr(key)
        assert key.id not in SECRET.hex()
        with pytest.raises(TypeError):
            pickle.dumps(key)

    def test_new_one_is_the_owner_s_and_never_replaces_another(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        key = new_key(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert not is_exposed(path)
        assert key_from(path, {}).id == key.id
        with pytest.raises(UsageError, match="never replaced"):
            new_key(path)


class TestBundle:
    @pytest.fixture(autouse=True)
    def _key(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(sealing.KEY_ENV, SECRET.hex())
        monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)

    @pytest.mark.parametrize("of_folder", [True, False])
    def test_is_read_as_the_plain_one(
        self, folder: Path, zipped: Path, tmp_path: Path, of_folder: bool
    ) -> None:
        plain = folder if of_folder else zipped
        output = tmp_path / "sealed.edge"
        seal(plain, output, Key(SECRET))
        with Bundle.open(plain) as a, Bundle.open(output) as b:
            assert a.manifest == b.manifest
            assert b.sealed_by == Key(SECRET).id
            variant = b.manifest.variants[0]
            for ours, theirs in zip(a.paths(variant), b.paths(variant), strict=True):
                assert ours.read_bytes() == theirs.read_bytes()
                assert ours.name == theirs.name
            assert len(list(b.vectors())) == len(list(a.vectors()))
            assert b.report() == a.report()

    def test_a_forked_process_reads_for_itself(self, zipped: Path, tmp_path: Path) -> None:
        output = tmp_path / "sealed.edge"
        seal(zipped, output, Key(SECRET))
        with Bundle.open(output) as bundle:
            records = [*bundle.manifest.files().values()]
            contents = [bundle.read(record) for record in records]
            path = bundle.paths(bundle.manifest.variants[0])[0]

            def forked() -> tuple[bool, bool]:
                own = bundle.paths(bundle.manifest.variants[0])[0]
                again = [bundle.read(record) for record in records]
                return again == contents, own != path and own.read_bytes() == path.read_bytes()

            assert in_fork(forked) == (True, True)
            assert [bundle.read(record) for record in records] == contents
            assert path.exists()

    @pytest.mark.parametrize("other", ["another", "damaged", "unsigned"])
    def test_seals_what_was_checked_and_nothing_that_took_its_place(
        self, zipped: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        new_keys(tmp_path / "private", tmp_path / "public")
        plain = zipped.read_bytes()
        with Bundle.open(zipped) as opened:
            content, _ = signed(opened.manifest_bytes(), tmp_path / "private")
        put_signatures(zipped, content)
        with zipfile.ZipFile(io.BytesIO(plain)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        changed = json.loads(members["manifest.json"]) | {"name": "another"}
        swapped = {
            "another": mutate.zipped({**members, "manifest.json": json.dumps(changed).encode()}),
            "damaged": zipped.read_bytes()[:-100],
            "unsigned": plain,
        }[other]

        class Swapping(SealingWriter):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                zipped.write_bytes(swapped)

        monkeypatch.setattr("edgeinfer.bundle.sealer.SealingWriter", Swapping)
        output = tmp_path / "sealed.edge"
        with pytest.raises(BundleError, match="changed while it was encrypted"):
            seal(zipped, output, Key(SECRET), trust={"trusted": [tmp_path / "public"]})
        assert not output.exists()

    def test_leaves_nothing_on_a_disk(self, zipped: Path, tmp_path: Path) -> None:
        output = tmp_path / "sealed.edge"
        seal(zipped, output, Key(SECRET))
        with Bundle.open(output) as bundle:
            contents = {r.path: bundle.read(r) for r in bundle.manifest.files().values()}
            paths = bundle.paths(bundle.manifest.variants[0])
            assert all(is_in_memory(path) for path in paths)
            written = [
                p
                for place in ("cache", "tmp")
                for p in (tmp_path / place).rglob("*")
                if p.is_file() and not p.is_symlink() and p.stat().st_size
            ]
            assert written == []
            with pytest.raises(OSError, match="not permitted"), paths[0].open("r+b") as stream:
                stream.write(b"x")
        assert contents
        assert not any(path.exists() or path.is_symlink() for path in paths)
        assert [*(tmp_path / "tmp").iterdir()] == []

    def test_needs_the_key(
        self, zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output = tmp_path / "sealed.edge"
        seal(zipped, output, Key(SECRET))
        monkeypatch.delenv(sealing.KEY_ENV)
        with pytest.raises(DecryptionError, match="is encrypted and needs a key"):
            Bundle.open(output)
        file = tmp_path / "key"
        file.write_text(SECRET.hex())
        with Bundle.open(output, key=file) as bundle:
            assert bundle.sealed_by
        file.write_text(bytes(32).hex())
        with pytest.raises(DecryptionError, match="the one given is") as caught:
            Bundle.open(output, key=file)
        assert bytes(32).hex() not in "".join(traceback.format_exception(caught.value))

    def test_signatures_inside_stay_good(self, zipped: Path, tmp_path: Path) -> None:
        private, public, other = (tmp_path / n for n in ("a.pem", "a.pub", "b.pub"))
        new_keys(private, public)
        new_keys(tmp_path / "b.pem", other)
        with Bundle.open(zipped) as bundle:
            content, identity = signed(bundle.manifest_bytes(), private)
        put_signatures(zipped, content)
        output = tmp_path / "sealed.edge"
        seal(zipped, output, Key(SECRET))
        with Bundle.open(output, trusted=[public]) as bundle:
            assert bundle.signed_by == identity
        with pytest.raises(SignatureError):
            Bundle.open(output, trusted=[other])

    def test_comes_back_whole_or_not_at_all(self, zipped: Path, tmp_path: Path) -> None:
        output, back = tmp_path / "sealed.edge", tmp_path / "back.edge"
        seal(zipped, output, Key(SECRET))
        unseal(output, back, Key(SECRET))
        assert back.read_bytes() == zipped.read_bytes()
        raw = bytearray(output.read_bytes())
        raw[-20] ^= 1
        output.write_bytes(raw)
        with pytest.raises(DecryptionError):
            unseal(output, tmp_path / "half.edge", Key(SECRET))
        assert not (tmp_path / "half.edge").exists()
        assert not [*tmp_path.glob(".half*")]

    def test_requests_that_make_no_sense_are_refused(self, zipped: Path, tmp_path: Path) -> None:
        output = tmp_path / "sealed.edge"
        key = Key(SECRET)
        seal(zipped, output, key)
        before = output.read_bytes()
        with pytest.raises(UsageError, match="encrypted already"):
            seal(output, tmp_path / "twice.edge", key)
        with pytest.raises(UsageError, match="add --overwrite"):
            seal(zipped, output, key)
        with pytest.raises(UsageError, match="is the bundle itself"):
            seal(zipped, zipped, key, overwrite=True)
        with pytest.raises(UsageError, match="is not encrypted"):
            unseal(zipped, tmp_path / "x.edge", key)
        with pytest.raises(UsageError, match="no such file"):
            seal(tmp_path / "none", tmp_path / "x.edge", key)
        with pytest.raises(OutputError, match="cannot be written"):
            seal(zipped, tmp_path / "no" / "x.edge", key)
        assert output.read_bytes() == before

    def test_damage_is_not_sealed_in(self, zipped: Path, tmp_path: Path) -> None:
        raw = bytearray(zipped.read_bytes())
        place = raw.index(b"not really a model")
        raw[place] ^= 1
        zipped.write_bytes(raw)
        with pytest.raises(BundleError):
            seal(zipped, tmp_path / "sealed.edge", Key(SECRET))
        assert not (tmp_path / "sealed.edge").exists()


def test_system_without_files_in_memory_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(NotAvailableError, match="in memory only"):
        MemoryFiles().put("model.onnx", lambda write: write(b""))
