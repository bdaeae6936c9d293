"""Every reader: the seeds it is given, how they are changed, and the commands that read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import mutate, seeds

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        name: of the kind.
        suffix: of the files.
        seeds: whole files.
        mutations: ways to change one.
        commands: arguments; ``{}`` stands for the file.
    """

    name: str
    suffix: str
    seeds: Sequence[bytes]
    mutations: Sequence[Mutate]
    commands: Sequence[Sequence[str]]


def readers(folder: Path) -> list[Reader]:
    """Make them; what needs a package that is not installed is left out, by name, on stdout."""
    bundle = seeds.bundle(folder)
    (folder / "whole.edge").write_bytes(bundle)
    whole, vector = str(folder / "whole.edge"), str(folder / "whole.npz")
    (folder / "whole.npz").write_bytes(seeds.arrays())
    onnx_files = seeds.onnx_files()
    found = [
        Reader(
            "bundle",
            ".edge",
            [bundle],
            [mutate.in_bytes, mutate.in_bundle, mutate.in_bundle],
            [["inspect", "{}", "--json"], ["run", "{}", vector]],
        ),
        Reader("onnx", ".onnx", onnx_files, [mutate.in_bytes], [["inspect", "{}"]]),
        Reader(
            "onnx-check",
            ".onnx",
            onnx_files,
            [mutate.in_bytes],
            [["check", "{}", "-t", "onnxruntime", "-t", "android"]],
        ),
        Reader("arrays", ".npz", [seeds.arrays()], [mutate.in_bytes], [["run", whole, "{}"]]),
        Reader(
            "pipeline",
            ".toml",
            [seeds.pipeline_file()],
            [mutate.in_text],
            [["convert", str(folder / "none.onnx"), "-t", "cpu", "--pipeline", "{}"]],
        ),
        Reader(
            "profile",
            ".toml",
            [seeds.profile_file()],
            [mutate.in_text],
            [["check", str(_model(folder, onnx_files[0])), "-t", "{}"]],
        ),
    ]
    for suffix, picture in seeds.pictures():
        command = ["run", whole, "{}", "--raw"]
        found.append(Reader(f"picture{suffix}", suffix, [picture], [mutate.in_bytes], [command]))
    tflite = seeds.tflite(folder)
    found.append(Reader("tflite", ".tflite", [tflite], [mutate.in_bytes], [["inspect", "{}"]]))
    program = seeds.exported_program(folder)
    if program is None:
        print("pt2: left out, PyTorch is not installed")  # noqa: T201
    else:
        found.append(Reader("pt2", ".pt2", [program], [mutate.in_bytes], [["inspect", "{}"]]))
    return found


def _model(folder: Path, content: bytes) -> Path:
    path = folder / "whole.onnx"
    path.write_bytes(content)
    return path
