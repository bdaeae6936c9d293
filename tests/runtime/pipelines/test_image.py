"""Images to results, by bundles of tiny models."""

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import InputError, RunError, UsageError
from edgeinfer.heads import (
    Classify,
    Depth,
    DetectGrid,
    DetectRows,
    Embed,
    FindText,
    HearVoice,
    Prototypes,
    ReadText,
    Segment,
)
from edgeinfer.results import Classification, Detection, Embedding, Segmentation, Text, as_json
from edgeinfer.tasks import (
    Classifier,
    DepthEstimator,
    Detector,
    Embedder,
    Segmenter,
    TextReader,
    VoiceDetector,
)
from edgeinfer.types import Array, ConstantInput, ImageInput
from tests.runtime.pipelines.conftest import MakeBundle

pytest.importorskip("PIL")

COLOURS = """
colours (float[N, 3, 4, 4] image) => (float[N, 3] scores)
{ scores = ReduceMean <axes = [2, 3], keepdims = 0> (image) }
"""
SIZED = ImageInput(4, 4)
RED = np.zeros((8, 12, 3), np.uint8)
RED[..., 0] = 255


@pytest.fixture
def colours(make: MakeBundle) -> Path:
    said = {"preprocessing": {"image": SIZED}, "labels": ("red", "green", "blue")}
    return make("colours", COLOURS, head=Classify(top=2, threshold=0.5), **said)


def test_classes(colours: Path) -> None:
    with edgeinfer.pipeline(colours, threads=1) as named:
        assert named(RED) == [Classification(0, "red", 1.0)]
        assert named(np.full((5, 5, 3), 255, np.uint8)) == [
            Classification(0, "red", 1.0),
            Classification(1, "green", 1.0),
        ]
        assert named(np.zeros((5, 5, 3), np.uint8)) == []
    with Classifier(colours, threads=1) as classifier:
        assert classifier.classify(RED)[0].label == "red"


def test_a_file_and_an_array_are_the_same(colours: Path, tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(RED).save(tmp_path / "red.png")
    with Classifier(colours) as classifier:
        assert classifier.classify(tmp_path / "red.png") == classifier.classify(RED)
        assert classifier.classify(str(tmp_path / "red.png")) == classifier.classify(RED)
        with pytest.raises(UsageError, match="no such file"):
            classifier.classify(tmp_path / "none.png")
        with pytest.raises(InputError, match="expected a path, a Pillow image or uint8"):
            classifier.classify(RED.astype(np.float32))
        (tmp_path / "x.wav").write_bytes(b"RIFF....WAVEfmt ")
        message = r"that Pillow can read \(PNG, JPEG, .*\), received a file of another kind"
        with pytest.raises(InputError, match=message):
            classifier.classify(tmp_path / "x.wav")


BOXES = """
boxes (float[1, 3, 8, 8] image, float[1] bias) => (float[1, 1, 5] found)
<float[1, 1, 4] box = {4.0, 6.0, 2.0, 4.0}>
{
    score = ReduceMax <keepdims = 0> (image)
    shape = Constant <value_ints = [1, 1, 1]> ()
    moved = Add(score, bias)
    column = Reshape(moved, shape)
    found = Concat <axis = 2> (box, column)
}
"""


def test_boxes_are_in_pixels_of_the_source(make: MakeBundle) -> None:
    record = ImageInput(8, 8, resize="letterbox", pad=0)
    records = {"image": record, "bias": ConstantInput((-0.5,))}
    path = make("boxes", BOXES, head=DetectGrid(), preprocessing=records, labels=("spot",))
    with Detector(path) as detector:
        # 32 x 16 becomes 8 x 4 with two rows of nothing above: y = (6 - 2) * 4.
        (found,) = detector.detect(np.full((16, 32, 3), 255, np.uint8))
        assert found == Detection((12.0, 8.0, 20.0, 24.0), 0.5, 0, "spot")
        assert detector.detect(np.zeros((16, 32, 3), np.uint8)) == []


ROWS = """
rows (float[1, 3, 8, 8] image) => (float[1, 2, 9] rows, float[1, 3, 8, 8] weighed)
<float[1, 2, 9] rows_of = {0.0, 0.0, 8.0, 8.0, 0.9, 1.0, 1.0, 0.0, -1.0,
                           2.0, 2.0, 6.0, 6.0, 0.2, 0.0, 1.0, 1.0, 1.0}>
{
    weighed = Identity(image)
    rows = Identity(rows_of)
}
"""


def test_masks_of_objects(make: MakeBundle) -> None:
    head = DetectRows("rows", extra=Prototypes("weighed"))
    records = {"image": ImageInput(8, 8, resize="letterbox", pad=0)}
    path = make("rows", ROWS, head=head, preprocessing=records, labels=("no", "red"))
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:, :16] = (255, 0, 0)
    picture[:, 16:] = (0, 0, 255)
    with Detector(path) as detector:
        (found,) = detector.detect(picture)
    assert (found.label, found.box) == ("red", (0.0, -8.0, 32.0, 24.0))
    assert found.mask is not None
    np.testing.assert_array_equal(found.mask.whole(32, 16), picture[..., 0] > 0)
    told = as_json(found)["mask"]
    assert sum(told["runs"]) == told["size"][0] * told["size"][1]
    assert sum(told["runs"][1::2]) == 16 * 16


