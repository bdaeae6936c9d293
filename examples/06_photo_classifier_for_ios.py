"""A Core ML package for iPhones that takes images and names the class, evaluated on this machine.

    python 06_photo_classifier_for_ios.py        makes a model for a try; nothing is fetched

On the command line it is

    edgeinfer convert model.onnx -t ios --precision weight_only_wp6_afp16 --image-input image \\
        --preprocessing photo.toml --labels labels.txt --classifier

The .mlpackage (`edgeinfer extract` writes it) goes into Xcode; Vision gives its classes as
observations. What is shown here is computed by the reference evaluator, not by Core ML.
"""

import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx

import edgeinfer
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.media import feeds_for
from edgeinfer.types import ImageInput

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
colours (float[1, 3, 32, 32] image) => (float[1, 3] scores)
{
    features = Conv <pads = [1, 1, 1, 1]> (image, filters)
    kept = Relu (features)
    mean = GlobalAveragePool (kept)
    flat = Flatten (mean)
    mixed = MatMul (flat, mixing)
    scores = Softmax (mixed)
}
"""
PHOTO = ImageInput(32, 32, resize="crop", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LABELS = ("red", "green", "blue")


def model() -> onnx.ModelProto:
    """Return a net that tells which colour is strongest, behind noise that it has to ignore."""
    rng = np.random.default_rng(0)
    filters = rng.normal(0, 0.01, (96, 3, 3, 3))
    filters[np.arange(96), np.arange(96) % 3, 1, 1] += 1.0
    mixing = 0.2 * (np.arange(96)[:, None] % 3 == np.arange(3)) + rng.normal(0, 0.002, (96, 3))
    made = onnx.parser.parse_model(GRAPH)
    for name, values in (("filters", filters), ("mixing", mixing)):
        made.graph.initializer.append(onnx.numpy_helper.from_array(values.astype("f4"), name))
    return made


def convert(folder: Path) -> Path:
    """Write the bundle and say what is in its package."""
    made = edgeinfer.export(
        model(),
        folder / "colours.edge",
        targets=["ios"],
        precision="weight_only_wp6_afp16",
        preprocessing={"image": PHOTO},
        image_inputs=["image"],
        labels=LABELS,
        classifier=True,
        name="colours",
    )
    (variant,) = made.manifest.variants
    print(f"precision, read back: {variant.precision}")
    with edgeinfer.Bundle.open(made.path) as bundle:
        package = open_package(bundle.paths(variant)[0])
    described = package.description()
    for feature in (*described.inputs, *described.outputs):
        shape = list(feature.shape) or ""
        print(f"{feature.name}: {feature.kind} {feature.image} {shape}".rstrip())
    print(f"checked: {package.metadata['edgeinfer.checked']}")
    return made.path


def name(bundle: Path, folder: Path) -> None:
    """Name two images that are drawn here."""
    from PIL import Image

    with edgeinfer.load(bundle, backend="coreml-reference") as session:
        with edgeinfer.Bundle.open(bundle) as opened:
            manifest = opened.manifest
        for stem, colour in (("tomato", (220, 30, 20)), ("meadow", (60, 180, 40))):
            picture = folder / f"{stem}.png"
            Image.new("RGB", (640, 480), colour).save(picture)
            (scores,) = session.run(feeds_for(picture, manifest)).values()
            print(f"{stem}: {manifest.labels[int(scores[0].argmax())]}")


if __name__ == "__main__":
    missing = [m for m in ("PIL", "coremltools") if importlib.util.find_spec(m) is None]
    if missing:
        print('skipped: not installed; pip install "edgeinfer[media,coreml]"')
    else:
        with tempfile.TemporaryDirectory() as temporary:
            name(convert(Path(temporary)), Path(temporary))
