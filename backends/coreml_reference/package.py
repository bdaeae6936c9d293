"""Opening a Core ML package: its description, its program and its weights.

Source: coremltools, mlmodel/format/Model.proto, and modelpackage and MILBlob for the files.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.coreml_reference.program import (
    ProgramFunction,
    SpecificationReader,
    packed_size,
    unpack,
)
from edgeinfer.backends.engines import import_coreml_spec
from edgeinfer.bounded import open_file, parse_json, read_bounded
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_MANIFEST = "Manifest.json"
_MOST_MANIFEST, _MOST_SPEC = 1 << 20, 1 << 30
"""Bytes of a package's list of files, and of a description with its program."""
_SENTINEL = 0xDEADBEEF
# MILBlob/Blob/BlobDataType.hpp
_BLOB_TYPES = {
    1: "float16",
    2: "float32",
    3: "uint8",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
}
_IMAGES = {10: "L", 20: "RGB", 30: "BGR", 40: "F"}
_ARRAYS = {65552: "float16", 65568: "float32", 65600: "float64", 131104: "int32", 131080: "int8"}


@dataclass(frozen=True, slots=True)
class Feature:
    """An input, output or state as Core ML describes it.

    Attributes:
        name: as callers give it.
        kind: what Core ML passes.
        dtype: elements of an array; empty for other kinds.
        shape: Shape of an array as described, which may differ from the program's in axes of length
            1.
        image: order of an image's channels: ``RGB``, ``BGR``, ``L`` (8 bit) or ``F`` (float16).
        shapes: the only shapes an input may have; empty when they are not listed.
        ranges: least and most length of each axis, None for no limit; empty when it is fixed.
        optional: the caller may leave it out.
    """

    name: str
    kind: Literal["array", "image", "label", "dictionary", "state"]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    image: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """What one function of the model takes and gives."""

    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    states: tuple[Feature, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """A model file: its functions by name, which are read when requested."""

    path: Path
    version: int
    default: str
    functions: tuple[str, ...]
    metadata: dict[str, str]
    _describe: Callable[[str], FunctionDescription]
    _read: Callable[[str], ProgramFunction]

    def description(self, function: str = "") -> FunctionDescription:
        """Return what a function takes and gives."""
        return self._describe(self._named(function))

    def facts(self, function: str = "") -> dict[str, str]:
        """Return the metadata as it counts for a function.

        In a package of several, a key may end with ``@`` and the function's name.
        """
        end = f"@{self._named(function)}"
        own = {k.removesuffix(end): v for k, v in self.metadata.items() if k.endswith(end)}
        return {**self.metadata, **own}

    def function(self, function: str = "") -> ProgramFunction:
        """Return a function's program with its weights.

        Raises:
            LoadError: there is no such function, or it cannot be read.
        """
        name = self._named(function)
        try:
            return self._read(name)
        except LoadError as error:
            raise LoadError(f"{self.path}: {error}") from error
        except (ValueError, KeyError, OSError, struct.error) as error:
            raise LoadError(f"{self.path} cannot be read: {one_line(error)}") from error

    def _named(self, function: str) -> str:
        name = function or self.default
        if name not in self.functions:
            known = ", ".join(self.functions)
            raise LoadError(f"{self.path} has no function {name!r}, only {known}")
        return name


def package_folder(path: Path) -> Path:
    """Return the package that a path names: itself, or the folder of its manifest."""
    return path.parent if path.name == _MANIFEST else path


def open_package(path: Path) -> Package:
    """Read a ``.mlpackage`` folder, its ``Manifest.json``, or a ``.mlmodel`` file.

    Raises:
        LoadError: not a Core ML model, or one without a program.
    """
    spec_path = _spec_file(package_folder(path))
    model, _ = import_coreml_spec()
    spec = model.Model()
    try:
        spec.ParseFromString(read_bounded(spec_path, _MOST_SPEC))
    except Exception as error:
        raise LoadError(f"{spec_path} is not a Core ML model: {one_line(error)}") from error
    kind = spec.WhichOneof("Type")
    if kind != "mlProgram":
        found = f"a model of the type {kind!r}" if kind else "no model"
        raise LoadError(
            f"{path} holds {found}; only ML Programs (Core ML 5, iOS 15, macOS 12, or newer) are "
            f"evaluated: convert it with convert_to='mlprogram'"
        )
    description = spec.description
    names = tuple(sorted(spec.mlProgram.functions))
    default = description.defaultFunctionName or ("main" if "main" in names else "")
    weights = _Weights(spec_path.parent)

    def read(name: str) -> ProgramFunction:
        return SpecificationReader(weights.read).function(name, spec.mlProgram.functions[name])

    def describe(name: str) -> FunctionDescription:
        own = {f.name: f for f in description.functions}
        return _description(own.get(name, description))

    metadata = {k: str(v) for k, v in description.metadata.userDefined.items()}
    return Package(
        path, spec.specificationVersion, default or names[0], names, metadata, describe, read
    )


def _spec_file(path: Path) -> Path:
    if path.is_file():
        return path
    manifest = path / _MANIFEST
    if not manifest.is_file():
        state = "has no Manifest.json" if path.is_dir() else "does not exist"
        raise LoadError(f"{path} {state}")
    try:
        content = parse_json(read_bounded(manifest, _MOST_MANIFEST).decode("utf-8"))
        root = content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{manifest} is not a package's manifest: {one_line(error)}") from error
    file = _inside(path / "Data", str(root))
    if not file.is_file():
        raise LoadError(f"{path} names {root} as its model, which is not there")
    return file


def _inside(folder: Path, name: str) -> Path:
    """Return a file below a folder; a name that leads out of it is refused."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise LoadError(f"{name!r} lies outside of the package")
    file = folder.joinpath(*parts)
    if not is_in_memory(file) and not file.resolve().is_relative_to(folder.resolve()):
        raise LoadError(f"{name!r} is a link that leads out of the package")
    return file


class _Weights:
    """The weight files of a package, mapped into memory when first read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, memoryview] = {}

    def read(self, name: str, offset: int, dtype: str, number: int) -> Array:
        data = self._map(name)
        if offset + 64 > len(data):
            raise LoadError(f"{name} ends before the weight at {offset}")
        sentinel, kind, size, start = struct.unpack_from("<IIQQ", data, offset)
        if sentinel != _SENTINEL:
            raise LoadError(f"{name} has no weight at {offset}")
        found = _BLOB_TYPES.get(kind, f"type {kind}")
        if found != dtype:
            raise LoadError(f"{name} has {found} at {offset}, the program says {dtype}")
        if size < packed_size(dtype, number) or start + size > len(data):
            raise LoadError(f"{name} has {size} bytes at {offset} for {number} values of {dtype}")
        return unpack(data[start : start + size], dtype, number)

    def _map(self, name: str) -> memoryview:
        if name not in self._maps:
            path = _inside(self._folder, name.removeprefix("@model_path/"))
            if not path.is_file():
                raise LoadError(f"the weights file {name} is not there")
            with open_file(path) as file:
                empty = path.stat().st_size == 0
                mapped = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[name] = memoryview(mapped)
        return self._maps[name]


