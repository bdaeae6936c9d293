"""Writing a bundle so that nothing but a whole one ever has its name."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.bounded import ZIP_ERRORS, Archive, open_file
from edgeinfer.bundle.manifest import FileRecord, Manifest, VectorRecord, spread_of
from edgeinfer.bundle.paths import path_problem
from edgeinfer.bundle.rules import MANIFEST_NAME, SIGNATURES_NAME
from edgeinfer.bundle.staging import Staging, fsync_folder, is_staged, replacing
from edgeinfer.bundle.storage import is_sealed
from edgeinfer.bundle.unpacking import copied
from edgeinfer.bundle.vectors import CARRIER
from edgeinfer.errors import OutputError, UsageError
from edgeinfer.metrics import OutputMetrics
from edgeinfer.parts import grid_of
from edgeinfer.types import Array, TensorSpec

if TYPE_CHECKING:
    from typing import Self

CHUNK = 1 << 20
_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO}
)
_MODEL_SUFFIXES = frozenset({".onnx", ".pt", ".pt2", ".pth", ".tflite", ".gguf", ".safetensors"})


class BundleWriter:
    """Builds a bundle next to its final name and moves it there when it is complete.

    Use as a context manager; leaving it without ``finish``, for whatever reason, leaves nothing.
    An output that ends with a slash or is an existing folder becomes a folder, any other a zip
    whose members are stored unpacked. The same contents give the same bytes.

    Args:
        output: the bundle to write.
        overwrite: replace a bundle that is there.

    Attributes:
        digest: SHA-256 of the manifest, in hexadecimal, once it is written.
        files: what was written instead of a bundle, once it is; empty for bundles.

    Raises:
        UsageError: the output exists and may not be replaced.
        OutputError: its folder is missing or cannot be written.
    """

    def __init__(self, output: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        text = os.fspath(output)
        self.output = Path(text)
        seps = tuple(s for s in (os.sep, os.altsep, "/") if s)
        self.is_folder = text.endswith(seps) or self.output.is_dir()
        if not self.output.name:
            raise UsageError(f"{text!r}: expected the name of a bundle to write")
        if not self.output.parent.is_dir():
            raise OutputError(
                f"cannot write {self.output}: the folder {self.output.parent} does not exist"
            )
        self._check_free(overwrite)
        self._records: dict[str, FileRecord] = {}
        self.digest = ""
        self.files: tuple[Path, ...] = ()
        with writing(self.output):
            self._staging = Staging(self.output)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._staging.remove()
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise OutputError(f"cannot write {self.output}: {error.strerror}") from error

    def folder(self, path: str) -> Path:
        """Return a folder inside the bundle to write files into; ``adopt`` them afterwards."""
        _check_path(path)
        with writing(self.output):
            target = self._staging.tree / path
            target.mkdir(parents=True, exist_ok=True)
        return target

    def adopt(self, path: str) -> FileRecord:
        """Record a file that was written below ``folder``.

        Raises:
            OutputError: it cannot be read back.
        """
        _check_path(path)
        with writing(self.output), open_file(self._staging.tree / path) as stream:
            return self._record(path, *copied(stream, None))

    def add_file(self, path: str, source: Path, *, move: bool = False) -> FileRecord:
        """Put a file into the bundle, hashed in the same pass.

        Args:
            path: its place in the bundle.
            source: the file.
            move: take the file itself where that saves its copy; it is gone afterwards.

        Raises:
            OutputError: it cannot be written.
        """
        _check_path(path)
        with writing(self.output):
            target = self._staging.tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if move:
                shutil.move(source, target)
                return self.adopt(path)
            with open_file(source) as stream, target.open("wb") as out:
                return self._record(path, *copied(stream, out.write))

    def add_bytes(self, path: str, data: bytes) -> FileRecord:
        """Put bytes into the bundle.

        Raises:
            OutputError: they cannot be written.
        """
        _check_path(path)
        with writing(self.output):
            target = self._staging.tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return self._record(path, hashlib.sha256(data).hexdigest(), len(data))

    def add_vector(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        feeds: Mapping[str, Array],
        expected: Mapping[str, Array],
        origin: str,
        *,
        spread: Mapping[str, OutputMetrics] | None = None,
        edge: bool = False,
        undecided: bool = False,
    ) -> VectorRecord:
        """Put a test vector into the bundle.

        Args:
            inputs: Inputs of the model.
            outputs: Outputs of the model.
            feeds: by input name.
            expected: by output name.
            origin: where the inputs come from.
            spread: by output name, how far apart two valid evaluations were.
            edge: whether it is an extreme that is judged at full precision only.
            undecided: whether rounding alone decides some of what is expected.

        Raises:
            OutputError: it cannot be written.
        """
        index = sum(path.startswith("vectors/") for path in self._records)
        data = dump_vector(inputs, outputs, feeds, expected)
        file = self.add_bytes(f"vectors/{index}.npz", data)
        figures = {name: spread_of(m) for name, m in (spread or {}).items() if m.max_abs > 0}
        return VectorRecord(file, origin, figures, edge, undecided)

    def finish(self, manifest: Manifest) -> Path:
        """Write the manifest and give the bundle its name.

        Raises:
            BundleError: the manifest is not valid.
            UsageError: it does not list exactly the files that were added.
            OutputError: the bundle cannot be written.
        """
        text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        raw = (text + "\n").encode()
        self.digest = hashlib.sha256(raw).hexdigest()
        self._compare(manifest.files())
        with writing(self.output):
            (self._staging.tree / MANIFEST_NAME).write_bytes(raw)
            self._place(manifest)
        return self.output

    def _check_free(self, overwrite: bool) -> None:
        _check_replaceable(self.output, overwrite)

    def _place(self, manifest: Manifest) -> None:
        """Give what is complete its name."""
        if self.is_folder:
            sync_tree(self._staging.tree)
            self._staging.place_folder(self._staging.tree)
        else:
            packed = self._staging.root / "packed"
            self._pack(packed)
            self._staging.place_file(packed)

    def _record(self, path: str, digest: str, size: int) -> FileRecord:
        record = FileRecord(path, digest, size)
        self._records[path] = record
        return record

    def _compare(self, listed: Mapping[str, FileRecord]) -> None:
        for path in sorted(listed.keys() | self._records.keys()):
            if listed.get(path) != self._records.get(path):
                state = "was not added" if path not in self._records else "is not in the manifest"
                state = state if path not in listed or path not in self._records else "differs"
                raise UsageError(f"{self.output}: {path} {state}")
        present = {
            file.relative_to(self._staging.tree).as_posix()
            for file in self._staging.tree.rglob("*")
            if not file.is_dir()
        }
        if extra := sorted(present - self._records.keys()):
            raise UsageError(f"{self.output}: {extra[0]} was written but not adopted")

    def _pack(self, packed: Path) -> None:
        """Write the zip; each file is removed once it is in, so that the disk holds it once."""
        with packed.open("wb") as out:
            with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
                for path in [MANIFEST_NAME, *sorted(self._records)]:
                    source = self._staging.tree / path
                    info = zip_member(path, source.stat().st_size)
                    with open_file(source) as stream, archive.open(info, "w") as member:
                        shutil.copyfileobj(stream, member, CHUNK)
                    source.unlink()
            out.flush()
            os.fsync(out.fileno())


def put_signatures(location: Path, content: bytes) -> None:
    """Put ``signatures.json`` into a bundle that exists, in place of an earlier one.

    Args:
        location: Location of the bundle, a folder or a zip.
        content: Content of the file.

    Raises:
        OutputError: it cannot be written; the bundle is as it was.
    """
    with writing(location):
        target = location / SIGNATURES_NAME if location.is_dir() else location
        with replacing(target) as new:
            if location.is_dir():
                new.write_bytes(content)
            else:
                _repack(location, new, content)


def _repack(location: Path, new: Path, signatures: bytes) -> None:
    """Copy a zip's members, the signatures right behind the manifest."""
    with zipfile.ZipFile(location) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as out:
        for info in old.infolist():
            if info.filename == SIGNATURES_NAME:
                continue
            copy = zip_member(info.filename, info.file_size)
            with old.open(info) as stream, out.open(copy, "w") as member:
                shutil.copyfileobj(stream, member, CHUNK)
            if info.filename == MANIFEST_NAME:
                out.writestr(zip_member(SIGNATURES_NAME, len(signatures)), signatures)


