"""Real models on real data give the right names, boxes, words, notes and speech.

Bundles are made by the command line with the pipeline files in examples/. What is expected was
taken from each model's own package on the same input, or is computed here in another way.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.media import parse_description
from edgeinfer.results import Detection, Segmentation
from edgeinfer.tasks import (
    Classifier,
    Detector,
    Embedder,
    PitchTranscriber,
    Segmenter,
    TextReader,
    VoiceDetector,
    WordSpotter,
)
from edgeinfer.types import Array
from tests.convert.sources.tflite.mediapipe_cases import golden, thinned
from tests.zoo import fetch

Image = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RATE = 16000

Bundle = Callable[[str, str | Path], Path]


def command(*argv: object, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "edgeinfer", *map(str, argv), "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("stage ")]
    assert (done.returncode, said) == (0, []), done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Convert a model by one of the pipeline files, once."""
    folder = tmp_path_factory.mktemp("pipelines")
    for path in (EXAMPLES / "pipelines").iterdir():
        shutil.copy(path, folder)
    files = {
        "imagenet.txt": "imagenet-labels.txt",
        "ppocr_keys.txt": "ppocr-keys.txt",
        "tokenizer.json": "minilm-tokenizer.json",
    }
    for name, asset in files.items():
        shutil.copy(fetch(asset), folder / name)

    def made(name: str, model: str | Path) -> Path:
        path = folder / f"{name}.edge"
        if not path.exists():
            given = ("--pipeline", f"{name}.toml", "-o", path.name)
            command("convert", model, "-t", "onnxruntime", *given, folder=folder)
        return path

    return made


def net(folder: Path, name: str) -> str:
    """Return what names a PyTorch module of the zoo for the command line."""
    pytest.importorskip("torch")
    path = folder / f"{name.replace('-', '_')}.py"
    path.write_text(
        "from tests.zoo.nets import torch_model\n\n\n"
        f"def make():\n    return torch_model({name!r})\n"
    )
    return f"{path}:make"


def test_photos_are_named(bundle: Bundle, tmp_path: Path) -> None:
    path = bundle("efficientnet-lite0", net(tmp_path, "efficientnet-lite0"))
    torch, nets = pytest.importorskip("torch"), pytest.importorskip("tests.zoo.nets")
    module, _, _ = nets.torch_model("efficientnet-lite0")
    expected = {"chelsea.png": "Egyptian cat", "coffee.png": "espresso", "baboon.jpg": "baboon"}
    with Classifier(path) as classifier:
        for photo, label in expected.items():
            found = classifier.classify(fetch(photo))
            assert found[0].label == label
            # As the package of the weights says: shorter side to 224, the middle, (x - 127) / 128.
            image = Image.open(fetch(photo)).convert("RGB")
            share = 224 / min(image.size)
            size = (int(image.width * share), int(image.height * share))
            image = image.resize(size, Image.Resampling.BILINEAR)
            left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
            pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
            tensor = torch.from_numpy(((pixels - 127) / 128).transpose(2, 0, 1)[None].copy())
            with torch.no_grad():
                scores = module(tensor)[0].softmax(dim=0).numpy()
            assert [c.index for c in found] == (-scores).argsort(kind="stable")[:5].tolist()
            np.testing.assert_allclose([c.score for c in found], np.sort(scores)[:-6:-1], rtol=1e-3)
    told = command("run", path, fetch("coffee.png"), folder=tmp_path)
    assert told["results"][0]["found"][0]["label"] == "espresso"


