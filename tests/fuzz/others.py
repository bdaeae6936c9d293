"""Readers of what lies next to models, and of what models and devices answer."""

from __future__ import annotations

import io
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.errors import EdgeInferError
from tests.fuzz import mutate, seeds

if TYPE_CHECKING:
    from tests.fuzz.readers import Reader

_MARK = "0123456789abcdef"
_CONFIG = b'target = ["rpi5"]\nprecision = "fp32"\noverwrite = false\noutput = "m.edge"\n'
_CALL = '{"name": "f", "arguments": {"a": [1, {"b": null}]}}'
_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="draw"\r\n\r\ntrue\r\n--x\r\n'
    b'Content-Disposition: form-data; name="file"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\n\x89PNG\r\n--x--\r\n"
)


def readers(folder: Path) -> Iterator[Reader]:
    """Make them."""
    from tests.fuzz.readers import Reader, call

    plain = [mutate.in_bytes]
    for name, raw, ways, read in (
        ("config", _CONFIG, [mutate.in_text, mutate.in_bytes], _configured),
        ("device", _answer(), [mutate.in_bytes, _in_answer], _answered),
        ("form", _FORM, plain, _form),
        ("calls", f"so <tool_call>\n{_CALL}\n</tool_call>".encode(), plain, _calls),
        ("records", _records(folder), [mutate.in_bytes, _in_lines], _database),
        ("samples", _samples(), plain, _opened_samples),
        ("llm.json", _decoder(), [mutate.in_json, mutate.in_bytes], _described),
    ):
        suffix = ".npz" if name == "samples" else ".data"
        yield Reader(name, suffix, [raw], ways, [call(read)])
    paged, page = _pages(folder / "pages")
    yield Reader("page", ".kv", [page], plain, [call(paged)])
    yield Reader("heads", ".edge", _heads(folder), [mutate.in_bundle, _in_head], [call(_looked_at)])
    package = _package(folder)
    if package is not None:
        yield Reader("mlpackage", ".mlmodel", [package], plain, [call(_loaded)])


def _configured(path: Path) -> None:
    from edgeinfer.cli.group import edgeinfer

    command = edgeinfer.get_command(None, "convert")  # type: ignore[arg-type]
    command.make_context("convert", ["--config", str(path)])  # type: ignore[union-attr]


def _answer() -> bytes:
    return f"hello\n{_MARK} {json.dumps({'code': 0, 'sizes': [2, 3]})}\nok{{}}\n".encode()


def _in_answer(raw: bytes, rng: random.Random) -> bytes:
    line = json.dumps(mutate.in_value({"code": 0, "sizes": [2, 3]}, rng))
    return f"{_MARK} {line}\nok{{}}\n".encode()


def _answered(path: Path) -> None:
    from edgeinfer.remote import board

    with subprocess.Popen(["true"]) as ended:
        board._answer(ended, io.BytesIO(path.read_bytes()), _MARK, "ssh://device")


def _form(path: Path) -> None:
    from edgeinfer.runtime.serve.forms import read_form
    from edgeinfer.runtime.serve.http import RequestError

    try:
        read_form(path.read_bytes(), b"multipart/form-data; boundary=x")
    except RequestError as error:
        raise EdgeInferError(error.text) from error


def _calls(path: Path) -> None:
    from edgeinfer.runtime.llm.tools import FORMATS

    text = path.read_bytes().decode("utf-8", "replace")
    for _, form in FORMATS:
        form.calls(text)


def _records(folder: Path) -> bytes:
    from edgeinfer.kernels.tuning.database import TRIED, Database, Record

    path = folder / "records.jsonl"
    trace = [[["GetSBlock", [], ["b", "main"], ["#global"]], ["l1", 2]], []]
    for number in range(3):
        Database(path).add(Record(TRIED, f"k{number}", "m", "c", 1, trace=trace, us=2.5))
    return path.read_bytes()


