"""Images, recordings and texts over HTTP: what pipelines give, and one clear error."""

from __future__ import annotations

import base64
import io
import threading
import time
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import edgeinfer
from edgeinfer.heads import Classify, Embed, Features, HearVoice, Segment, SpotWord
from edgeinfer.runtime.llm import ranking
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.serve import inflight, meaning
from edgeinfer.runtime.serve.http import DisconnectedError, RequestError
from edgeinfer.runtime.serve.meaning import Shared
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.types import AudioInput, FrameInput, TextInput
from tests.runtime.conftest import Fakes
from tests.runtime.llm.test_llm import model as tiny_model
from tests.runtime.pipelines import test_voice
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.pipelines.test_audio import RATE, SAID, SPREAD, TOGETHER
from tests.runtime.pipelines.test_image import COLOURS, SIZED
from tests.runtime.pipelines.test_sentence import COUNT, PIECES
from tests.runtime.pipelines.test_speech import bundles as speech_bundles
from tests.runtime.pipelines.test_speech import samples
from tests.runtime.serve.conftest import KEY, Server, Starter, held_as, text_bundle
from tests.runtime.serve.test_keys import OTHER

pytest.importorskip("PIL")
pytest.importorskip("tokenizers")
MASK = """
mask (float[N, 3, 4, 4] image) => (float[N, 3, 4, 4] scores) { scores = Identity (image) }
"""
LOUD = """
loud (float[1, 160] sound) => (float[1] voice)
{ voice = ReduceMax <axes = [1], keepdims = 0> (sound) }
"""


def png(colour: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


RED = png((255, 0, 0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("tasks")
    image: dict[str, Any] = {"preprocessing": {"image": SIZED}, "labels": ("red", "green", "blue")}
    ids = {
        "ids": TextInput("vocab.txt", 6, pad=True),
        "mask": TextInput("vocab.txt", 6, field="mask", pad=True),
    }
    sound = {"sound": AudioInput(16000, 160, 160)}
    bundles = [
        write_graph(folder, "colours", COLOURS, head=Classify(top=2, threshold=0.5), **image),
        write_graph(folder, "segments", MASK, head=Segment(), **image),
        write_graph(
            folder,
            "vectors",
            COUNT,
            {"vocab.txt": PIECES},
            head=Embed(pooling="mean", normalize=False),
            preprocessing=ids,
        ),
        write_graph(folder, "loud", LOUD, head=HearVoice(), preprocessing=sound),
    ]
    parts = [
        (SPREAD, Features(scale=2.0, offset=1.0), "x", AudioInput(RATE, 20, 20, gain=0.5)),
        (TOGETHER, Features(), "w", FrameInput(4, 2)),
        (SAID, SpotWord("go", threshold=2.5), "v", FrameInput(2)),
    ]
    chain = [
        write_graph(folder, f"part{i}", graph, head=head, preprocessing={name: record})
        for i, (graph, head, name, record) in enumerate(parts)
    ]
    together = f"words={','.join(map(str, chain))}"
    bundles.append(text_bundle(folder / "tiny.edge"))
    start = Starter(tmp_path_factory.mktemp("served"), Fakes())
    patch = pytest.MonkeyPatch()
    patch.setattr(LLM, "_open", held_as(tiny_model))
    try:
        made = start(
            *map(str, bundles),
            only=True,
            pipelines=(together,),
            limits=RequestLimits(elements=100_000),
        )
        for model in made.hub.models.values():
            assert (model.state, model.no_meaning) == ("ready", "")
        yield made
    finally:
        start.close()
        patch.undo()


def post(server: Server, name: str, content: Any, kind: str = "", query: str = "") -> Any:
    headers = {"content-type": kind} if kind else {}
    return server.client.post(f"/v1/pipelines/{name}{query}", content=content, headers=headers)


def test_a_picture_gets_names(server: Server) -> None:
    want = {
        "model": "colours",
        "results": [{"kind": "class", "index": 0, "label": "red", "score": 1.0}],
    }
    assert post(server, "colours", RED).json() == want
    assert post(server, "colours", RED, "image/png").json() == want
    form = {"file": ("cat.png", RED, "image/png")}
    assert server.client.post("/v1/pipelines/colours", files=form).json() == want


def test_a_picture_is_drawn_on(server: Server) -> None:
    from PIL import Image

    found = post(server, "colours", RED, query="?draw=true")
    assert found.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(found.content)).size == (12, 8)
    form = {"file": ("cat.png", RED)}
    drawn = server.client.post("/v1/pipelines/colours", files=form, data={"draw": "true"})
    assert drawn.content == found.content
    both = post(server, "colours", RED, query="?draw=both").json()
    assert base64.b64decode(both.pop("drawn")) == found.content
    assert both == post(server, "colours", RED).json()


def test_a_mask_is_a_picture(server: Server) -> None:
    from PIL import Image

    (found,) = post(server, "segments", png((0, 255, 0))).json()["results"]
    assert found["shares"] == {"green": 1.0}
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["mask"]))))
    assert mask.shape == (8, 12)
    assert (mask == 1).all()