def faces_by_loops(picture: Array, model: Path, size: int, strides: tuple[int, int]) -> list[Any]:
    """Decode BlazeFace one anchor at a time; return boxes in pixels of the image."""
    from edgeinfer.backends.engines import import_onnxruntime

    height, width = picture.shape[:2]
    side = max(height, width)
    square = np.zeros((side, side, 3), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = picture
    small = Image.fromarray(square).resize((size, size), Image.Resampling.BILINEAR)
    tensor = (np.asarray(small, np.float32) / 127.5 - 1)[None]
    session = import_onnxruntime().InferenceSession(str(model))
    given = {session.get_inputs()[0].name: tensor}
    outputs = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True)
    )
    found = []
    for layer, (stride, each) in enumerate(zip(strides, (2, 6), strict=True)):
        scores = outputs[("Identity:0", "Identity_1:0")[layer]][0, :, 0]
        boxes = outputs[("Identity_2:0", "Identity_3:0")[layer]][0]
        for number in range(len(scores)):
            chance = 1 / (1 + np.exp(-max(float(scores[number]), -80.0)))
            cell = number // each
            x = (cell % (size // stride) + 0.5) * stride + boxes[number, 0]
            y = (cell // (size // stride) + 0.5) * stride + boxes[number, 1]
            w, h = boxes[number, 2:4]
            box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2]) * side / size
            found.append((float(chance), box - (left, top, left, top)))
    return found


def overlap(a: Any, b: Any) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(both / (areas - both))


MODELS = {"front": (128, (8, 16)), "back": (256, (16, 32))}


@pytest.mark.parametrize("kind", MODELS)
def test_faces_are_found_where_another_decoder_finds_them(bundle: Bundle, kind: str) -> None:
    model = fetch(f"blazeface-{kind}.onnx")
    photo = np.asarray(Image.open(fetch("astronaut.png")).convert("RGB"))[:400, 20:500]
    with Detector(bundle(f"blazeface-{kind}", model)) as detector:
        (found,) = detector.detect(photo)
        expected = [b for b in faces_by_loops(photo, model, *MODELS[kind]) if b[0] >= 0.5]
        best = max(expected, key=lambda pair: pair[0])
        assert found.score == pytest.approx(best[0], abs=1e-4)
        # What overlaps the best is one face: the mean of all by their scores.
        total = sum(score for score, box in expected if overlap(box, best[1]) > 0.3)
        mean = sum(score * box for score, box in expected if overlap(box, best[1]) > 0.3) / total
        assert overlap(found.box, mean) > 0.999
        eyes = np.array(found.keypoints[:2])
        # In the photo: right eye (of the person) at 206, 101 and left eye at 246, 107.
        np.testing.assert_allclose(eyes, [(206 - 20, 101), (246 - 20, 107)], atol=8)
        # The larger model takes a cat's face for one; this is the model, not its decoding.
        for other in ("chelsea.png", "coffee.png", "rocket.jpg"):
            pixels = np.asarray(Image.open(fetch(other)).convert("RGB"))
            chance = max(score for score, _ in faces_by_loops(pixels, model, *MODELS[kind]))
            scores = [d.score for d in detector.detect(fetch(other))]
            assert bool(scores) == (chance >= 0.5)
            assert max(scores, default=chance) == pytest.approx(chance, abs=1e-4)


def test_two_faces_and_a_picture_lying_on_its_side(bundle: Bundle, tmp_path: Path) -> None:
    photo = Image.open(fetch("astronaut.png")).convert("RGB")
    face = photo.crop((130, 20, 330, 220))
    page = Image.new("RGB", (700, 420), (120, 130, 140))
    page.paste(face, (60, 100))
    page.paste(face.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (420, 150))
    with Detector(bundle("blazeface-back", fetch("blazeface-back.onnx"))) as detector:
        found = sorted(detector.detect(page), key=lambda d: d.box[0])
        assert len(found) == 2
        assert 60 < found[0].box[0] < found[0].box[2] < 260
        assert 420 < found[1].box[0] < found[1].box[2] < 620
        page.rotate(90, expand=True).save(tmp_path / "side.jpg", quality=95, exif=sideways())
        turned = sorted(detector.detect(tmp_path / "side.jpg"), key=lambda d: d.box[0])
    for a, b in zip(turned, found, strict=True):
        assert overlap(a.box, b.box) > 0.9


def sideways() -> Any:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    return exif


@pytest.fixture(scope="module")
def reader(bundle: Bundle) -> list[Path]:
    return [
        bundle("ppocr-det", fetch("ppocrv4-det.onnx")),
        bundle("ppocr-cls", fetch("ppocr-cls.onnx")),
        bundle("ppocr-rec", fetch("ppocrv4-rec.onnx")),
    ]


SIGN = {
    "NOTICE": [(275, 34), (429, 32), (429, 75), (275, 77)],
    "DOUBLE": [(276, 87), (424, 85), (424, 121), (277, 123)],
    "PARKING": [(276, 129), (423, 129), (423, 165), (276, 165)],
    "PROHIBITED": [(276, 172), (422, 172), (422, 208), (276, 208)],
    "AT ALLTIMES": [(284, 214), (407, 214), (407, 253), (284, 253)],
}
"""Words and corners of rapidocr-onnxruntime 1.4.4 for scenetext01.jpg."""


def test_a_sign_is_read_as_by_the_models_own_package(reader: list[Path]) -> None:
    with TextReader(*reader) as read:
        found = read.read(fetch("scenetext01.jpg"))
    assert [t.text for t in found] == list(SIGN)
    for text, corners in zip(found, SIGN.values(), strict=True):
        np.testing.assert_allclose(text.corners, corners, atol=2)
        assert text.score > 0.9


def test_a_sign_is_read_upside_down_and_on_its_side(reader: list[Path]) -> None:
    photo = Image.open(fetch("scenetext01.jpg")).convert("RGB")
    with TextReader(*reader) as read:
        turned = read.read(photo.rotate(180))
        # From the top of the image, so the last line comes first.
        words = [t.text.replace(" ", "") for t in turned[::-1]]
        assert words == [word.replace(" ", "") for word in SIGN]
        width, height = photo.size
        for text, corners in zip(turned[::-1], SIGN.values(), strict=True):
            back = (width, height) - np.array(text.corners)
            np.testing.assert_allclose(np.roll(back, 2, axis=0), corners, atol=6)
        sideways = {t.text for t in read.read(photo.rotate(90, expand=True))}
    assert {"NOTICE", "DOUBLE", "PARKING", "PROHIBITED"} <= sideways


def test_a_page_is_read(reader: list[Path], tmp_path: Path) -> None:
    page = Image.open(fetch("page.png")).convert("RGB")
    with TextReader(*reader) as read:
        found = read.read(page)
    words = [
        "Region-based segmentation",
        "Let us first determine markers of the coins and the",
        "background.These markers are pixels that we can label",
        "unambiguously as either object or background.Here,",
        "histogram of greyvalues:",
    ]
    assert [t.text for t in found] == words
    drawn = tmp_path / "drawn.png"
    rest = ("--then", reader[1], "--then", reader[2], "--overlay", drawn)
    told = command("run", reader[0], fetch("page.png"), *rest, folder=tmp_path)
    assert [r["text"] for r in told["results"][0]["found"]] == words
    assert drawn.is_file()


def test_text_is_segmented(bundle: Bundle, tmp_path: Path) -> None:
    """The same model as pixels instead of boxes: text is where the sign has its words."""
    changed = bundle("text-regions", fetch("ppocrv4-det.onnx"))
    with Segmenter(changed) as segmenter:
        found = segmenter.segment(fetch("scenetext01.jpg"))
    assert isinstance(found, Segmentation)
    assert found.mask.shape == Image.open(fetch("scenetext01.jpg")).size[::-1]
    for corners in SIGN.values():
        (left, top), (right, bottom) = np.min(corners, axis=0), np.max(corners, axis=0)
        inside = found.mask[top:bottom, left:right]
        assert inside.mean() > 0.3
        assert found.mask[(top + bottom) // 2, (left + right) // 2] == 1
    sign = found.mask[30:260, 265:440].sum()
    assert sign / found.mask.sum() > 0.7
    assert found.shares[1] < 0.1
    drawn = tmp_path / "drawn.png"
    told = command("run", changed, fetch("scenetext01.jpg"), "--overlay", drawn, folder=tmp_path)
    shares = told["results"][0]["found"][0]["shares"]
    assert shares == pytest.approx({"background": found.shares[0], "text": found.shares[1]})
    assert Image.open(drawn).size == found.mask.shape[::-1]


def test_a_person_is_segmented(bundle: Bundle, tmp_path: Path) -> None:
    """As MediaPipe's own net does on pixels of the same image."""
    made = bundle("selfie", fetch("selfie-segmentation.tflite"))
    photo = Image.open(fetch("astronaut.png")).convert("RGB")
    part = photo.crop((150, 0, 406, 256))
    with Segmenter(made) as segmenter:
        found = segmenter.segment(part)
        whole = segmenter.segment(photo)
    wanted = golden()["selfie-segmentation.tflite astronaut.png"][0] >= 0.5
    assert np.mean((thinned(found.mask) == 1) == wanted) > 0.999
    assert found.labels == ("background", "person")
    assert whole.mask.shape == (512, 512)
    assert whole.mask[100, 230] == whole.mask[400, 200] == 1
    assert whole.mask[30, 60] == whole.mask[60, 480] == 0
    assert whole.shares[1] == pytest.approx(0.545, abs=0.01)
    drawn = tmp_path / "drawn.png"
    told = command("run", made, fetch("astronaut.png"), "--overlay", drawn, folder=tmp_path)
    assert set(told["results"][0]["found"][0]["shares"]) == {"background", "person"}
    assert Image.open(drawn).size == photo.size


SPEECH = {
    "speech-librivox-0870.wav": [(0.322, 6.91)],
    "speech-librivox-0880.wav": [(0.226, 2.878)],
    "speech-cards-001.wav": [(0.194, 1.095375)],
    "speech-cards-005.wav": [(0.194, 3.326)],
}
"""Of get_speech_timestamps of silero-vad 6.2.3 on the same probabilities."""


@pytest.fixture(scope="module")
def voice(bundle: Bundle) -> Path:
    return bundle("silero-vad", fetch("silero-vad-openvino-16k.onnx"))


def test_speech_is_found_where_the_models_own_package_finds_it(voice: Path) -> None:
    with VoiceDetector(voice) as detector:
        for name, expected in SPEECH.items():
            found = detector.detect(fetch(name))
            np.testing.assert_allclose([(v.start, v.end) for v in found], expected, atol=1e-9)
        hiss = np.random.default_rng(0).normal(0, 0.1, 5 * RATE).astype(np.float32)
        tone = 0.3 * np.sin(np.arange(5 * RATE) * 2 * np.pi * 440 / RATE)
        assert detector.detect(hiss, RATE) == []
        assert detector.detect(tone, RATE) == []
        assert detector.detect(np.zeros(RATE, np.int16), RATE) == []


def test_speech_of_a_stream_with_pauses(voice: Path) -> None:
    parts = [soundfile.read(fetch(n), dtype="float32")[0] for n in list(SPEECH)[:2]]
    pause = np.zeros(RATE, np.float32)
    signal = np.concatenate([pause, parts[0], pause, parts[1], pause])
    with VoiceDetector(voice) as detector:
        whole = detector.detect(signal, RATE)
        stream = detector.stream()
        pieces = [v for p in np.array_split(signal, 333) for v in stream.feed(p)]
        pieces += stream.finish()
    assert pieces == whole
    assert len(whole) == 2
    seconds = [1 + 0.322, 1 + 6.91, 2 + len(parts[0]) / RATE + 0.226]
    np.testing.assert_allclose([whole[0].start, whole[0].end, whole[1].start], seconds, atol=0.15)


def test_a_wake_word_is_heard_in_its_own_clip_only(bundle: Bundle) -> None:
    first = [
        bundle("wake-mel", fetch("wake-melspectrogram.onnx")),
        bundle("wake-embedding", fetch("wake-embedding.onnx")),
    ]
    clips = [EXAMPLES / "pi_listen" / "alexa.wav", EXAMPLES / "pi_listen" / "hey_jarvis.wav"]
    with WordSpotter(*first, bundle("wake-alexa", fetch("wake-alexa.onnx"))) as spotter:
        (heard,) = spotter.spot(clips[0])
        assert heard.label == "alexa"
        assert 0.4 < heard.time < 1.1
        assert spotter.spot(clips[1]) == []
        for name in SPEECH:
            assert spotter.spot(fetch(name)) == []
        # In the middle of something else, as a stream.
        talk, _ = soundfile.read(fetch("speech-librivox-0880.wav"), dtype="float32")
        word, _ = soundfile.read(clips[0], dtype="float32")
        signal = np.concatenate([talk, np.zeros(RATE // 2, np.float32), word, talk])
        stream = spotter.stream()
        pieces = [w for p in np.array_split(signal, 200) for w in stream.feed(p)] + stream.finish()
        found = spotter.spot(signal, RATE)
        assert pieces == found
        assert len(found) == 1
        begin = (len(talk) + RATE // 2) / RATE
        assert begin < found[0].time < begin + 1.2


TUNE = (60, 62, 64, 65, 67, 69, 71, 72)
HEARD = [
    *((0.012, 0.987, 60, 0.682), (0.488, 1.498, 62, 0.641), (0.998, 1.161, 60, 0.439)),
    *((0.998, 1.486, 64, 0.731), (1.486, 2.486, 65, 0.62), (1.498, 1.66, 62, 0.432)),
    *((1.73, 1.927, 93, 0.376), (1.987, 3.171, 67, 0.611), (2.486, 2.672, 65, 0.43)),
    *((2.486, 3.496, 69, 0.652), (2.985, 3.496, 71, 0.74), (3.496, 3.682, 69, 0.422)),
    *((3.496, 3.693, 72, 0.723), (3.496, 4.147, 100, 0.393), (3.693, 4.182, 71, 0.585)),
    (4.182, 4.728, 72, 0.743),
]
"""Begin, end, key and strength of basic-pitch 0.4.0 for ``tune``; it takes windows to be 8.5 ms
longer than they are, which is the tolerance of times."""


def tune() -> Array:
    """A scale of plucked strings, one every half second."""
    rate = 22050
    time = np.arange(int(rate * 1.2)) / rate
    signal = np.zeros(6 * rate, np.float32)
    for number, midi in enumerate(TUNE):
        hertz = 440 * 2 ** ((midi - 69) / 12)
        tone = sum(np.sin(2 * np.pi * hertz * k * time) / k**1.5 for k in range(1, 6))
        begin = number * rate // 2
        part = (tone * np.exp(-1.5 * time)).astype(np.float32)
        signal[begin : begin + len(part)] += part
    found: Array = (0.6 * signal / np.abs(signal).max()).astype(np.float32)
    return found


def test_notes_are_those_of_the_models_own_package(bundle: Bundle) -> None:
    with PitchTranscriber(bundle("basic-pitch", fetch("basic-pitch.onnx"))) as pitch:
        found = pitch.transcribe(tune(), 22050)
    assert [n.midi for n in found] == [m for _, _, m, _ in HEARD]
    times = [(n.start, n.end) for n in found]
    np.testing.assert_allclose(times, [(a, b) for a, b, _, _ in HEARD], atol=0.0105)
    np.testing.assert_allclose([n.strength for n in found], [s for *_, s in HEARD], atol=1e-3)
    assert {*TUNE} < {n.midi for n in found}


def test_sentences_are_near_those_that_say_the_same(bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    torch = pytest.importorskip("torch")
    nets = pytest.importorskip("tests.zoo.nets")
    given = (EXAMPLES / "pipelines" / "minilm.toml").read_text()
    other = bundle("blazeface-front", fetch("blazeface-front.onnx"))
    # This export pools by itself.
    pooled = other.with_name("minilm-pooled.toml")
    pooled.write_text(given.replace('pooling = "mean"', 'pooling = "none"'))
    path = bundle("minilm-pooled", net(tmp_path, "minilm"))
    texts = ("A cat sits on the mat.", "A kitten is sitting on a rug.", "Stocks fell, sharply!")
    module, _, _ = nets.torch_model("minilm")
    with Embedder(path) as embedder:
        vectors = [embedder.embed(text) for text in texts]
    assert vectors[0].similarity(vectors[1]) > 0.5
    assert abs(vectors[0].similarity(vectors[2])) < 0.2
    for text, vector in zip(texts, vectors, strict=True):
        ids = torch.tensor([nets.wordpiece_ids(text)])
        with torch.no_grad():
            expected = module(ids, torch.ones_like(ids))[0].numpy()
        np.testing.assert_allclose(vector.vector, expected, atol=1e-5)


def test_results_are_the_same_on_another_engine(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = tmp_path / "faces.edge"
    described = parse_description(EXAMPLES / "pipelines" / "blazeface-front.toml")
    targets = ["onnxruntime", "openvino", "rpi5"]
    edgeinfer.export(fetch("blazeface-front.onnx"), path, targets=targets, description=described)
    found: list[Detection] = []
    for backend in ("onnxruntime", "openvino", "litert"):
        with Detector(path, backend=backend) as detector:
            found += detector.detect(fetch("astronaut.png"))
    assert len(found) == 3
    for other in found[1:]:
        np.testing.assert_allclose(other.box, found[0].box, atol=0.01)
        assert other.score == pytest.approx(found[0].score, abs=1e-4)


def test_a_demo_on_a_real_video(bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    path = bundle("blazeface-front", fetch("blazeface-front.onnx"))
    script = EXAMPLES / "jetson_streams" / "streams.py"
    sources = (fetch("vtest.avi"), fetch("astronaut.png"))
    done = subprocess.run(
        [sys.executable, script, path, *sources, "--frames", "30", "--save", "wall.jpg"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{sources[1]}: 1 objects" in done.stdout
    assert "all: 30 frames in " in done.stdout
    with Image.open(tmp_path / "wall.jpg") as wall:
        assert wall.size == (1280, 360)
