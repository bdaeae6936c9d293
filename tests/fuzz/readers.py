"""Every reader: the seeds it is given, how they are changed, and what reads them."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import compared, hostile, language, mutate, others, seeds, served, tabular

Mutate = Callable[[bytes, random.Random], bytes]
Act = Callable[[Path], int]


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        name: of the kind.
        suffix: of the files.
        seeds: whole files.
        mutations: ways to change one.
        acts: each reads a file in this process and returns the command line's exit code.
        batch: files that are read before the time is looked at.
    """

    name: str
    suffix: str
    seeds: Sequence[bytes]
    mutations: Sequence[Mutate]
    acts: Sequence[Act]
    batch: int = 100


def command(*words: str) -> Act:
    """Give a file to a command; ``{}`` stands for it."""
    from edgeinfer.cli.failures import guarded
    from edgeinfer.cli.group import edgeinfer

    def act(path: Path) -> int:
        with open(os.devnull, "w") as nowhere:  # noqa: SIM117
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                return guarded(edgeinfer, [w.replace("{}", str(path)) for w in words])

    return act


def call(read: Callable[[Path], object]) -> Act:
    """Give a file to a function; errors count as the command line tells them."""
    from edgeinfer.cli.failures import describe

    def act(path: Path) -> int:
        try:
            read(path)
        except Exception as e:
            return describe(e).code
        return 0

    return act


def readers(folder: Path) -> list[Reader]:
    """Make them; what needs a package that is not installed is left out, by name, on stdout."""
    return [
        *_bundles(folder),
        *_models(folder),
        *_media(),
        *_tables(),
        *language.readers(folder),
        *served.readers(),
        *others.readers(folder),
        *compared.readers(folder),
        *tabular.readers(),
    ]


def _bundles(folder: Path) -> Iterator[Reader]:
    from edgeinfer.bundle.signing import verified

    bundle = seeds.bundle(folder)
    vector, key = folder / "whole.npz", folder / "key"
    vector.write_bytes(seeds.arrays(image=(1, 3, 8, 8)))
    ways = [mutate.in_bytes, mutate.in_bundle, mutate.in_bundle]
    yield Reader("bundle", ".edge", [bundle], ways, [call(_opened)])
    yield Reader("inspect", ".edge", [bundle], ways, [command("inspect", "{}", "--json")])
    yield Reader("run", ".edge", [bundle], ways, [command("run", "{}", str(vector))])
    sealed = seeds.sealed(bundle, key)
    acts = [call(lambda path: _opened(path, key=key))]
    yield Reader("sealed", ".edge", [sealed], [mutate.in_bytes], acts)
    public, signatures, manifest = seeds.signatures(folder, bundle)
    acts = [call(lambda path: verified(manifest, path.read_bytes(), [public]))]
    yield Reader("signatures", ".json", [signatures], [mutate.in_bytes, mutate.in_json], acts)


def _opened(path: Path, **options: Path) -> None:
    from edgeinfer.bundle.archive import Bundle

    with Bundle.open(path, **options) as opened:  # type: ignore[arg-type]
        opened.report()
        list(opened.vectors())


def _models(folder: Path) -> Iterator[Reader]:
    onnx_files = seeds.onnx_files()
    bytes_only = [mutate.in_bytes]
    yield Reader("onnx", ".onnx", onnx_files, bytes_only, [command("inspect", "{}")])
    check = command("check", "{}", "-t", "onnxruntime", "-t", "android")
    yield Reader("onnx-check", ".onnx", onnx_files, bytes_only, [check])
    made = [
        check,
        command("convert", "{}", "-t", "onnxruntime", "-o", f"{folder}/n.edge", "--overwrite"),
    ]
    yield Reader("numbers", ".onnx", hostile.seeds(), [hostile.in_numbers], made)
    tflite = seeds.tflite(folder)
    yield Reader("tflite", ".tflite", [tflite], bytes_only, [command("inspect", "{}")])
    program = seeds.exported_program(folder)
    if program is None:
        print("pt2: left out, PyTorch is not installed")  # noqa: T201
    else:
        yield Reader("pt2", ".pt2", [program], bytes_only, [command("inspect", "{}")])


def _media() -> Iterator[Reader]:
    import numpy as np

    from edgeinfer.media.arrays import read_arrays
    from edgeinfer.media.audio import open_recording
    from edgeinfer.media.image import open_image

    bytes_only = [mutate.in_bytes]
    yield Reader(
        "arrays",
        ".npz",
        [seeds.arrays(image=(1, 3, 8, 8), n=(3,))],
        bytes_only,
        [call(read_arrays)],
    )
    for suffix, picture in seeds.pictures():
        act = call(lambda path: np.asarray(open_image(path)))
        yield Reader(f"picture{suffix}", suffix, [picture], bytes_only, [act])
    sound = call(lambda path: open_recording(path, 8000))
    yield Reader("sound", ".wav", [seeds.sounds()], bytes_only, [sound])


def _tables() -> Iterator[Reader]:
    from edgeinfer import profiles
    from edgeinfer.media.description import parse_description

    ways = [mutate.in_text]
    pipeline = seeds.pipeline_file()
    yield Reader("pipeline", ".toml", [pipeline], ways, [call(parse_description)])
    profile = call(lambda path: profiles.load(str(path)))
    yield Reader("profile", ".toml", [seeds.profile_file()], ways, [profile])
