"""A trained YOLO of Ultralytics as a bundle, with what its outputs mean: no pipeline file to write.

    from ultralytics import YOLO
    from from_ultralytics import export

    export(YOLO("yolo11n-seg.pt"), "yolo.edge", targets=["rpi5", "ios"])

Boxes, masks, keypoints and rotated boxes of versions 8 to 12 and 26, RT-DETR, and classes. What
they mean stands in the ONNX file that Ultralytics writes, so that ``convert`` takes such a file
alone:

    python from_ultralytics.py yolo11n-seg.onnx yolo.edge --target rpi5
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import onnx

import edgeinfer
from edgeinfer.heads import (
    Classify,
    DetectGrid,
    DetectRows,
    Extra,
    Head,
    Keypoints,
    Prototypes,
    Rotated,
)
from edgeinfer.media.description import Description
from edgeinfer.types import ImageInput


def export(model: Any, out: str | Path, targets: list[str], size: int = 640, **options: Any) -> Any:
    """Have Ultralytics write ONNX, and convert that.

    Args:
        model: ``ultralytics.YOLO``.
        out: Path of the bundle.
        targets: as ``edgeinfer.export`` takes them, like all other options.
        size: side of the input.
    """
    return convert(model.export(format="onnx", imgsz=size, simplify=False), out, targets, **options)


def convert(file: str | Path, out: str | Path, targets: list[str], **options: Any) -> Any:
    """Convert an ONNX file of Ultralytics."""
    return edgeinfer.export(file, out, targets=targets, description=describe(file), **options)


def describe(file: str | Path) -> Description:
    """Say what goes into an ONNX file of Ultralytics and what its outputs mean."""
    model = onnx.load(str(file), load_external_data=False)
    said = {entry.key: entry.value for entry in model.metadata_props}
    if missing := [key for key in ("imgsz", "names", "task") if key not in said]:
        raise SystemExit(
            f"{file}: its metadata lacks {', '.join(missing)}, which Ultralytics writes: export it "
            "with `yolo export format=onnx`, or convert it with `edgeinfer convert`"
        )
    height, width = ast.literal_eval(said["imgsz"])
    classes = said["task"] == "classify"
    picture = ImageInput(
        width,
        height,
        "crop" if classes else "stretch" if _is_detr(said) else "letterbox",
        antialias=classes,
    )
    labels = tuple(name for _, name in sorted(ast.literal_eval(said["names"]).items()))
    return Description({model.graph.input[0].name: picture}, _head(said), labels)


def _is_detr(said: dict[str, str]) -> bool:
    """Whether it is an RT-DETR, whose task is that of any detector."""
    if "head" not in said and "rtdetr" in said.get("description", "").lower():
        raise SystemExit(
            f"an RT-DETR of Ultralytics {said.get('version')}, whose rows are others: export it "
            "with 8.4.190 or newer, which says what its head is"
        )
    return said.get("head") == "RTDETRDecoder"


def _head(said: dict[str, str]) -> Head:
    if said["task"] == "classify":
        return Classify("output0")
    if _is_detr(said):
        return DetectRows("output0", "xywh", unit="share")
    count, numbers = ast.literal_eval(said.get("kpt_shape", "(17, 3)"))
    extras: dict[str, Extra | None] = {
        "detect": None,
        "segment": Prototypes("output1"),
        "pose": Keypoints(count, scored=numbers == 3),
        "obb": Rotated(),
    }
    extra = extras[said["task"]]
    if said.get("end2end") == "True":
        return DetectRows("output0", "xywh" if said["task"] == "obb" else "xyxy", extra=extra)
    return DetectGrid("output0", channels_first=True, extra=extra)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--target", action="append", required=True)
    asked = parser.parse_args()
    convert(asked.file, asked.out, asked.target)
