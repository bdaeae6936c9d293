"""What is mutated: one small, whole file of each kind that edgeinfer reads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.trust.marked import GRAPH

MODELS = (
    GRAPH,
    """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    calls (float[2, "n"] x, bool c) => (float[2, "n"] y)
    {
        z = local.Twice(x)
        y = If (c) <
            then_branch = a () => (float[2, "n"] p) { p = Neg (z) },
            else_branch = b () => (float[2, "n"] q) { q = Softmax <axis = 0> (z) }
        >
    }
    <domain: "local", opset_import: ["" : 17]>
    Twice (v) => (w) { w = Add (v, v) }
    """,
)


def onnx_files() -> list[bytes]:
    """Return models with weights, functions and branches."""
    found = [onnx.parser.parse_model(text).SerializeToString() for text in MODELS]
    weight = helper.make_tensor("w", TensorProto.FLOAT, (3, 4), np.arange(12.0).tolist())
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 4))],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    return [*found, helper.make_model(graph, opset_imports=opsets).SerializeToString()]


def bundle(folder: Path) -> bytes:
    """Return a bundle of one ONNX artifact, with a vector, a record and a report."""
    from edgeinfer.convert.pipeline.entry import export
    from edgeinfer.types import ImageInput

    made = export(
        onnx.parser.parse_model(GRAPH),
        folder / "seed.edge",
        targets=["onnxruntime"],
        preprocessing={"image": ImageInput(8, 8)},
        labels=("red", "green", "blue"),
    )
    return made.path.read_bytes()


def sealed(bundle: bytes, key: Path) -> bytes:
    """Return a bundle encrypted with a new key, which is written to a file."""
    from edgeinfer.bundle.sealer import new_key, seal

    (key.parent / "plain.edge").write_bytes(bundle)
    seal(key.parent / "plain.edge", key.parent / "sealed.edge", new_key(key))
    return (key.parent / "sealed.edge").read_bytes()


def signatures(folder: Path, bundle: bytes) -> tuple[Path, bytes, bytes]:
    """Return a public key, signatures by it, and the manifest that they are over."""
    from edgeinfer.bundle.signer import new_keys, sign

    new_keys(folder / "private.pem", folder / "public.pem")
    with zipfile.ZipFile(io.BytesIO(bundle)) as opened:
        manifest = opened.read("manifest.json")
    content, _ = sign(manifest, folder / "private.pem", counter=3, time=5)
    return folder / "public.pem", content, manifest


def arrays(**shapes: tuple[int, ...]) -> bytes:
    """Return an ``.npz`` of zeros."""
    stream = io.BytesIO()
    held: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    np.savez(stream, **held)
    return stream.getvalue()


def pictures() -> list[tuple[str, bytes]]:
    """Return images in every format that is read."""
    from PIL import Image

    from edgeinfer.media.image import FORMATS

    found = []
    image = Image.fromarray(np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3))
    for form in FORMATS:
        stream = io.BytesIO()
        image.save(stream, form)
        found.append((f".{form.lower()}", stream.getvalue()))
    return found


def sounds() -> bytes:
    """Return a recording."""
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, np.sin(np.arange(800) / 9), 8000, format="WAV")
    return stream.getvalue()


def tflite(folder: Path) -> bytes:
    """Return a ``.tflite`` file, as the converter writes it."""
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.convert.pipeline.entry import export

    made = export(onnx.parser.parse_model(GRAPH), folder / "t.edge", targets=["android"])
    with Bundle.open(made.path) as opened:
        (found, *_) = [v for v in opened.manifest.variants if v.format == "tflite"]
        return opened.read(found.files[0])


def pipeline_file() -> bytes:
    """Return a description of what goes in and comes out."""
    return (
        b'[inputs.image]\nkind = "image"\nwidth = 8\nheight = 8\nresize = "crop"\n'
        b'mean = [0.5, 0.5, 0.5]\n\n[output]\nkind = "classify"\ntop = 3\nlabels = ["a", "b"]\n'
    )


def profile_file() -> bytes:
    """Return a device profile that is shipped."""
    import edgeinfer.profiles

    place = Path(edgeinfer.profiles.__file__).parent
    return (place / "rpi4.toml").read_bytes()


def exported_program(folder: Path) -> bytes | None:
    """Return a ``.pt2``; None where PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    path = folder / "seed.pt2"
    program = torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
    torch.export.save(program, path)
    return path.read_bytes()