def zip_member(path: str, size: int) -> zipfile.ZipInfo:
    """Describe a member such that the same contents give the same bytes."""
    info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    info.file_size = size
    return info


def _check_path(path: str) -> None:
    if problem := path_problem(path):
        raise UsageError(f"bundle path {path!r} {problem}")


def _check_replaceable(output: Path, overwrite: bool) -> None:
    if not os.path.lexists(output):
        return
    if output.is_dir() and not output.is_symlink():
        if not any(output.iterdir()):
            return
        if not (output / MANIFEST_NAME).is_file():
            raise UsageError(f"{output}: is a folder but not a bundle; choose another output")
    elif not output.is_file():
        raise UsageError(f"{output}: is not a regular file; choose another output")
    elif output.suffix.lower() in _MODEL_SUFFIXES:
        raise UsageError(f"{output}: is a model, not a bundle; choose another output")
    elif not is_bundle_file(output):
        raise UsageError(f"{output}: exists and is not a bundle; choose another output")
    if not overwrite:
        raise UsageError(f"{output}: exists; --overwrite (overwrite=True) replaces it")


def is_bundle_file(path: Path) -> bool:
    """Whether a file is a bundle, or was one, or is empty, so that a bundle may take its place."""
    if path.suffix.lower() == ".edge":
        # It may be damaged, which is why it is written again.
        return True
    try:
        if not path.stat().st_size or is_sealed(path):
            return True
        with open_file(path) as file, Archive(file) as archive:
            return MANIFEST_NAME in archive.namelist()
    except ZIP_ERRORS:
        return False


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn errors of the system into one that names the output."""
    try:
        yield
    except OSError as e:
        name = "" if e.filename is None else str(e.filename)
        # The temporary name next to the output is nobody's business, and its folder is what fails.
        where = f" ({name})" if name and not is_staged(name, output) else ""
        if not name and e.errno in (errno.ENOSPC, errno.EDQUOT):
            where = full_elsewhere(output)
        raise OutputError(f"cannot write {output}: {e.strerror or e}{where}") from e


def full_elsewhere(output: Path) -> str:
    """Say that the temporary folder is full, where it is and the output's disk is not."""
    temporary = Path(tempfile.gettempdir())
    if free_bytes(temporary) >= _FULL or free_bytes(output.parent) < _FULL:
        return ""
    return f" in the temporary folder {temporary}; set TMPDIR to another one"


_FULL = 1 << 20
"""Bytes below which a disk is full."""


def free_bytes(folder: Path) -> int:
    """Return what is free on the disk of a folder."""
    return shutil.disk_usage(folder).free


def sync_tree(root: Path) -> None:
    """Make all files of a folder durable."""
    for folder, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(folder, name), "rb+") as stream:
                os.fsync(stream.fileno())
        fsync_folder(Path(folder))


def dump_vector(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
) -> bytes:
    """Write one vector; the same arrays give the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for side, specs, arrays in (("in", inputs, feeds), ("out", outputs, expected)):
            for i, spec in enumerate(specs):
                given = arrays[spec.name]
                _add(archive, f"{side}/{i}", _plain(np.asarray(given)))
                if (grid := grid_of(given)) is not None:
                    _add(archive, f"part/{i}", grid)
    return stream.getvalue()


def _add(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o644 << 16
    member = io.BytesIO()
    np.lib.format.write_array(member, array, allow_pickle=False)
    archive.writestr(info, member.getvalue())


def _plain(array: Array) -> Array:
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind == "V" or array.dtype.num >= 256:
        return array.view(CARRIER[array.dtype.itemsize])
    return array