def test_what_there_is(server: Server) -> None:
    found = {p["name"]: p for p in server.client.get("/v1/pipelines").json()["data"]}
    assert (found["vectors"]["takes"], found["vectors"]["gives"]) == ("a text", "embed")
    assert server.client.get("/v1/pipelines/colours").json()["labels"] == ["red", "green", "blue"]
    # They are models of tensors as well, in one copy.
    assert server.client.get("/v2/models/colours").json()["inputs"][0]["name"] == "image"


@pytest.mark.parametrize(
    ("name", "content", "kind", "query", "status", "text"),
    [
        ("nobody", RED, "", "", 404, "no model 'nobody'"),
        ("colours", b"", "", "", 400, "the body is empty; this model takes an image"),
        ("colours", b"no image", "", "", 400, "expected an image that Pillow can read"),
        ("colours", RED[:45], "", "", 400, "damaged"),
        ("colours", b"red", "text/plain", "", 400, "this model takes an image, not a text"),
        ("colours", png((1, 2, 3), (200, 200)), "", "", 413, "120000 values; at most 100000"),
        ("colours", RED, "", "?size=3", 400, "not supported: size"),
        ("colours", RED, "multipart/form-data", "", 400, "the boundary is missing"),
        ("colours", b"--x\r\n", "multipart/form-data; boundary=x", "", 400, "cut off"),
        ("vectors", RED, "", "", 400, "this model takes a text: send text/plain"),
        ("vectors", "the cat", "text/plain", "?draw=true", 400, "draw: this model takes a text"),
        ("vectors", b"\xff", "text/plain", "", 400, "not UTF-8"),
        ("vectors", b"{}", "application/json", "", 400, "expected {"),
        ("loud", b"RIFF", "", "", 400, "expected a recording"),
    ],
    ids=range(14),
)
def test_refusals(
    server: Server, name: str, content: Any, kind: str, query: str, status: int, text: str
) -> None:
    found = post(server, name, content, kind, query)
    assert found.status_code == status
    assert text in found.json()["error"]["message"]


def test_a_recording_gets_times(server: Server) -> None:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    sound = np.concatenate([np.zeros(8000), np.full(8000, 0.9), np.zeros(8000)])
    soundfile.write(out, sound, 16000, format="WAV")
    (found,) = post(server, "loud", out.getvalue(), "audio/wav").json()["results"]
    assert found["kind"] == "speech"
    assert found["start"] == pytest.approx(0.5, abs=0.1)


def test_speech_is_not_written_down(server: Server) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    with pytest.raises(openai.NotFoundError, match="no model transcribes speech here"):
        client.audio.transcriptions.create(model="loud", file=("a.wav", b"RIFF"))


def spoken(*tokens: int) -> bytes:
    """A file that says tokens; see ``tests.runtime.pipelines.test_speech``."""
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, samples(*tokens) / 8, RATE, format="WAV")
    return out.getvalue()