GREY = """
grey (float[1, 3, 4, 4] image) => (float[1, 4, 4] y)
{ y = ReduceMean <axes = [1], keepdims = 0> (image) }
"""


def test_depth(make: MakeBundle) -> None:
    path = make("grey", GREY, head=Depth(nearer="smaller"), preprocessing={"image": SIZED})
    picture = RED.copy()
    picture[:, 6:] = 255
    with DepthEstimator(path) as estimator:
        found = estimator.estimate(picture)
    assert found.values.shape == (8, 12)
    np.testing.assert_allclose(found.values[:, [0, 11]], [[1 / 3, 1.0]] * 8, atol=0.03)
    assert not found.nearer_is_larger
    told = as_json(found)
    assert (told["kind"], told["size"], told["nearer_is_larger"]) == ("depth", [12, 8], False)


def test_masks(make: MakeBundle) -> None:
    graph = "same (float[1, 3, 4, 4] image) => (float[1, 3, 4, 4] y) { y = Identity(image) }"
    labels = ("red", "green", "blue")
    path = make("same", graph, head=Segment(), preprocessing={"image": SIZED}, labels=labels)
    picture = RED.copy()
    picture[:, 6:] = (0, 0, 255)
    with Segmenter(path) as segmenter:
        found = segmenter.segment(picture)
    assert isinstance(found, Segmentation)
    assert found.mask.shape == (8, 12)
    assert (found.mask[:, :6] == 0).all()
    assert (found.mask[:, 6:] == 2).all()
    assert found.shares == {0: 0.5, 2: 0.5}


def test_vectors(make: MakeBundle) -> None:
    path = make("colours", COLOURS, head=Embed(), preprocessing={"image": SIZED})
    with Embedder(path) as embedder:
        red, grey = embedder.embed(RED), embedder.embed(np.full((3, 3, 3), 200, np.uint8))
    assert isinstance(red, Embedding)
    np.testing.assert_allclose(red.vector, [1, 0, 0])
    assert red.similarity(grey) == pytest.approx(3**-0.5)


FIND = "find (float[1, 1, H, W] x) => (float[1, 1, H, W] y) { y = Identity(x) }"
READ = """
read (float[1, 1, 4, W] x) => (float[1, W, 3] y)
<float one = {1.0}>
{
    mean = ReduceMean <axes = [2], keepdims = 0> (x)
    ink = Transpose <perm = [0, 2, 1]> (mean)
    paper = Sub(one, ink)
    half = Mul(ink, paper)
    y = Concat <axis = 2> (paper, ink, half)
}
"""
TURN = """
turn (float[1, 1, 4, 16] x) => (float[1, 2] y)
<int64[1] zero = {0}, int64[1] half = {8}, int64[1] end = {16}, int64[1] axis = {3}>
{
    left = Slice(x, zero, half, axis)
    right = Slice(x, half, end, axis)
    a = ReduceMean <axes = [1, 2, 3], keepdims = 1> (left)
    b = ReduceMean <axes = [1, 2, 3], keepdims = 1> (right)
    both = Concat <axis = 1> (a, b)
    shape = Constant <value_ints = [1, 2]> ()
    y = Reshape(both, shape)
}
"""
LINE = ImageInput(16, 4, resize="line", color="GRAY", pad=0)


