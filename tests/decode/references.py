"""Makes ``golden``: raw outputs of networks on a photo, and what their own packages read from them.

    pip install ultralytics torchvision supervision
    python -m tests.decode.references PICTURE VIDEO

Of the video (OpenCV's vtest.avi, people who walk) what moves is found by a model of the background;
its boxes are followed by Ultralytics' ByteTrack.

The networks are small and have random weights whose last layers were widened, so that their scores,
boxes, points and angles vary as a trained one's do. Outputs are rounded to float16 before they are
read, so that what is kept is what was read.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
SOURCE, SIZE = (640, 427), 96
"""Of the photo, and of the side of a network's input."""

SQUARE = (427, 427)
"""Of the photo where Ultralytics interpolates masks once only, since nothing lies next to it."""


def rounded(tensor: Any) -> Any:
    """Keep what fits into float16."""
    return tensor.half().float()


def letterboxed(picture: Any) -> Any:
    """Return the photo (1, 3, SIZE, SIZE) as Ultralytics gives it to a network."""
    import torch
    from ultralytics.data.augment import LetterBox

    boxed = LetterBox((SIZE, SIZE), auto=False)(image=np.asarray(picture)[..., ::-1])
    return torch.from_numpy(boxed[..., ::-1].transpose(2, 0, 1).copy())[None].float() / 255


def yolo(name: str) -> Any:
    """Return a small YOLO of a family and a task."""
    import torch
    from ultralytics.nn import tasks
    from ultralytics.utils import YAML

    family, _, task = name.partition("-")
    kinds = {"": "DetectionModel", "seg": "SegmentationModel", "pose": "PoseModel"}
    kind = getattr(tasks, kinds.get(task, "OBBModel"))
    file = {"yolov10": "yolov10n", "yolov9": "yolov9t"}.get(name, name)
    config = YAML.load(tasks.check_yaml(f"{file}.yaml"))
    if family != "yolov9":
        config["scales"] = {"n": [0.33, 0.25 if family == "yolo12" else 0.0625, 256]}
        config["scale"] = "n"
    torch.manual_seed(7)
    model = kind(config, nc=1 if task == "pose" else 3, verbose=False).eval()
    if hasattr(model.model[-1], "one2one_cv2"):
        # As the trained ones are exported: the network thins its objects out itself.
        model.end2end = True
    return model


def widen(model: Any, given: Any) -> None:
    """Let the last layers of the heads give numbers as those of trained networks are spread."""
    import torch

    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        model(given)
    model.eval()
    head = model.model[-1]
    boxes = (2.0, 1.0) if head.reg_max == 1 else (0.0, 2.0)
    spreads = {"cv2": boxes, "cv3": (-2.5, 1.5), "cv4": (0.0, 1.0), "cv4_kpts": (0.0, 1.0)}
    hooks = []

    def spread(mean: float, deviation: float) -> Any:
        def change(layer: Any, _: Any, out: Any) -> Any:
            with torch.no_grad():
                factor = deviation / out.std()
                layer.weight *= factor
                layer.bias.copy_((layer.bias - out.mean()) * factor + mean)
            return (out - out.mean()) * factor + mean

        return change

    for part, (mean, deviation) in spreads.items():
        for name in (part, f"one2one_{part}"):
            for layer in getattr(head, name, None) or ():
                last = layer[-1] if isinstance(layer, torch.nn.Sequential) else layer
                if isinstance(last, torch.nn.Conv2d):
                    hooks.append(last.register_forward_hook(spread(mean, deviation)))
    with torch.no_grad():
        model(given)
    for hook in hooks:
        hook.remove()


