"""Pictures become what transformers' processors make of them, and stand where prompts say."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import BundleError, InputError
from edgeinfer.llm.vision import VisionInput
from edgeinfer.media.image import open_image
from edgeinfer.runtime.llm.chat import ChatTemplate
from edgeinfer.runtime.llm.images import (
    ImagePrompt,
    ImageReader,
    LocalImage,
    from_address,
    separated,
)
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.types import Array
from tests.runtime.llm.seeing import IMAGE, ROWS, ColourTower, coloured, seeing
from tests.runtime.llm.test_llm import model

HALF = (0.5, 0.5, 0.5)
TILES = VisionInput(7, "<image>", 4, 32, "tiles", 64, "lanczos", 1 / 255, HALF, HALF)
CROP = replace(TILES, resize="crop", pixels=40, filter="bicubic")
RNG = np.random.default_rng(0)
SIZES = [(50, 90), (90, 50), (64, 64), (32, 32), (20, 21), (200, 10), (33, 640), (7, 500)]
"""Heights and widths."""


class Tower:
    """Gives the mean of each tile's channels, and counts."""

    def __init__(self) -> None:
        self.runs = 0
        self.is_closed = False

    def __call__(self, tile: Array) -> Array:
        assert tile.shape == (1, 3, 32, 32)
        assert not self.is_closed
        self.runs += 1
        return np.broadcast_to(tile.mean(axis=(2, 3))[:, None], (1, 4, 3))

    def close(self) -> None:
        self.is_closed = True


def reader(about: VisionInput = TILES) -> tuple[ImageReader, list[Tower]]:
    opened: list[Tower] = []

    def open_tower() -> Any:
        opened.append(Tower())
        return opened[-1]

    return ImageReader(about, open_tower), opened


