"""Images in, names out: the bundle knows how to prepare an image and what the classes are.

    python 05_name_a_photo.py model.edge photo.jpg ...   names your images with your bundle
    python 05_name_a_photo.py                            makes both for a try; nothing is fetched

A bundle for it is made with `edgeinfer convert model.onnx --preprocessing FILE --labels FILE`.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx

import edgeinfer
from edgeinfer.media import feeds_for
from edgeinfer.types import ImageInput

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
colours (float[N, 3, 32, 32] image) => (float[N, 3] scores)
{
    mean = ReduceMean <axes = [2, 3], keepdims = 0> (image)
    scores = Softmax <axis = -1> (mean)
}
"""
MIDDLE = ImageInput(
    32,
    32,
    resize="crop",
    interpolation="bilinear",
    scale=1.0,
    mean=(127.0,),
    std=(128.0,),
)


def name(bundle: Path, pictures: Iterable[Path]) -> None:
    """Print the best class of each image."""
    with edgeinfer.Bundle.open(bundle) as opened:
        manifest = opened.manifest
    with edgeinfer.load(bundle) as session:
        for picture in pictures:
            (scores,) = session.run(feeds_for(picture, manifest)).values()
            best = int(scores[0].argmax())
            print(f"{picture.name}: {manifest.labels[best]} ({scores[0, best]:.2f})")


def try_out(folder: Path) -> None:
    """Name the colour of two images that are drawn here."""
    from PIL import Image

    bundle = folder / "colours.edge"
    edgeinfer.export(
        onnx.parser.parse_model(GRAPH),
        bundle,
        name="colours",
        preprocessing={"image": MIDDLE},
        labels=("red", "green", "blue"),
    )
    pictures = [folder / "tomato.png", folder / "meadow.jpg"]
    for picture, colour in zip(pictures, ((220, 30, 20), (90, 180, 40)), strict=True):
        Image.new("RGB", (640, 480), colour).save(picture)
    name(bundle, pictures)


def main() -> None:
    if importlib.util.find_spec("PIL") is None:
        print('skipped: Pillow is not installed; pip install "edgeinfer[media]"')
    elif len(sys.argv) > 2:
        name(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
    else:
        with tempfile.TemporaryDirectory() as folder:
            try_out(Path(folder))


if __name__ == "__main__":
    main()