def readers(make: MakeBundle) -> list[Path]:
    """A finder of white on black, a reader that says x where it is bright, and a turner."""
    grey = {"x": ImageInput(None, None, color="GRAY")}
    read = make(
        "read", READ, {"c.txt": b"x\ny\n"}, head=ReadText("c.txt"), preprocessing={"x": LINE}
    )
    turn = {"preprocessing": {"x": LINE}, "labels": ("0", "180")}
    return [
        make("find", FIND, head=FindText(unclip=0.1), preprocessing=grey),
        read,
        make("turn", TURN, head=Classify(threshold=0.4), **turn),
    ]


def page() -> Array:
    picture = np.zeros((60, 100, 3), np.uint8)
    picture[10:20, 10:50] = 255  # bright on its left half
    picture[40:50, 20:80] = 120
    picture[40:50, 20:80:2] = 255
    return picture


def test_lines_are_found_and_read(make: MakeBundle) -> None:
    find, read, turn = readers(make)
    for bundles in ((find, read), (read, find), (turn, read, find)):
        with TextReader(*bundles) as reader:
            found = reader.read(page())
        assert [t.text for t in found] == ["x", "x"]
        (left, top), *_ = found[0].corners
        assert (round(left), round(top)) == (10, 10)


def test_an_upside_down_line_is_turned(make: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.runtime.pipelines import LinesPipeline

    opened = edgeinfer.pipeline(*readers(make))
    assert isinstance(opened, LinesPipeline)
    seen: list[Array] = []
    inner = opened._read

    def read(line: Array) -> list[Text]:
        seen.append(line)
        return [Text("x", 1.0)]

    monkeypatch.setattr(opened, "_read", read)
    line = np.zeros((10, 40, 3), np.uint8)
    line[:, 30:] = 255  # the right half is brighter
    opened._text(line)
    assert seen[0][:, :10].min() == 255
    opened._text(np.rot90(line))
    assert seen[1].shape == (10, 40, 3)
    monkeypatch.setattr(opened, "_read", inner)
    opened.close()


def test_bundles_that_do_not_fit(make: MakeBundle, colours: Path) -> None:
    find, read, turn = readers(make)
    for bundles in ((find, colours), (find, read, turn, turn), (find, find), (read, turn)):
        with pytest.raises(UsageError, match="do not work together; expected one of kind"):
            edgeinfer.pipeline(*bundles)
    with pytest.raises(UsageError, match="no bundle given"):
        edgeinfer.pipeline()
    with pytest.raises(UsageError, match="takes an image and gives 'classify'; not for detecting"):
        Detector(colours)
    with pytest.raises(UsageError, match="not for detecting voice activity"):
        VoiceDetector(colours)
    with pytest.raises(UsageError, match="not for reading text"):
        TextReader(read)


def test_bundles_that_say_too_little(make: MakeBundle) -> None:
    silent = make("silent", COLOURS, preprocessing={"image": SIZED})
    with pytest.raises(UsageError, match="does not say what its outputs mean; convert the model"):
        edgeinfer.pipeline(silent)
    plain = make("plain", COLOURS, head=Classify())
    with pytest.raises(UsageError, match="no record says what input 'image' takes"):
        edgeinfer.pipeline(plain)
    voice = make("voice", COLOURS, head=HearVoice(), preprocessing={"image": SIZED})
    with pytest.raises(UsageError, match="'voice' is not read from one image"):
        edgeinfer.pipeline(voice)


def test_a_head_that_does_not_fit_the_outputs(make: MakeBundle) -> None:
    path = make("grid", COLOURS, head=DetectGrid(), preprocessing={"image": SIZED})
    with (
        edgeinfer.pipeline(path) as opened,
        pytest.raises(RunError, match="expected over 4 numbers"),
    ):
        opened(RED)


def test_constants_must_fit(make: MakeBundle) -> None:
    records = {"image": ImageInput(8, 8), "bias": ConstantInput((1.0, 2.0))}
    path = make("boxes", BOXES, head=DetectGrid(), preprocessing=records)
    with pytest.raises(UsageError, match="expected 1 or 1 values, got 2"):
        edgeinfer.pipeline(path)