def encode(text: str) -> list[int]:
    """Tokens: 7 for an image's, else a letter each."""
    first, *rest = text.split("<image>")
    tokens = list(first.encode())
    for part in rest:
        tokens += [7, *part.encode()]
    return tokens


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pillow take width before height, as all versions before 13.0 did, and ours does."""
    image = pytest.importorskip("PIL.Image")
    resize = image.Image.resize

    def in_order(self: Any, size: tuple[int, int], resample: int | None = None, **_: Any) -> Any:
        return resize(resize(self, (size[0], self.height), resample), size, resample)

    monkeypatch.setattr(image.Image, "resize", in_order)


def processors() -> Iterator[tuple[str, VisionInput, Any]]:
    """Processors of transformers next to what we make of their parameters."""
    pytest.importorskip("transformers")
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    tiles: dict[str, Any] = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    tiles |= {"return_row_col_info": True}
    crop = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
    yield "smolvlm", TILES, SmolVLMImageProcessorPil(**tiles)
    three = {**tiles, "size": {"longest_edge": 96}}
    yield "idefics3", replace(TILES, pixels=96), Idefics3ImageProcessorPil(**three)
    whole = replace(TILES, resize="whole")
    yield "whole", whole, Idefics3ImageProcessorPil(**tiles, do_image_splitting=False)
    given = LlavaImageProcessorPil(**crop)
    clip = replace(CROP, mean=tuple(given.image_mean), std=tuple(given.image_std))
    yield "llava", clip, given
    square = SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=3)
    yield "siglip", replace(CROP, resize="stretch", pixels=32), square


@pytest.mark.usefixtures("steady")
def test_tiles_are_those_of_transformers() -> None:
    for name, about, processor in processors():
        ours, _ = reader(about)
        for height, width in SIZES:
            picture = RNG.integers(0, 256, (height, width, 3), np.uint8)
            theirs = processor(images=picture, return_tensors="np")
            found = ours.tiled(picture)
            expected = theirs["pixel_values"].reshape(-1, 3, 32, 32)
            where = f"{name} {height} x {width}"
            np.testing.assert_allclose(found.tiles, expected, rtol=0, atol=2e-6, err_msg=where)


def test_texts_of_pictures_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    words = {
        "fake_token_around_image": "<fake_token_around_image>",
        "image_token": "<image>",
        "global_image_token": "<global-img>",
    }
    for rows, columns in ((0, 0), (1, 2), (3, 2)):
        assert TILES.text(rows, columns) == get_image_prompt_string(rows, columns, 4, **words)
    assert CROP.text(0, 0) == "<image>" * 4


def test_images_stand_where_the_prompt_has_them() -> None:
    ours, opened = reader(CROP)
    black, white = np.zeros((40, 40, 3), np.uint8), np.full((50, 40, 3), 255, np.uint8)
    read = ours.read(ImagePrompt("a<image>b<image>", [black, white]), encode, 100)
    assert read.tokens == [97, 7, 7, 7, 7, 98, 7, 7, 7, 7]
    assert read.positions == (1, 2, 3, 4, 6, 7, 8, 9)
    assert read.embeddings is not None
    expected = np.repeat([[-1.0] * 3, [1.0] * 3], 4, axis=0)
    np.testing.assert_array_equal(read.embeddings, expected)
    # Without a place they come first.
    assert ours.read(ImagePrompt("ab", [black]), encode, 100).positions == (0, 1, 2, 3)
    (tower,) = opened
    assert tower.runs == 2, "an image that was seen is not looked at again"
    ours.close()
    ours.read(ImagePrompt("<image>", [black[:, ::-1]]), encode, 100)
    ours.read(ImagePrompt("<image>", [black + np.uint8(1)]), encode, 100)
    assert tower.is_closed
    assert [t.runs for t in opened] == [2, 1]


@pytest.mark.parametrize(
    ("text", "count", "most", "message"),
    [
        ("<image>", 2, 100, "'images': expected one for each <image> of the prompt, 1, received 2"),
        ("<image> <image>", 1, 100, "of the prompt, 2, received 1"),
        ("<image>" * 30, 30, 100, "'images': expected less than 100 tokens, received 100 or more"),
        (
            "\x07<image>",
            1,
            100,
            "'prompt': expected 4 tokens <image>, of images alone, received 5",
        ),
    ],
)
def test_prompts_that_do_not_fit_their_pictures_are_refused(
    text: str, count: int, most: int, message: str
) -> None:
    ours, opened = reader(CROP)
    pictures = [np.full((40, 40, 3), i, np.uint8) for i in range(count)]
    with pytest.raises(InputError, match=message):
        ours.read(ImagePrompt(text, pictures), encode, most)
    assert sum(tower.runs for tower in opened) < 30


def test_of_a_picture_with_too_many_tiles_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(*_: Any) -> Any:
        raise AssertionError("a tile was made")

    monkeypatch.setattr("edgeinfer.runtime.llm.images.prepare", prepared)
    ours, _ = reader()
    prompt = ImagePrompt("", [np.zeros((64, 64, 3), np.uint8)])
    with pytest.raises(InputError, match="expected less than 20 tokens, received 20 or more"):
        ours.read(prompt, encode, 20)


def test_who_left_is_asked_for_before_each_tile() -> None:
    class LeftError(Exception):
        pass

    def go_on() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise LeftError

    ours, opened = reader()
    calls: list[int] = []
    with pytest.raises(LeftError):
        ours.read(ImagePrompt("", [np.zeros((64, 64, 3), np.uint8)]), encode, 100, go_on=go_on)
    # It is still being cut into its five tiles.
    assert not opened


@pytest.mark.parametrize(("side", "pixels"), [(32, 64), (33, 33), (7, 36), (32, 32), (31, 63)])
def test_no_picture_has_more_tiles_than_its_record_says(side: int, pixels: int) -> None:
    about = replace(TILES, side=side, pixels=pixels)
    ours = ImageReader(about, lambda: None)  # type: ignore[arg-type, return-value]
    counts = [len(ours.tiled(np.zeros((*size, 3), np.uint8)).tiles) for size in SIZES]
    assert max(counts) == about.most_tiles


def test_a_thin_picture_is_refused_before_it_grows() -> None:
    ours, _ = reader(CROP)
    with pytest.raises(InputError, match="longer side would have 40000"):
        ours.tiled(np.zeros((2, 2000, 3), np.uint8))
    assert len(reader()[0].tiled(np.zeros((1, 3000, 3), np.uint8)).tiles) == 3
    # Across first, where it is still as high as it was.
    lines, tall = 1 << 17, np.zeros((1 << 17, 1, 3), np.uint8)
    for way in ("stretch", "whole", "crop", "tiles"):
        about = replace(TILES, resize=way, side=336, pixels=336, rows=1)
        if way in ("stretch", "crop"):
            with pytest.raises(InputError, match=f"make 336 by {lines}|at most 32768 pixels"):
                reader(about)[0].tiled(tall)
        else:
            assert reader(about)[0].tiled(tall).tiles.shape[1:] == (3, 336, 336)


def png(array: Array) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def test_images_are_taken_out_of_conversations() -> None:
    data = png(np.zeros((4, 4, 3), np.uint8))
    address = "data:image/png;base64," + base64.b64encode(data).decode()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "image", "image": data},
                {"type": "text", "text": "and"},
                {"type": "image_url", "image_url": {"url": address}},
                {"type": "image", "image": LocalImage("cat.jpg")},
            ],
        },
    ]
    made, pictures = separated(messages)
    assert pictures == [data, data, LocalImage("cat.jpg")]
    assert made[0] == messages[0]
    text = {"type": "text", "text": "and"}
    assert made[1]["content"] == [{"type": "image"}, text, {"type": "image"}, {"type": "image"}]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": "https://a/b.png"}, "no address is fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "no address is fetch"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "no address is fetch"),
        ({"type": "image_url", "image_url": "data:image/png;base64,???"}, "an image in base64"),
        ({"type": "image_url"}, "no address is fetched"),
        ({"type": "image", "url": "x"}, 'an image as "image"'),
        ({"type": "image", "path": "/etc/passwd"}, 'an image as "image"'),
        ({"type": "image", "image": "/etc/passwd"}, "a text names no file here"),
        ({"type": "image", "image": Path("/etc/passwd")}, "a text names no file here"),
    ],
)
def test_parts_that_are_no_picture_say_where(part: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=r"messages\[0\]\.content\[1\]': ") as caught:
        separated([{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert message in str(caught.value)
    with pytest.raises(InputError):
        from_address(None, "x")


def test_a_path_is_read_of_a_local_picture_alone(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(coloured(9)))
    opened: list[Any] = []

    def look(given: Any) -> Any:
        opened.append(given)
        return open_image(given)

    monkeypatch.setattr("edgeinfer.runtime.llm.images.open_image", look)
    for given in (str(path), path):
        with pytest.raises(InputError, match="a text names no file here"):
            llm.request(ImagePrompt("<image>", [given]), SHORT)
        for part in ({"image": given}, {"path": given}, {"image": {"path": given}}):
            messages = [{"role": "user", "content": [{"type": "image", **part}]}]
            with pytest.raises(InputError):
                llm.chat_request(messages, SHORT)
    assert not any(isinstance(each, str | Path) for each in opened)
    for local in (LocalImage(path), LocalImage(str(path))):
        found = llm.request(ImagePrompt("<image>", [local]), SHORT)
        right = llm.request(ImagePrompt("<image>", [path.read_bytes()]), SHORT)
        assert found.prompt == right.prompt
        content = [{"type": "image", "image": local}]
        assert llm.chat_request([{"role": "user", "content": content}], SHORT).embedded


PARTS = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
STRINGS = "{% for m in messages %}{{ m['content'] }};{% endfor %}"
BEGINS = (
    "{% for m in messages %}{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% elif c['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}"
)
"""It looks at the first part, as SmolVLM's does."""
FIRST = (
    "{% for m in messages %}{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}"
    "<image>\n{% endfor %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ c['text'] + ' ' }}{% endfor %}{% endfor %}"
)
"""It shows images first, as LLaVA's does, and nothing of a text."""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PARTS, ("hi", "<image>what?")),
        (STRINGS, ("hi;", "<image>what?;")),
        (BEGINS, (": hi", ":<image>what?")),
        (FIRST, ("hi ", "<image>\nwhat? ")),
    ],
)
def test_contents_get_the_form_that_a_template_shows(
    template: str, expected: tuple[str, str]
) -> None:
    pytest.importorskip("jinja2")
    made, (ours, _) = ChatTemplate(template, {}), reader()
    plain = [{"role": "user", "content": "hi"}]
    seen = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    shown = [made.render(ours.fitted(made, m, m is seen)) for m in (plain, seen)]
    assert tuple(shown) == expected


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace('"side": 32', '"side": 0'), "side: received 0"),
        (lambda t: t.replace('"pixels": 64', '"pixels": 5000'), "pixels: received 5000"),
        (lambda t: t.replace("tiles", "magic"), "resize"),
        (lambda t: t.replace('"<image>"', f'"{"x" * 257}"'), "place: received x{60}$"),
        (lambda t: t.replace("32", "2"), "up to 1025 tiles, at most 1024 are taken"),
        (lambda t: t.replace("64", "4096").replace("32", "2049"), "up to 20992005 pixels in tiles"),
        (lambda t: t.replace('"rows": 4', '"rows": 16384'), "up to 81920 tokens, at most 65536"),
        (lambda t: t[:40], "images.json"),
    ],
)
def test_a_damaged_record_is_refused(edit: Callable[[str], str], message: str) -> None:
    text = TILES.to_json()
    assert VisionInput.from_json(text) == TILES
    with pytest.raises(BundleError, match=message):
        VisionInput.from_json(edit(text))


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    for library in ("tokenizers", "jinja2"):
        pytest.importorskip(library)
    monkeypatch.setattr(LLM, "_open", lambda *_: seeing())
    with LLM("tiny.edge") as made:
        yield made


