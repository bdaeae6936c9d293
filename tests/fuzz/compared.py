"""Readers of ``compare``: artifacts that strangers made, next to one that is right."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from edgeinfer.errors import UsageError
from tests.fuzz import mutate
from tests.trust.marked import GRAPH

if TYPE_CHECKING:
    from tests.fuzz.readers import Act, Reader

_TARGETS = {"openvino": ".xml", "rpi4": ".tflite", "ios": ".mlmodel"}
_BATCH = 5
"""Files of a batch: engines are opened in processes of their own, which takes a second."""

_VALUE = re.compile(rb'"[^"]*"')


def readers(folder: Path) -> Iterator[Reader]:
    """Make them; what needs a package that is not installed is left out, by name, on stdout."""
    from tests.fuzz.readers import Reader, call

    place = folder / "compared"
    place.mkdir()
    image = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    np.savez(place / "data.npz", image=image)
    right = place / "right.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH), right)
    found = _artifacts(right, place)
    plain = [mutate.in_bytes]
    if ".xml" in found:
        xml = found[".xml"]
        weights = xml.with_suffix(".bin")
        for part, ways in ((xml, [mutate.in_bytes, _in_markup, _in_markup]), (weights, plain)):
            act = _beside(place, part, {each.name: each for each in (xml, weights)}, xml.name)
            yield Reader(
                f"compare{part.suffix}", part.suffix, [part.read_bytes()], ways, [act], _BATCH
            )
    if ".tflite" in found:
        file = found[".tflite"]
        act = _beside(place, file, {}, file.name)
        read = call(lambda path: _layers(path, "tflite"))
        yield Reader("compare.tflite", ".tflite", [file.read_bytes()], plain, [act, read], _BATCH)
    if ".mlmodel" in found:
        program = found[".mlmodel"]
        package = next(p for p in program.parents if p.suffix == ".mlpackage")
        rest = {str(p.relative_to(package.parent)): p for p in package.rglob("*") if p.is_file()}
        act = _beside(place, program, rest, package.name)
        listed = package / "Manifest.json"
        read = _beside(place, program, rest, f"{package.name}/{listed.name}", format="mlprogram")
        yield Reader("compare.mlmodel", ".mlmodel", [program.read_bytes()], plain, [read])
        yield Reader("compare.mlpackage", ".mlmodel", [program.read_bytes()], plain, [act], _BATCH)
        ways = [mutate.in_bytes, mutate.in_json]
        act = _beside(place, listed, rest, package.name)
        yield Reader("compare-Manifest.json", ".json", [listed.read_bytes()], ways, [act], _BATCH)


def _artifacts(right: Path, place: Path) -> dict[str, Path]:
    """Convert the model that is right, for each engine that is here."""
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.convert.pipeline.entry import export
    from edgeinfer.errors import EdgeInferError

    found = {}
    for target, suffix in _TARGETS.items():
        try:
            made = export(right, place / f"{target}.edge", targets=[target])
        except EdgeInferError as e:
            print(f"compare{suffix}: left out, {str(e)[:100]}")  # noqa: T201
            continue
        with Bundle.open(made.path) as opened:
            for file in opened.manifest.variants[0].files:
                path = place / target / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(opened.read(file))
        (found[suffix],) = (place / target).rglob(f"*{suffix}")
    return found


def _beside(place: Path, part: Path, rest: dict[str, Path], asked: str, *, format: str = "") -> Act:
    """Return what puts a file in the place of one of an artifact's, and compares the whole.

    With ``format`` it is read for its precision alone, in this process.
    """
    from tests.fuzz.readers import call, command

    whole = {name: path.read_bytes() for name, path in rest.items()}
    own = next((name for name, path in rest.items() if path == part), part.name)
    where = place / f"other-{part.name}"
    words = (str(place / "right.onnx"), str(where / asked), "--data", str(place / "data.npz"))
    compare = command("compare", *words)

    def act(path: Path) -> int:
        shutil.rmtree(where, ignore_errors=True)
        for name, content in (whole | {own: path.read_bytes()}).items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_bytes(content)
        if format:
            return call(lambda path: _layers(path, format))(where / asked)
        return compare(path)

    return act


def _layers(path: Path, format: str) -> None:
    """Read a precision as the process does that is started for it: errors are words for it."""
    from edgeinfer.convert.quantize.readback import layers, precision_name

    try:
        precision_name(layers(path, format))
    except Exception as e:
        raise UsageError(str(e)[:100]) from e


def _in_markup(raw: bytes, rng: random.Random) -> bytes:
    """Give a few attributes of XML other values, or drop or repeat an element."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = raw.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
                raw = b"".join(lines)
            case 1:
                lines[at:at] = [lines[at]] * rng.choice((1, 3))
                raw = b"".join(lines)
            case _:
                places = [found.span() for found in _VALUE.finditer(raw)]
                if places:
                    begin, end = rng.choice(places)
                    value = rng.choice([*map(str, mutate.NUMBERS), *mutate.TEXTS, "Parameter"])
                    raw = raw[:begin] + b'"' + value.encode() + b'"' + raw[end:]
        raw = raw or b"\n"
    return raw
