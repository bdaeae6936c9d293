"""Weights next to the model file: found, checked and counted without being read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath

import onnx_ir as ir

from edgeinfer.backends.process.bounds import belongs
from edgeinfer.bounded import leads_out, open_file
from edgeinfer.errors import SourceError


def attach(model: ir.Model, folder: Path, name: str) -> list[Path]:
    """Point every external tensor at the model's folder and check that its bytes are there.

    Nothing is read: a tensor is mapped when it is first touched.

    Args:
        model: as deserialised; modified.
        folder: where the model file is; its weights must be in it or below it.
        name: Name of the model, for messages.

    Returns:
        The files used, sorted.

    Raises:
        SourceError: a file leaves the folder, is missing or is too short.
    """
    files: dict[str, Path] = {}
    for tensor in external_tensors(model):
        location = str(tensor.location)
        if location not in files:
            files[location] = _locate(location, folder, f"{name}: tensor {tensor.name!r}")
        _check_range(tensor, files[location], name)
        tensor.base_dir = folder
    found = sorted(set(files.values()))
    belongs(found)
    return found


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Every tensor whose bytes are outside the model: initializers and attributes, all graphs."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                yield from _in_attribute(attribute)
    for function in model.functions.values():
        for node in function.all_nodes():
            for attribute in node.attributes.values():
                yield from _in_attribute(attribute)


def digest(path: Path, external: Iterable[Path]) -> str:
    """SHA-256 of a model.

    Of a model in one file, the digest of that file. Of one with external data, the digest of the
    lines that ``sha256sum`` prints for the model's file and then the others by name, so anyone can
    check it with ``sha256sum model.onnx a.bin b.bin | sha256sum`` in the model's folder.
    """
    files = list(external)
    if not files:
        return _sha256(path)
    lines = [f"{_sha256(path)}  {path.name}\n"]
    lines += [f"{_sha256(file)}  {file.relative_to(path.parent).as_posix()}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _in_attribute(attribute: ir.Attr) -> Iterator[ir.ExternalTensor]:
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        values = [attribute.value]
    elif attribute.type == ir.AttributeType.TENSORS:
        values = list(attribute.as_tensors())
    else:
        return
    yield from (value for value in values if isinstance(value, ir.ExternalTensor))


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locate(location: str, folder: Path, who: str) -> Path:
    """Resolve a location below the folder."""
    if not location:
        raise SourceError(f"{who} is stored outside the model, but no file is named")
    path = folder / location
    absolute = Path(location).is_absolute() or bool(PureWindowsPath(location).drive)
    try:
        if absolute or leads_out(path, folder):
            raise SourceError(
                f"{who} is stored in {location!r}, which leaves the model's folder; put the file "
                "next to the model and refer to it by a relative path"
            )
        if not path.is_file():
            raise SourceError(
                f"{who} is stored in {location!r}, which is not in {folder}; copy it there"
            )
        links = path.stat().st_nlink
    except (OSError, ValueError, RuntimeError) as error:
        raise SourceError(f"{who} is stored in {location!r}, which cannot be opened") from error
    if links > 1:
        # onnx_ir refuses such a file when it maps it: a hard link escapes the folder unseen.
        raise SourceError(
            f"{who} is stored in {location!r}, which has {links} hard links; make a copy of it"
        )
    return path


def _check_range(tensor: ir.ExternalTensor, file: Path, name: str) -> None:
    """Check that the tensor's bytes lie inside the file."""
    offset = tensor.offset or 0
    length = tensor.length if tensor.length is not None else tensor.nbytes
    size = file.stat().st_size
    where = f"{name}: tensor {tensor.name!r} in {file.name!r}"
    if offset < 0 or length < 0:
        raise SourceError(f"{where}: offset {offset} and length {length} must not be negative")
    if length < tensor.nbytes:
        raise SourceError(
            f"{where}: expected {tensor.nbytes} bytes for {tensor.dtype.name} "
            f"{list(tensor.shape.numpy())}, the model gives it {length}"
        )
    if offset + length > size:
        raise SourceError(
            f"{where}: expected {length} bytes at offset {offset}, the file has {size}; it is cut "
            "off or belongs to another model"
        )