def _in_lines(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = mutate.in_json(lines[at], rng)
    return b"\n".join(lines)


def _database(path: Path) -> None:
    from edgeinfer.kernels.tuning.database import Database, best

    best(Database(path).read().records, "m", "c")


def _samples() -> bytes:
    stream = io.BytesIO()
    images = np.zeros((4, 3, 8, 8), np.float32)
    np.savez(stream, image=images, labels=np.arange(4))
    return stream.getvalue()


def _opened_samples(path: Path) -> None:
    from edgeinfer.media.samples import open_data
    from edgeinfer.types import TensorSpec

    found = open_data(path, [TensorSpec("image", "float32", (1, 3, 8, 8))], called="evaluation")
    for sample in found.samples():
        list(sample.labels)


def _decoder() -> bytes:
    from tests.runtime.llm.conftest import tiny_config

    return tiny_config(vocab=420, context=512).to_json().encode()


def _described(path: Path) -> None:
    from edgeinfer.llm import LlmConfig
    from edgeinfer.llm.generation import Generation
    from edgeinfer.llm.tape import Tape

    raw = path.read_bytes()
    for kind in (Generation, Tape, LlmConfig):
        try:
            kind.from_json(raw)
        except EdgeInferError:
            if kind is LlmConfig:
                raise


def _pages(root: Path) -> tuple[Callable[[Path], None], bytes]:
    from edgeinfer.runtime.llm.disk import PageStore

    key, size = bytes(range(16)), 256
    store = PageStore(root, "m", size, 1 << 20)
    store.write(key, np.arange(size, dtype=np.uint8))
    store.close()
    place = store._path(key)

    def read(path: Path) -> None:
        place.write_bytes(path.read_bytes())
        into = np.zeros(size, np.uint8)
        if store.read(key, into) and into.tolist() != list(range(size)):
            raise AssertionError("a page that was damaged was taken")

    return read, place.read_bytes()


def _heads(folder: Path) -> list[bytes]:
    from edgeinfer.heads import Classify, DetectBoxes, DetectGrid, FindText, Head, Notes, Segment
    from edgeinfer.types import Array
    from tests.trust.test_outputs import bundle

    rng = np.random.default_rng(0)
    known: list[tuple[Head, dict[str, Array]]] = [
        (Classify(), {"a": rng.random((1, 5))}),
        (Segment(), {"a": rng.random((1, 4, 8, 8))}),
        (DetectGrid(box="xyxy"), {"a": rng.random((1, 6, 7))}),
        (DetectBoxes("a", "b"), {"a": rng.random((1, 5, 4)), "b": rng.random((1, 5))}),
        (FindText(), {"a": rng.random((1, 1, 16, 16))}),
        (Notes("a", "b", 32), {"a": rng.random((1, 8, 4)), "b": rng.random((1, 8, 4))}),
    ]
    return [
        bundle(folder / f"head-{number}.edge", head, outputs).read_bytes()
        for number, (head, outputs) in enumerate(known)
    ]


def _in_head(raw: bytes, rng: random.Random) -> bytes:
    """Change what outputs mean, and what inputs are made of."""

    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        for _ in range(rng.choice((1, 1, 2, 4))):
            key = rng.choice(("head", "preprocessing", "labels", "outputs"))
            manifest[key] = mutate.in_value(manifest.get(key), rng)
        members["manifest.json"] = json.dumps(manifest).encode()

    return mutate.refitted(raw, change)


def _looked_at(path: Path) -> None:
    from edgeinfer.media.overlay import overlay
    from edgeinfer.runtime.pipelines import pipeline
    from tests.trust.test_outputs import recording

    page = np.zeros((8, 8, 3), np.uint8)
    with pipeline(path) as opened:
        given: Any = page if opened.takes == "a picture" else recording()
        overlay(page, opened(given))


def _package(folder: Path) -> bytes | None:
    try:
        import coremltools  # noqa: F401
    except ImportError:
        print("mlpackage: left out, coremltools is not installed")  # noqa: T201
        return None
    import onnx

    from edgeinfer.convert.pipeline.entry import export

    model = onnx.parser.parse_model(seeds.MODELS[0])
    made = export(model, folder / "ios.mlpackage", targets=["ios"])
    (spec,) = Path(made.path).rglob("*.mlmodel")
    return spec.read_bytes()


def _loaded(path: Path) -> None:
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend

    artifact = Artifact("mlprogram", path, (), ())
    CoreMLReferenceBackend().load(artifact, LoadOptions()).close()