def ultralytics_golden(name: str, picture: Any) -> dict[str, Any]:
    """Run a network and read it by Ultralytics' own predictor."""
    import torch
    from ultralytics.models import yolo as predictors

    task = {"": "detect", "seg": "segment"}.get(name.partition("-")[2], name.partition("-")[2])
    model = yolo(name)
    widen(model, letterboxed(picture))
    with torch.no_grad():
        given = model(letterboxed(picture))
    first = given[0]
    outputs = [rounded(o) for o in (first if isinstance(first, tuple) else (first,))]
    kind = {"detect": "Detection", "segment": "Segmentation", "pose": "Pose", "obb": "OBB"}[task]
    module = getattr(predictors, task)
    asked = {"conf": 0.15, "iou": 0.45, "retina_masks": True, "max_det": 100, "task": task}
    reader = getattr(module, f"{kind}Predictor")(overrides=asked)
    reader.model = SimpleNamespace(
        names={i: str(i) for i in range(model.model[-1].nc)},
        end2end=bool(getattr(model, "end2end", False)),
        kpt_shape=(17, 3),
    )
    reader.batch = (["photo"],)
    original = np.asarray(picture)[..., ::-1]
    read = tuple(o.clone() for o in outputs)
    given = (read, None) if task == "segment" else read[0]
    (found,) = reader.postprocess(given, torch.zeros(1, 3, SIZE, SIZE), [original])
    golden = {f"output{i}": o.half().numpy() for i, o in enumerate(outputs)}
    boxes = found.obb if task == "obb" else found.boxes
    golden |= {"scores": boxes.conf, "classes": boxes.cls, "boxes": boxes.xyxy}
    if task == "obb":
        golden["corners"] = boxes.xyxyxyxy
    if task == "pose":
        golden["points"] = found.keypoints.data
    if task == "segment":
        golden["masks"] = np.packbits(found.masks.data.numpy().astype(bool), axis=-1)
    return {key: np.asarray(value) for key, value in golden.items()}


def rtdetr_golden(picture: Any) -> dict[str, Any]:
    """Run an RT-DETR of Ultralytics, whose decoder thins out, and read it by their predictor."""
    import torch
    from ultralytics.models.rtdetr.predict import RTDETRPredictor
    from ultralytics.nn.tasks import RTDETRDetectionModel

    torch.manual_seed(7)
    model = RTDETRDetectionModel("rtdetr-l.yaml", nc=3, verbose=False).eval()
    small = np.asarray(picture.resize((SIZE, SIZE)))
    given = torch.from_numpy(small.transpose(2, 0, 1).copy())[None].float() / 255
    head = model.model[-1]
    torch.nn.init.normal_(head.dec_bbox_head[-1].layers[-1].weight)

    def spread(mean: float, deviation: float, layer: Any, _: Any, out: Any) -> Any:
        factor = deviation / out.std(dim=(0, 1))
        layer.bias.copy_((layer.bias - out.mean(dim=(0, 1))) * factor + mean)
        layer.weight *= factor[:, None]
        return (out - out.mean(dim=(0, 1))) * factor + mean

    lasts = {head.dec_bbox_head[-1].layers[-1]: (0.0, 0.6), head.dec_score_head[-1]: (-4.0, 1.5)}
    hooks = [last.register_forward_hook(partial(spread, *to)) for last, to in lasts.items()]
    with torch.no_grad():
        model(given)
        for hook in hooks:
            hook.remove()
        rows = rounded(model(given)[0])
    reader = RTDETRPredictor(overrides={"conf": 0.15, "max_det": 100, "task": "detect"})
    reader.model = SimpleNamespace(names={i: str(i) for i in range(3)})
    reader.batch = (["photo"],)
    (found,) = reader.postprocess(rows.clone(), given, [np.asarray(picture)[..., ::-1]])
    told = {"scores": found.boxes.conf, "classes": found.boxes.cls, "boxes": found.boxes.xyxy}
    golden = {"output0": rows.half().numpy()} | told
    return {key: np.asarray(value) for key, value in golden.items()}