def _description(message: Any) -> FunctionDescription:
    return FunctionDescription(
        inputs=tuple(_feature(f) for f in message.input),
        outputs=tuple(_feature(f) for f in message.output),
        states=tuple(_feature(f) for f in message.state),
    )


def _feature(message: Any) -> Feature:
    kind = message.type.WhichOneof("Type")
    if kind == "imageType":
        return _image(message.name, message.type)
    if kind in ("multiArrayType", "stateType"):
        state = kind == "stateType"
        array = message.type.stateType.arrayType if state else message.type.multiArrayType
        return Feature(
            name=message.name,
            kind="state" if state else "array",
            dtype=_ARRAYS.get(array.dataType, ""),
            shape=tuple(array.shape),
            shapes=tuple(tuple(s.shape) for s in array.enumeratedShapes.shapes),
            ranges=tuple(_range(r) for r in array.shapeRange.sizeRanges),
            optional=bool(message.type.isOptional),
        )
    if kind == "dictionaryType":
        return Feature(message.name, "dictionary")
    if kind not in _LABELS:
        raise LoadError(f"{message.name!r} has no type that is known")
    return Feature(message.name, "label", _LABELS[kind])


_LABELS = {"int64Type": "int64", "stringType": "string"}


def _image(name: str, kind: Any) -> Feature:
    image = kind.imageType
    colour = _IMAGES.get(image.colorSpace, "RGB")
    channels = 3 if colour in ("RGB", "BGR") else 1
    sizes = tuple((1, channels, int(s.height), int(s.width)) for s in image.enumeratedSizes.sizes)
    ranges: tuple[tuple[int, int | None], ...] = ()
    if image.WhichOneof("SizeFlexibility") == "imageSizeRange":
        flexible = image.imageSizeRange
        fixed = ((1, 1), (channels, channels))
        ranges = (*fixed, _range(flexible.heightRange), _range(flexible.widthRange))
    shape = (1, channels, int(image.height), int(image.width))
    return Feature(name, "image", "", shape, colour, sizes, ranges, bool(kind.isOptional))


def _range(message: Any) -> tuple[int, int | None]:
    upper = int(message.upperBound)
    return int(message.lowerBound), None if upper < 0 else upper