SHORT = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def test_texts_follow_from_pictures_and_share_what_they_have_in_common(llm: LLM) -> None:
    black, white = coloured(0), coloured(255)
    before = "the cat sat on the mat and the dog saw it. " * 2
    prompts = [ImagePrompt(f"{before}<image> what?", [p]) for p in (black, white)]
    one, other = llm.generate(prompts, SHORT)
    assert one.prompt == other.prompt
    assert one.outputs[0].tokens != other.outputs[0].tokens
    start = one.prompt.index(IMAGE)
    usage = other.outputs[0].usage
    assert usage.cached_tokens == start // 16 * 16, "text before an image is everybody's"
    again = llm.generate(ImagePrompt(f"{before}<image> what?", [white.copy()]), SHORT)[0]
    assert again.outputs[0].tokens == other.outputs[0].tokens
    assert again.outputs[0].usage.cached_tokens == (len(one.prompt) - 1) // 16 * 16
    # The same tokens without an image are another prompt.
    plain = llm.generate(list(one.prompt), SHORT)[0]
    assert plain.outputs[0].usage.cached_tokens == start // 16 * 16


def test_a_conversation_shows_pictures(llm: LLM) -> None:
    content = [{"type": "image", "image": coloured(9)}, {"type": "text", "text": "what?"}]
    request = llm.chat_request([{"role": "user", "content": content}], SHORT)
    tokens = llm.model.tokenizer
    text = tokens.decode(request.prompt, skip_special=False)
    assert text == (f"<|start|>user\n{'<image>' * ROWS}what?<|im_end|>\n<|start|>assistant\n")
    assert request.embeddings is not None
    assert request.embeddings.shape == (ROWS, 24)
    plain = llm.chat_request([{"role": "user", "content": "what?"}], SHORT)
    assert plain.embeddings is None
    with pytest.raises(InputError, match="expected texts or lists of tokens, received images"):
        llm.embed(ImagePrompt("a", [coloured(0)]))
    image = {"type": "image", "image": coloured(9)}
    for odd in ("x", {"role": "user", "content": [image, "x"]}, {"role": "user", "content": [{}]}):
        with pytest.raises(InputError, match=r"messages\[0\]"):
            llm.chat([odd])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"content\[1\]': expected a part of type text or image"):
        llm.chat([{"role": "user", "content": [image, {"type": "video", "path": "a.mp4"}]}])
    before, closed = ColourTower.runs, ColourTower.closed
    llm.sleep()
    assert ColourTower.closed == closed + 1
    llm.chat([{"role": "user", "content": content}], SHORT)
    assert ColourTower.runs == before, "what an image gave is kept"


def test_a_model_of_text_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model())
    with LLM("tiny.edge") as llm:
        message = "'images': expected none, received some; tiny is a model that reads text alone"
        with pytest.raises(InputError, match=message):
            llm.generate(ImagePrompt("a", [coloured(0)]), SHORT)
        with pytest.raises(InputError, match=message):
            llm.chat([{"role": "user", "content": [{"type": "image", "image": coloured(0)}]}])