def detr(name: str) -> tuple[Any, Any]:
    """Return a small network of transformers and what reads it."""
    import torch
    import transformers as t

    torch.manual_seed(3)
    small: dict[str, Any] = {"num_labels": 3, "decoder_layers": 2, "encoder_layers": 1}
    if name == "detr":
        back = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
        config = t.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=t.ResNetConfig(
                **back, out_features=["stage1", "stage2", "stage3", "stage4"]
            ),
            num_queries=40,
            d_model=32,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            **small,
        )
        return t.DetrForObjectDetection(config).eval(), t.DetrImageProcessor()
    kinds = {"rt-detr": t.RTDetrForObjectDetection, "d-fine": t.DFineForObjectDetection}
    config = kinds[name].config_class(
        d_model=32,
        encoder_hidden_dim=32,
        decoder_in_channels=[32, 32, 32],
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=40,
        **small,
    )
    return kinds[name](config).eval(), t.RTDetrImageProcessor()


def detr_golden(name: str, picture: Any) -> dict[str, Any]:
    """Run a network and read it by the processor of transformers."""
    import torch

    model, processor = detr(name)
    pixels = torch.from_numpy(np.asarray(picture.resize((SIZE, SIZE))).copy())
    with torch.no_grad():
        given = model((pixels.permute(2, 0, 1)[None].float() / 255 - 0.45) / 0.225)
    logits, boxes = given.logits, given.pred_boxes
    # Random weights give each query nearly the same: what differs is widened about the mean.
    spread = torch.Generator().manual_seed(5)
    logits = rounded((logits - logits.mean()) / logits.std() * 1.5 - 1)
    boxes = boxes + torch.randn(boxes.shape, generator=spread) * 0.15
    boxes = rounded(boxes.clamp(0.02, 0.9))
    outputs = SimpleNamespace(logits=logits, pred_boxes=boxes)
    sizes = [(SOURCE[1], SOURCE[0])]
    (found,) = processor.post_process_object_detection(outputs, threshold=0.4, target_sizes=sizes)
    golden = {"logits": logits.half(), "boxes_out": boxes.half()}
    golden |= {"scores": found["scores"], "classes": found["labels"], "boxes": found["boxes"]}
    return {key: np.asarray(value) for key, value in golden.items()}


def masks_golden(picture: Any) -> dict[str, Any]:
    """Read made-up queries, with masks of a photo's brightness, by the processor of RF-DETR."""
    import torch
    from transformers.models.rf_detr.image_processing_rf_detr import RfDetrImageProcessor

    rng = torch.Generator().manual_seed(2)
    logits = rounded(torch.randn((1, 20, 3), generator=rng) * 2 - 2)
    grey = torch.from_numpy(np.asarray(picture.convert("L").resize((24, 24)))).float() / 255
    levels = torch.rand((1, 20, 1, 1), generator=rng)
    masks = rounded((grey[None, None] - levels) * 8)
    boxes = rounded(torch.rand((1, 20, 4), generator=rng) * 0.5 + 0.2)
    outputs = SimpleNamespace(logits=logits, pred_masks=masks, pred_boxes=boxes)
    asked = {"threshold": 0.4, "target_sizes": [(SOURCE[1], SOURCE[0])], "return_binary_maps": True}
    (found,) = RfDetrImageProcessor().post_process_instance_segmentation(outputs, **asked)
    segments = found["segments_info"]
    return {
        "logits": logits.half().numpy(),
        "boxes_out": boxes.half().numpy(),
        "masks_out": masks.half().numpy(),
        "scores": np.array([s["score"] for s in segments]),
        "classes": np.array([s["label_id"] for s in segments]),
        "masks": np.packbits(np.asarray(found["segmentation"]).astype(bool), axis=-1),
    }


