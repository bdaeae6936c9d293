"""The page at ``/``: what browsers are told, and what people see, with Debian's Chromium."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.heads import DetectBoxes, Embed, HearVoice, Speak
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.pipelines.audio import AudioPipeline
from edgeinfer.runtime.pipelines.image import ImagePipeline
from edgeinfer.runtime.pipelines.lines import LinesPipeline
from edgeinfer.runtime.pipelines.sentence import SentencePipeline
from edgeinfer.runtime.pipelines.speech import SpeechPipeline
from edgeinfer.runtime.pipelines.voice import VoicePipeline
from edgeinfer.types import AudioInput, ImageInput, TextInput
from release import page as release
from tests.runtime.conftest import Fakes
from tests.runtime.llm.test_llm import model as tiny_model
from tests.runtime.pipelines import test_voice
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.pipelines.test_sentence import COUNT, PIECES
from tests.runtime.serve.conftest import KEY, Server, Start, Starter, held_as, text_bundle
from tests.runtime.serve.test_tasks import LOUD, RED

FILES = ("/", "/page.js", "/page.css", "/licences.txt")
BOXES = """
finder (float[N, 3, 4, 4] image) => (float[1, 4] boxes, float[1] scores)
<float[1, 4] box = {1, 1, 3, 3}, int64[1] first = {0}, int64[1] second = {1}, int64[1] axis = {1}>
{
    boxes = Identity (box)
    red = Slice (image, first, second, axis)
    whole = ReduceMean <keepdims = 0> (red)
    scores = Unsqueeze (whole, first)
}
"""


def test_it_is_small_and_made_from_its_sources() -> None:
    static = files("edgeinfer.runtime.serve") / "static"
    parts = [static.joinpath(name).read_bytes() for name in ("page.js", "page.css")]
    for part in parts:
        assert part.startswith(b"/*! made from " + release.source_hash().encode())
    assert sum(map(len, parts)) <= release.LARGEST
    assert sum(len(gzip.compress(part)) for part in parts) <= 40_000
    licences = static.joinpath("licences.txt").read_text("utf-8")
    for name in release.PARTS:
        assert f"\n{name} " in licences
    assert "MIT" in licences
    assert "Apache License" in licences


def test_it_has_a_form_for_whatever_a_pipeline_takes() -> None:
    script = (files("edgeinfer.runtime.serve") / "static" / "page.js").read_text("utf-8")
    kinds = (
        *(AudioPipeline, ImagePipeline, LinesPipeline),
        *(SentencePipeline, SpeechPipeline, VoicePipeline),
    )
    for takes in {kind.takes for kind in kinds}:
        assert f'case"{takes}":' in script, takes


def test_browsers_may_load_and_run_nothing_else(start: Start) -> None:
    server = start()
    for path in FILES:
        found = server.client.get(path)
        assert found.status_code == 200
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
    page = server.client.get("/").text
    assert "<script>" not in page
    assert "style=" not in page
    assert server.client.post("/").status_code == 404


def test_it_is_behind_the_same_keys(start: Start) -> None:
    server = start(keys=(KEY,))
    for path in FILES:
        refused = server.client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert server.client.get(path, auth=("", KEY)).status_code == 200
        assert server.client.get(path, auth=(KEY, "another-key-of-mine")).status_code == 401
    # No password is required of clients of the APIs.
    assert "www-authenticate" not in server.client.get("/v1/models").headers
    assert server.client.get("/v1/models", auth=("me", KEY)).status_code == 200
    for wrong in ("Basic", "Basic %%%", "Basic bm9uZQ=="):
        given = server.client.get("/", headers={"authorization": wrong})
        assert given.status_code == 401


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("tokenizers")
    folder: Path = tmp_path_factory.mktemp("models")
    ids = {
        "ids": TextInput("vocab.txt", 6, pad=True),
        "mask": TextInput("vocab.txt", 6, field="mask", pad=True),
    }
    told: dict[str, Any] = {"preprocessing": {"image": ImageInput(4, 4)}, "labels": ("apple",)}
    bundles = [
        write_graph(folder, "net", "net (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }"),
        write_graph(folder, "finder", BOXES, head=DetectBoxes("boxes", "scores"), **told),
        write_graph(
            *(folder, "vectors", COUNT, {"vocab.txt": PIECES}),
            head=Embed(pooling="mean", normalize=False),
            preprocessing=ids,
        ),
        write_graph(
            *(folder, "loud", LOUD),
            head=HearVoice(),
            preprocessing={"sound": AudioInput(16000, 160, 160)},
        ),
        write_graph(
            *(folder, "voice", test_voice.TENTHS, test_voice.TABLE),
            head=Speak(8000),
            preprocessing={"ids": test_voice.IDS},
        ),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLM, "_open", held_as(tiny_model))
        start = Starter(tmp_path_factory.mktemp("served"), Fakes())
        try:
            chat = f"chat={text_bundle(folder / 'chat.edge')}"
            yield start(*map(str, bundles), chat, only=True, keys=(KEY,))
        finally:
            start.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium, a package of Debian, is not installed")
    with sync_api.sync_playwright() as playwright:
        # A microphone that gives a tone a second, and nobody who has to be requested it.
        fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *fake])
        yield made
        made.close()


class View:
    """A page that is open, and what it did that it may not."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        given = {"username": "", "password": KEY}
        self.context = browser.new_context(http_credentials=given, **options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.page.on(
            "request",
            lambda r: (
                None
                if r.url.startswith((server.url, "data:", "blob:"))
                else self.wrong.append(r.url)
            ),
        )
        self.page.goto(server.url)
        self.page.get_by_role("button", name="Try finder").wait_for()

    def pick(self, name: str) -> None:
        self.page.get_by_label("Model", exact=True).select_option(name)


@pytest.fixture
def view(browser: Any, all_kinds: Server) -> Iterator[View]:
    made = View(browser, all_kinds)
    yield made
    assert made.wrong == []
    made.context.close()


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.slow
def test_models_are_listed_with_what_they_take(view: View) -> None:
    rows = view.page.locator("#models-title ~ .scroll tbody tr")
    texts = [" ".join(row.split()) for row in rows.all_inner_texts()]
    times = "\N{MULTIPLICATION SIGN}"
    tensors = [f"tensors {name}: FP32 any {times} 3" for name in "xy"]
    assert texts[0] == f"net ready {' '.join(tensors)} Try"
    assert [text.split()[0] for text in texts] == [
        "net",
        "finder",
        "vectors",
        "loud",
        "voice",
        "chat",
    ]
    assert "a conversation" in texts[5]


@pytest.mark.slow
def test_tensors_run(view: View) -> None:
    view.pick("net")
    box = view.page.get_by_label("Request, as the Open Inference Protocol has it")
    box.fill(box.input_value().replace('"data": 0', '"data": 2.5'))
    view.page.get_by_role("button", name="Run").click()
    answer = view.page.get_by_label("Answer").inner_text()
    assert json.loads(answer)["outputs"][0]["data"] == [5, 5, 5]
    box.fill('{"inputs": []}')
    view.page.get_by_role("button", name="Run").click()
    view.page.get_by_role("alert").get_by_text("400").wait_for()
    # The browser itself notes answers that are errors.
    assert all("400" in each for each in view.wrong)
    view.wrong.clear()


@pytest.mark.slow
def test_boxes_are_drawn_on_an_image(view: View) -> None:
    view.pick("finder")
    view.page.get_by_label("Choose an image").set_input_files(
        {"name": "red.png", "mimeType": "image/png", "buffer": RED}
    )
    view.page.get_by_role("button", name="Run").click()
    drawn = view.page.get_by_alt_text("The image with what was found")
    drawn.wait_for()
    size = drawn.evaluate(
        "async e => { await e.decode(); return [e.naturalWidth, e.naturalHeight] }"
    )
    assert size == [12, 8]
    row = view.page.get_by_label("What was found").locator("tbody tr").inner_text()
    assert row.split("\t") == ["apple", "1.000", "3, 2, 9, 6"]


@pytest.mark.slow
def test_texts_and_recordings_run(view: View) -> None:
    soundfile = pytest.importorskip("soundfile")
    view.pick("vectors")
    view.page.get_by_label("Text", exact=True).fill("the cat")
    view.page.get_by_role("button", name="Run").click()
    assert "vector" in view.page.get_by_label("Answer").inner_text()
    view.pick("loud")
    out = io.BytesIO()
    sound = np.concatenate([np.zeros(8000), np.full(8000, 0.9), np.zeros(8000)])
    soundfile.write(out, sound, 16000, format="WAV")
    view.page.get_by_label("Choose a recording").set_input_files(
        {"name": "a.wav", "mimeType": "audio/wav", "buffer": out.getvalue()}
    )
    view.page.get_by_role("button", name="Run").click()
    assert "start" in view.page.get_by_label("Answer").inner_text()


@pytest.mark.slow
def test_what_a_voice_says_can_be_played(view: View) -> None:
    view.pick("voice")
    view.page.get_by_label("Text", exact=True).fill("ab" * 400)
    view.page.get_by_role("button", name="Run").click()
    (found,) = json.loads(view.page.get_by_label("Answer").inner_text())
    assert found == {"kind": "audio", "seconds": 0.1, "rate": 8000, "left_out": []}
    played = "document.querySelector('audio[controls]')?.duration"
    view.page.wait_for_function(f"{played} > 0")
    assert view.page.evaluate(played) == pytest.approx(0.1, abs=0.03)


@pytest.mark.slow
def test_what_the_microphone_hears_runs(view: View) -> None:
    soundfile = pytest.importorskip("soundfile")
    view.pick("loud")
    view.page.get_by_role("button", name="Record", exact=True).click()
    view.page.get_by_text("Recording …").wait_for()
    view.page.wait_for_timeout(1500)
    view.page.get_by_role("button", name="Stop", exact=True).click()
    view.page.get_by_text("Recorded", exact=True).wait_for()
    with view.page.expect_request("**/v1/pipelines/loud") as asked:
        view.page.get_by_role("button", name="Run").click()
    view.page.get_by_label("Answer").wait_for()
    body = asked.value.post_data_buffer
    start = body.index(b"RIFF")
    sound, _ = soundfile.read(io.BytesIO(body[start:]), dtype="float32")
    assert sound.ndim == 1
    assert len(sound) > 12_000
    assert np.abs(sound).max() > 0.05


@pytest.mark.slow
def test_without_a_microphone_it_says_why(browser: Any, all_kinds: Server) -> None:
    view = View(browser, all_kinds)
    view.page.evaluate("Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")
    view.pick("loud")
    view.page.get_by_role("button", name="Record", exact=True).click()
    view.page.get_by_text("The microphone needs https").wait_for()
    assert view.wrong == []
    view.context.close()


@pytest.mark.slow
def test_a_conversation_by_keyboard_alone(view: View) -> None:
    keys = view.page.keyboard
    keys.press("Tab")
    assert view.page.evaluate("document.activeElement.className") == "skip"
    view.page.get_by_role("button", name="Try chat").focus()
    keys.press("Enter")
    assert view.page.evaluate("document.activeElement.id") == "try"
    view.page.get_by_label("Most tokens").wait_for()
    while view.page.evaluate("document.activeElement.id") != "said":
        keys.press("Tab")
    keys.type("the cat")
    keys.press("Enter")
    view.page.get_by_role("status").get_by_text("tokens in").wait_for()
    log = view.page.get_by_role("log").locator("p")
    assert log.nth(0).inner_text() == "You: the cat"
    assert len(log.nth(1).inner_text()) > len("Model: ")


@pytest.mark.slow
def test_figures_are_plotted_with_a_table_beside_each(view: View, all_kinds: Server) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    table = view.page.get_by_label("Table of throughput")
    table.wait_for(timeout=20_000)
    for _ in range(20):
        url, key = "/v2/models/net/infer", {"x-api-key": KEY}
        all_kinds.client.post(url, json={"inputs": [x]}, headers=key)
    largest = table.get_by_role("row", name="net").get_by_role("cell").nth(1)
    view.page.wait_for_function(
        "e => Number(e.textContent) > 0", arg=largest.element_handle(), timeout=20_000
    )
    for title in ("Latency", "Throughput", "Queue", "Cache"):
        assert view.page.get_by_role("heading", name=title).is_visible()
        plot = view.page.get_by_role("img", name=title)
        assert plot.locator("canvas").evaluate("e => e.width") > 200
        assert view.page.get_by_label(f"Table of {title.lower()}").is_visible()
    net = view.page.get_by_label("Table of latency").get_by_role("row", name="net")
    assert float(net.get_by_role("cell").nth(2).inner_text()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_nobody_is_shut_out(browser: Any, all_kinds: Server, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    view = View(browser, all_kinds, color_scheme=scheme, viewport={"width": width, "height": 667})
    view.page.get_by_label("Table of throughput").wait_for(timeout=20_000)
    ground = view.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 25)"}[scheme]
    for name in ("net", "finder", "vectors", "loud", "chat"):
        view.pick(name)
        found = axe.Axe().run(view.page)
        assert found.violations_count == 0, found.generate_report()
        # Nothing but tables in frames of their own is wider than the window.
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert view.page.evaluate(wide) == 0
    assert view.wrong == []
    view.context.close()