def test_speech_is_written_down(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    openai = pytest.importorskip("openai")
    paths = speech_bundles(partial(write_graph, tmp_path), sound=AudioInput(RATE, gain=8.0))
    start = Starter(tmp_path_factory.mktemp("speech"), Fakes())
    try:
        server = start(only=True, pipelines=(f"speech={','.join(map(str, paths))}",))
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        create = client.audio.transcriptions.create
        recording = ("talk.wav", spoken(2, 5, 3))
        assert create(model="speech", file=recording).text == "abghcd"
        assert create(model="speech", file=recording, response_format="text") == "abghcd\n"
        assert create(model="speech", file=("none.wav", spoken()), temperature=0).text == ""
        asked: list[tuple[dict[str, Any], str]] = [
            ({"language": "de", "prompt": "x"}, "not supported: language, prompt"),
            ({"temperature": 0.5}, "not supported: temperature"),
            ({"response_format": "srt"}, "not supported: response_format=srt"),
            ({"file": ("talk.wav", b"RIFF")}, "recording"),
        ]
        for more, text in asked:
            with pytest.raises(openai.BadRequestError, match=text):
                create(**{"model": "speech", "file": recording, **more})
        with pytest.raises(openai.NotFoundError, match="no model translates speech here"):
            client.audio.translations.create(model="speech", file=recording)
        lacking = server.client.post("/v1/audio/transcriptions", files={"file": recording})
        assert "missing: model" in lacking.json()["error"]["message"]
        found = server.client.get("/v1/pipelines/speech").json()
        assert (found["takes"], found["gives"]) == ("a recording", "write_speech")
    finally:
        start.close()


def test_a_text_is_said(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the client of OpenAI, and as any pipeline; what is not done is refused by name."""
    openai = pytest.importorskip("openai")
    make = partial(write_graph, tmp_path)
    vectors = write_graph(
        *(tmp_path, "vectors", COUNT, {"vocab.txt": PIECES}),
        head=Embed(pooling="mean"),
        preprocessing={n: TextInput("vocab.txt", 6) for n in ("ids", "mask")},
    )
    start = Starter(tmp_path_factory.mktemp("voice"), Fakes())
    try:
        server = start(str(test_voice.voice(make)), str(vectors), only=True)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        create = client.audio.speech.create
        asked = {"model": "voice", "input": "ab a", "voice": "default", "response_format": "wav"}
        with wave.open(io.BytesIO(create(**asked).content)) as file:
            assert (file.getframerate(), file.getsampwidth()) == (100, 2)
            samples = file.readframes(9)
        np.testing.assert_array_equal(np.frombuffer(samples, "<i2"), [3277, 6553, 0, 3277])
        raw = create(**{**asked, "response_format": "pcm", "speed": 1.0})
        assert raw.response.headers["content-type"] == "audio/pcm;rate=100"
        assert raw.content == samples
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"instructions": "sing", "user": "me"}, "not supported: instructions, user"),
            ({"response_format": "mp3"}, "response_format: expected 'wav' or 'pcm', is 'mp3'"),
            ({"voice": "alloy", "speed": 2}, "voice: expected 'default'; speed: expected 1"),
            ({"stream_format": "sse"}, "stream_format: expected 'audio'"),
            ({"input": ""}, "input: expected a text"),
            ({"input": "x"}, "symbols that the voice knows, received 'x'"),
            ({"input": "a" * 1001}, "at most 1000 symbols, received 1001"),
            ({"model": "vectors"}, "model 'vectors' speaks no text"),
        ]
        for more, text in wrong:
            answer = server.client.post("/v1/audio/speech", json={**asked, **more})
            assert (answer.status_code, text in answer.text) == (400, True), answer.text
        absent = server.client.post("/v1/audio/speech", json={**asked, "model": "none"})
        assert absent.status_code == 404
        (found,) = post(server, "voice", "ab", "text/plain").json()["results"]
        assert (found["kind"], found["seconds"], found["rate"]) == ("audio", 0.02, 100)
        assert base64.b64decode(found["wav"]).startswith(b"RIFF")
    finally:
        start.close()


def test_a_text_that_is_said_counts_by_its_sound(tmp_path: Path) -> None:
    path = test_voice.voice(partial(write_graph, tmp_path))
    with edgeinfer.pipeline(path) as opened:
        assert meaning.cost(opened, "a" * 500, 1, draws=False) == 4 * 500 * 100
        with pytest.raises(RequestError, match="takes a text: send text/plain"):
            meaning.cost(opened, b"RIFF", 1, draws=False)


def test_bundles_that_work_together_are_one_model(server: Server) -> None:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    signal = np.zeros(200)
    signal[100:] = 0.99
    soundfile.write(out, signal, RATE, format="WAV")
    (found,) = post(server, "words", out.getvalue()).json()["results"]
    assert (found["kind"], found["label"]) == ("word", "go")
    refused = server.client.post("/v2/models/words/infer", json={})
    assert refused.status_code == 400
    assert "is not a model of tensors" in refused.json()["error"]
    unloaded = server.client.post("/v2/repository/models/words/unload")
    assert unloaded.status_code == 200
    assert post(server, "words", out.getvalue()).status_code == 503
    assert server.client.post("/v2/repository/models/words/load").status_code == 200
    assert post(server, "words", out.getvalue()).json()["results"] == [found]


def test_the_real_client_gets_vectors(server: Server) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=None)
    # [CLS] the cat [SEP]: 2, 4, 5, 3.
    for form in ("float", "base64"):
        found = client.embeddings.create(
            model="vectors", input=["the cat", "cat"], encoding_format=form
        )
        vectors = [each.embedding for each in found.data]
        if form == "base64":
            vectors = [np.frombuffer(base64.b64decode(v), "<f4").tolist() for v in vectors]
        np.testing.assert_allclose(vectors, [[14 / 4, 1], [10 / 3, 1]], rtol=1e-6)
        assert found.usage.prompt_tokens == 7
    with pytest.raises(openai.BadRequestError, match="dimensions: this model gives 2"):
        client.embeddings.create(model="vectors", input="cat", dimensions=1)
    with pytest.raises(openai.BadRequestError, match="gives no vectors of texts"):
        client.embeddings.create(model="colours", input="cat")
    with pytest.raises(openai.BadRequestError, match="not supported: colour"):
        client.embeddings.create(model="vectors", input="cat", extra_body={"colour": 1})


def test_a_language_model_gives_vectors_too(server: Server) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = server.hub.models["tiny"].text
    assert model is not None
    texts = ["the cat sat", "a dog"]
    for pooling in ("last", "mean"):
        found = client.embeddings.create(
            model="tiny", input=texts, encoding_format="float", extra_body={"pooling": pooling}
        )
        vectors = [each.embedding for each in found.data]
        np.testing.assert_allclose(vectors, model.embed(texts, pooling=pooling), rtol=1e-6)
    tokens = [model.request(text).prompt for text in texts]
    assert found.usage.prompt_tokens == sum(map(len, tokens))
    given = {"model": "tiny", "input": tokens, "pooling": "mean"}
    same = server.client.post("/v1/embeddings", json=given).json()["data"]
    assert [each["embedding"] for each in same] == vectors
    ranked = {"model": "tiny", "query": "a dog", "documents": ["the cat sat", "a dog"]}
    first = server.client.post("/v1/rerank", json=ranked).json()["results"][0]
    assert (first["index"], first["relevance_score"]) == (1, pytest.approx(1.0))


def test_who_leaves_ends_the_reading_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests whose clients had left kept everybody's vectors waiting."""
    asking = meaning.Asking()
    token = meaning.ASKING.set(asking)
    monkeypatch.setattr(LLM, "_open", lambda *_: tiny_model())
    llm, steps = LLM("tiny.edge"), 0

    def go_on(tokens: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            asking.left.set()
        meaning.reads(tokens)

    try:
        with pytest.raises(DisconnectedError):
            llm.embed([[5] * 40] * 50, go_on=go_on)
        assert (steps, asking.tokens) == (3, 80)
        assert llm.embed([[5] * 40]).shape[0] == 1
        with pytest.raises(RequestError, match="tokens in one request; at most 4096"):
            meaning.states(llm, [[5] * 500] * 9, "last")
    finally:
        meaning.ASKING.reset(token)
        llm.close()


def test_who_leaves_pays_for_what_was_read(
    begin: tuple[Starter, Fakes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of clients that left had been read for nothing."""
    server = begin[0](keys=(f"{KEY} tokens=500/h",))
    model = server.hub.models["tiny"].text
    assert model is not None
    headers, given = {"x-api-key": KEY}, {"model": "tiny", "input": [[5] * 40] * 4}
    used = server.client.post("/v1/embeddings", json=given, headers=headers)
    assert used.json()["usage"]["total_tokens"] == 160
    kind: Any = type(model._reader()._executor)
    states, third, opened, steps = kind.states, threading.Event(), threading.Event(), 0

    def held(self: Any, batch: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            third.set()
            assert opened.wait(30)
        return states(self, batch)

    monkeypatch.setattr(kind, "states", held)
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/embeddings", json=given, headers=headers, timeout=1)
    assert third.wait(30)
    allowance = server.app._keys._grants[0]._tokens
    assert allowance is not None
    before = allowance._left
    opened.set()
    assert eventually(lambda: allowance._left < before)
    # Three texts were begun, or all where the server had not seen yet that nobody waits.
    assert before - allowance._left in (120, 160)


def test_vectors_take_tokens_wherever_they_are_asked_for(tmp_path: Path) -> None:
    """A key that had none left got them as a pipeline's results."""
    given = {
        "ids": TextInput("vocab.txt", 6, pad=True),
        "mask": TextInput("vocab.txt", 6, field="mask", pad=True),
    }
    head = Embed(pooling="mean", normalize=False)
    made = write_graph(
        tmp_path, "vectors", COUNT, {"vocab.txt": PIECES}, head=head, preprocessing=given
    )
    headers = {"x-api-key": KEY, "content-type": "text/plain"}
    start = Starter(tmp_path, Fakes())
    try:
        server = start(str(made), only=True, keys=(f"{KEY} tokens=4/h",))
        found = [
            server.client.post("/v1/pipelines/vectors", content="hello world", headers=headers)
            for _ in range(4)
        ]
    finally:
        start.close()
    # One may begin while a token is left.
    statuses = [each.status_code for each in found]
    assert (statuses[0], statuses[-1]) == (200, 429), statuses


def test_what_a_judge_reads_is_counted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query had counted once, and is read for each document."""
    model = server.hub.models["tiny"].text
    assert model is not None
    monkeypatch.setattr(ranking, "ANSWERS", ("a", "b"))
    asking = meaning.Asking()
    token = meaning.ASKING.set(asking)
    try:
        _, tokens = meaning.judged(model, "dog", ["the cat", "a"], None)
        assert asking.tokens == tokens
        with pytest.raises(RequestError, match="tokens in one request; at most 4096"):
            meaning.judged(model, "dog " * 50, ["a"] * 64, None)
    finally:
        meaning.ASKING.reset(token)


def test_a_language_model_judges(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model": "tiny", "query": "dog", "documents": ["the cat", "a"], "scoring": "judge"}
    lacking = server.client.post("/v1/rerank", json=given)
    assert (lacking.status_code, "judges nothing" in lacking.text) == (400, True)
    model = server.hub.models["tiny"].text
    assert model is not None
    pieces = model.model.tokenizer.vocabulary.bytes
    words = [p.decode() for p in pieces if p.isalpha() and p.isascii()][:2]
    monkeypatch.setattr(ranking, "ANSWERS", tuple(words))
    right = model.rank("dog", ["the cat", "a"], instruction="find")
    found = server.client.post("/v1/rerank", json={**given, "instruction": "find"}).json()
    scores = {each["index"]: each["relevance_score"] for each in found["results"]}
    assert [scores[0], scores[1]] == right.tolist()
    wrongs: list[dict[str, Any]] = [{"scoring": "other"}, {"pooling": "mean"}, {"instruction": 3}]
    for wrong in (*wrongs, {"model": "vectors"}, {"scoring": None, "instruction": "find"}):
        assert server.client.post("/v1/rerank", json={**given, **wrong}).status_code == 400


@pytest.mark.parametrize(
    ("model", "more", "text"),
    [
        ("tiny", {"pooling": "first"}, "pooling"),
        ("tiny", {"pooling": 3}, "pooling: expected a text"),
        ("tiny", {"input": [[1], "two"]}, "expected lists of tokens"),
        ("tiny", {"input": [[10**9]]}, "tokens from 0"),
        ("vectors", {"pooling": "mean"}, "pooling: this model has its own"),
        ("vectors", {"input": [1, 2]}, "takes texts, no tokens"),
    ],
)
def test_vectors_that_cannot_be(
    server: Server, model: str, more: dict[str, Any], text: str
) -> None:
    given = {"model": model, "input": "cat", **more}
    found = server.client.post("/v1/embeddings", json=given)
    assert found.status_code == 400
    assert text in found.json()["error"]["message"]


def test_texts_are_ranked(server: Server) -> None:
    given = {"model": "vectors", "query": "the", "documents": ["cat cat cat", "the", "cat"]}
    found = server.client.post("/v1/rerank", json={**given, "return_documents": True}).json()
    assert found["results"][0] == {
        "index": 1,
        "relevance_score": pytest.approx(1.0),
        "document": {"text": "the"},
    }
    assert len(server.client.post("/v1/rerank", json={**given, "top_n": 2}).json()["results"]) == 2
    wrongs: list[dict[str, Any]] = [{"top_n": 0}, {"documents": []}, {"query": 3}]
    for wrong in (*wrongs, {"documents": [{"a": 1}]}):
        assert server.client.post("/v1/rerank", json={**given, **wrong}).status_code == 400


class Gate:
    """Holds each run of an engine until it is opened."""

    def __init__(self, server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.opened, self.runs = threading.Event(), threading.Event(), 0
        self.pause = 0.0
        pipeline = server.hub.models[name].pipeline
        assert pipeline is not None
        shared = pipeline.models[0].runs
        assert isinstance(shared, Shared)
        run = shared._model.run

        def held(feeds: Any) -> Any:
            self.runs += 1
            self.begun.set()
            assert self.opened.wait(30)
            # A hundred windows take five seconds: time to see that a client has left.
            time.sleep(self.pause)
            return run(feeds)

        monkeypatch.setattr(shared._model, "run", held)


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def test_who_leaves_frees_memory_and_engine_at_the_next_window(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, np.zeros(16_000, np.int16), 16_000, format="WAV")
    gate = Gate(server, "loud", monkeypatch)
    gate.pause = 0.05
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/pipelines/loud", content=out.getvalue(), timeout=1)
    assert gate.begun.is_set()
    # What runs still has what it was given.
    assert server.hub.memory.used > 16_000
    gate.opened.set()
    assert eventually(lambda: server.hub.memory.used == 0)
    assert gate.runs < 100, "all windows"


def test_what_decoding_takes_counts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.2)
    monkeypatch.setattr(server.hub.memory, "_limit", 300_000)
    gate, picture = Gate(server, "colours", monkeypatch), png((255, 0, 0), (180, 180))
    assert len(picture) < 1000
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(post(server, "colours", picture)))
    thread.start()
    assert gate.begun.wait(30)
    second = post(server, "colours", picture)
    assert second.status_code == 503
    assert int(second.headers["retry-after"]) >= 1
    gate.opened.set()
    thread.join()
    assert first[0].status_code == 200
    assert post(server, "colours", picture).status_code == 200
    assert eventually(lambda: server.hub.memory.used == 0)


def test_one_key_leaves_memory_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound of nothing is small until it is read."""
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.setattr(inflight, "WAIT_S", 0.2)
    sound = {"sound": AudioInput(16000, 160, 160)}
    bundle = write_graph(tmp_path, "loud", LOUD, head=HearVoice(), preprocessing=sound)
    out = io.BytesIO()
    soundfile.write(out, np.zeros(1 << 16, np.int16), 16_000, format="FLAC")
    silence = out.getvalue()
    assert len(silence) < 10_000
    start = Starter(tmp_path, Fakes())
    try:
        server = start(str(bundle), only=True, keys=(KEY, OTHER))
        memory = server.hub.memory
        monkeypatch.setattr(memory, "_limit", 9 << 20)
        gate = Gate(server, "loud", monkeypatch)

        def send(key: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            address = f"{server.url}/v1/pipelines/loud"
            return httpx.post(address, content=silence, headers=headers, timeout=60)

        with ThreadPoolExecutor(8) as pool:
            greedy = [pool.submit(send, KEY) for _ in range(6)]
            assert eventually(lambda: sum(f.done() for f in greedy) == 4)
            honest = pool.submit(send, OTHER)
            assert eventually(lambda: len(memory._of) == 2)
            gate.opened.set()
            assert honest.result().status_code == 200
            found = [f.result() for f in greedy]
        assert sorted(f.status_code for f in found) == [200, 200, 429, 429, 429, 429]
        assert all("of this key" in f.text for f in found if f.status_code == 429)
        assert eventually(lambda: memory.used == 0)
    finally:
        start.close()


def test_an_hour_of_sound_is_one_request(server: Server) -> None:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    with soundfile.SoundFile(out, "w", 16_000, 1, format="FLAC", subtype="PCM_16") as file:
        for _ in range(3601):
            file.write(np.zeros(16_000, np.int16))
    found = server.client.post("/v1/pipelines/loud", content=out.getvalue())
    assert found.status_code == 413
    assert "3601 s of audio; at most 3600" in found.text


def test_why_a_model_is_no_pipeline_names_no_folder(tmp_path: Path) -> None:
    record = {"ids": TextInput("vocab.txt", 6, pad=True)}
    record["mask"] = TextInput("vocab.txt", 6, field="mask", pad=True)
    files = {"vocab.txt": PIECES}
    bundle = write_graph(tmp_path, "bad", COUNT, files, head=Segment(), preprocessing=record)
    start = Starter(tmp_path, Fakes())
    try:
        server = start(str(bundle), only=True)
        found = server.client.post("/v1/pipelines/bad", content=b"a")
    finally:
        start.close()
    assert found.status_code == 400, found.text
    assert "is not a pipeline" in found.text
    assert str(tmp_path) not in found.text