def depth_golden(picture: Any) -> dict[str, Any]:
    """Run a small Depth Anything and read it by its processor."""
    import torch
    import transformers as t

    torch.manual_seed(4)
    back = t.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=98,
        patch_size=14,
        out_features=["stage1", "stage2", "stage3", "stage4"],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    config = t.DepthAnythingConfig(
        backbone_config=back,
        patch_size=14,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 16, 16, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
        head_in_index=-1,
    )
    model = t.DepthAnythingForDepthEstimation(config).eval()
    pixels = torch.from_numpy(np.asarray(picture.resize((98, 98))).copy())
    with torch.no_grad():
        given = model((pixels.permute(2, 0, 1)[None].float() / 255 - 0.45) / 0.225)
    values = rounded(given.predicted_depth / given.predicted_depth.abs().max())
    outputs = SimpleNamespace(predicted_depth=values)
    sizes = [(SOURCE[1], SOURCE[0])]
    (found,) = t.DPTImageProcessor().post_process_depth_estimation(outputs, target_sizes=sizes)
    # Every seventh pixel of every seventh row.
    sampled = found["predicted_depth"][::7, ::7]
    return {"output": values.half().numpy(), "sampled": sampled.numpy().astype(np.float32)}


def tracks_golden(video: str) -> dict[str, Any]:
    """Find what moves in a video, and number it by Ultralytics' ByteTrack."""
    import cv2
    from ultralytics.engine.results import Boxes
    from ultralytics.trackers.byte_tracker import BYTETracker
    from ultralytics.utils import YAML, IterableSimpleNamespace
    from ultralytics.utils.checks import check_yaml

    tracker = BYTETracker(IterableSimpleNamespace(**YAML.load(check_yaml("bytetrack.yaml"))))
    capture, ground = cv2.VideoCapture(video), cv2.createBackgroundSubtractorMOG2(200, 40)
    found, tracks = [], []
    for number in range(320):
        there, frame = capture.read()
        if not there:
            break
        moving = (ground.apply(cv2.GaussianBlur(frame, (5, 5), 0)) > 200).astype(np.uint8)
        moving = cv2.morphologyEx(moving, cv2.MORPH_CLOSE, np.ones((9, 5), np.uint8))
        if number < 60:
            continue
        _, _, stats, _ = cv2.connectedComponentsWithStats(moving)
        rows = [s for s in stats[1:] if s[4] > 80]
        boxes = np.array([(x, y, x + w, y + h, round(a / (w * h), 3), 0) for x, y, w, h, a in rows])
        boxes = boxes.reshape(-1, 6).astype(np.float32)
        found += [(number - 60, *box) for box in boxes]
        told = tracker.update(Boxes(boxes, frame.shape[:2]).numpy())
        tracks += [(number - 60, int(row[4]), int(row[7])) for row in told]
    return {"found": np.array(found, np.float32)[:, :6], "tracks": np.array(tracks, np.int32)}


YOLOS = (
    "yolov9",
    "yolov10",
    "yolo26",
    "yolov8-seg",
    "yolo26-seg",
    "yolo11-pose",
    "yolo26-pose",
    "yolo12-obb",
    "yolo26-obb",
)


def main() -> None:
    """Make every file."""
    from PIL import Image

    picture = Image.open(sys.argv[1]).convert("RGB").resize(SOURCE)
    GOLDEN.mkdir(exist_ok=True)
    made = {name: ultralytics_golden(name, picture) for name in YOLOS}
    made["yolo26-seg"] = ultralytics_golden("yolo26-seg", picture.resize(SQUARE))
    made |= {name: detr_golden(name, picture) for name in ("rt-detr", "d-fine", "detr")}
    made |= {"rf-detr-masks": masks_golden(picture), "depth-anything": depth_golden(picture)}
    made["rtdetr"] = rtdetr_golden(picture)
    made["bytetrack"] = tracks_golden(sys.argv[2])
    for name, golden in made.items():
        np.savez_compressed(GOLDEN / f"{name}.npz", **golden)
        print(name, {k: v.shape for k, v in golden.items()})  # noqa: T201


if __name__ == "__main__":
    main()
