"""Tasks over HTTP: images, recordings and texts; embeddings, rerank and voices, too.

Source: OpenAI's API reference of embeddings and of speech; ``/v1/rerank`` as Jina and vLLM have it.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import numpy as np

from edgeinfer.results import Audio
from edgeinfer.runtime.bell import awaited
from edgeinfer.runtime.pipelines import Pipeline, SpeechPipeline, SpokenPipeline, VoicePipeline
from edgeinfer.runtime.pipelines.spoken import said
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.serve import meaning
from edgeinfer.runtime.serve.forms import read_form
from edgeinfer.runtime.serve.http import (
    DisconnectedError,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    answer_json,
    client_left,
    from_json,
    header,
    read_body,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import held
from edgeinfer.runtime.serve.keys import GRANT, owner
from edgeinfer.runtime.serve.meaning import Prompt
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.spoken import Spoken
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM

R = TypeVar("R")
PATH = "/v1/pipelines"
SPEECH = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""What OpenAI's clients ask for speech; no bundle translates it."""

_WRITERS = (SpeechPipeline, SpokenPipeline)

VOICE = "/v1/audio/speech"

SOUNDS = ("wav", "pcm")
"""Forms of what a voice says; OpenAI's others are compressed."""

WRITTEN = ("json", "text")
"""Forms of a transcription."""

SCORINGS = ("cosine", "judge")
"""How documents are ranked: by vectors, or by a language model that says yes or no."""

MOST = 2048
"""Texts of one request."""

THREADS = 4
"""Files that are decoded at once; other requests have threads of their own."""

DRAW = ("false", "true", "both")
"""Whether an answer is what was found, the image drawn upon, or both in one JSON."""


class Tasks:
    """Answers below ``/v1/pipelines``, ``/v1/embeddings``, ``/v1/rerank`` and ``/v1/audio``.

    Args:
        hub: the models.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        waiting = 4 * hub.options.limits.queue
        self._pool = Pool("edgeinfer-pipeline", THREADS, waiting)
        # Who reads long texts keeps no images waiting; each model reads one after the other.
        self._readers = Pool("edgeinfer-reader", THREADS, waiting)

    async def route(
        self, path: str, method: str, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; False where the address is not one of these.

        Raises:
            RequestError: the request is wrong.
        """
        if path == PATH and method == "GET":
            found = [_described(m) for m in self._hub.visible.values() if m.has_meaning]
            await answer_json(send, {"data": found})
        elif path.startswith(f"{PATH}/") and method in ("GET", "POST"):
            model = self._hub.get(unquote(path[len(PATH) + 1 :]))
            pipeline = _pipeline(model)
            if method == "GET":
                await answer_json(send, _described(model))
            else:
                await self._run(model, pipeline, scope, receive, send)
        elif path in SPEECH and method == "POST":
            pipelines = (model.pipeline for model in self._hub.visible.values())
            is_there = any(isinstance(each, _WRITERS) for each in pipelines)
            if path != SPEECH[0] or not is_there:
                word = "transcribes" if path == SPEECH[0] else "translates"
                raise RequestError(
                    404, f"no model {word} speech here; {PATH} lists what recordings are for"
                )
            await self._transcribe(scope, receive, send)
        elif path == VOICE and method == "POST":
            await self._say(receive, send)
        elif path in ("/v1/embeddings", "/v1/rerank", "/rerank") and method == "POST":
            work = self._embeddings if path == "/v1/embeddings" else self._rerank
            await work(receive, send)
        else:
            return False
        return True

    async def _run(
        self, model: Served, pipeline: Pipeline, scope: Scope, receive: Receive, send: Send
    ) -> None:
        limits = self._hub.options.limits
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        is_json = kind == b"application/json"
        most = limits.json_bytes if is_json else limits.body_bytes
        body = await read_body(receive, most, limits.body_s)
        given, draw, chat = _given(scope, await self._hub.parsed(body) if is_json else body)
        draws = draw != "false"
        if chat is not None and model.answerer is None:
            raise RequestError(400, f"chat: model {model.name!r} has no language model behind it")
        if draws and not (isinstance(given, bytes) and pipeline.takes == "an image"):
            raise RequestError(400, f"draw: this model takes {pipeline.takes}")

        def weigh() -> int:
            return meaning.cost(pipeline, given, limits.elements, draws=draws)

        def work() -> tuple[list[dict[str, Any]], bytes | None]:
            results = meaning.ran(pipeline, given)
            described = [] if draw == "true" else meaning.described(results)
            if draws and isinstance(given, bytes):
                return described, meaning.drawn(given, results)
            return described, None

        await held().take(await self._pool.run(weigh, owner()))
        if isinstance(pipeline, SpokenPipeline) and model.answerer is not None:
            hear = partial(pipeline.listen, given)
            await Spoken(self._hub, model, chat).answer(
                partial(self._threaded, model), hear, receive, send
            )
            return
        run = self._granted if meaning.gives_vectors(pipeline) else self._worked
        found, picture = await run(model, receive, work)
        if picture is not None and draw == "true":
            await answer(send, 200, picture, ((b"content-type", b"image/png"),))
            return
        whole: dict[str, Any] = {"model": model.name, "results": found}
        if picture is not None:
            whole["drawn"] = base64.b64encode(picture).decode()
        await answer_json(send, whole)

    async def _transcribe(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._hub.options.limits
        body = await read_body(receive, limits.body_bytes, limits.body_s)
        name, recording, form = _spoken(body, header(scope, b"content-type") or b"")
        model = self._hub.get(name)
        pipeline = _pipeline(model)
        if not isinstance(pipeline, _WRITERS):
            raise RequestError(400, f"model {name!r} transcribes no speech")
        hear = pipeline.listen if isinstance(pipeline, SpokenPipeline) else pipeline

        def weigh() -> int:
            return meaning.cost(pipeline, recording, limits.elements, draws=False)

        await held().take(await self._pool.run(weigh, owner()))
        found = await self._worked(model, receive, partial(hear, recording))
        text = said(found)
        if form == "text":
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await answer(send, 200, f"{text}\n".encode(), (kind,))
        else:
            await answer_json(send, {"text": text})

    async def _say(self, receive: Receive, send: Send) -> None:
        known = {"input", "voice", "response_format", "speed", "stream_format"}
        data, model = await self._asked(receive, known)
        pipeline = model.pipeline
        if not isinstance(pipeline, VoicePipeline):
            raise RequestError(400, f"model {model.name!r} speaks no text; {PATH} lists what does")
        text, form = _said(data)
        limit = self._hub.options.limits.elements
        await held().take(meaning.cost(pipeline, text, limit, draws=False))
        found = await self._worked(model, receive, partial(pipeline, text))
        sound = next(each for each in found if isinstance(each, Audio))
        if form == "pcm":
            kind = f"audio/pcm;rate={sound.rate}".encode()
            await answer(send, 200, sound.pcm(), ((b"content-type", kind),))
        else:
            await answer(send, 200, sound.wav(), ((b"content-type", b"audio/wav"),))

    async def _worked(self, model: Served, receive: Receive, work: Callable[[], R]) -> R:
        """Run something of a model in a thread; the tokens that it reads count for the key."""
        with self._hub.counted(model), self._hub.place(model):
            return await self._threaded(model, receive, work)

    async def _threaded(self, model: Served, receive: Receive, work: Callable[[], R]) -> R:
        grant, asking = GRANT.get(), meaning.Asking()
        token = meaning.ASKING.set(asking)
        pool = self._readers if model.kind == "text" else self._pool
        task = pool.submit(partial(contextvars.copy_context().run, work), owner())
        meaning.ASKING.reset(token)
        try:
            return await _awaited(task, receive, asking)
        finally:
            if grant is not None:
                grant.count_tokens(asking.tokens)

    async def _vectors(
        self, model: Served, receive: Receive, texts: Sequence[Prompt], pooling: str | None
    ) -> tuple[Array, int]:
        """Return a vector of each text, by a model of embeddings or by a language model."""
        if (text := _text(model)) is not None:
            work = partial(meaning.states, text, texts, pooling or "last")
        else:
            pipeline = _pipeline(model)
            if pooling is not None:
                raise RequestError(400, "pooling: this model has its own")
            if not all(isinstance(text, str) for text in texts):
                raise RequestError(400, "input: this model takes texts, no tokens")
            work = partial(meaning.vectors, pipeline, cast("Sequence[str]", texts))
        return await self._granted(model, receive, work)

    async def _granted(self, model: Served, receive: Receive, work: Callable[[], R]) -> R:
        """Read texts, for a key that has tokens left."""
        grant = GRANT.get()
        if grant is not None:
            grant.check_tokens()
        return await self._worked(model, receive, work)

    async def _asked(self, receive: Receive, known: set[str]) -> tuple[dict[str, Any], Served]:
        data = await self._hub.read_json(receive)
        # What is null asks for nothing.
        data = {key: value for key, value in data.items() if value is not None}
        if unknown := sorted(data.keys() - known - {"model"}):
            raise RequestError(400, f"not supported: {', '.join(unknown)}")
        if not isinstance(data.get("model"), str):
            raise RequestError(400, "model: expected a name")
        return data, self._hub.get(data["model"])

    async def _embeddings(self, receive: Receive, send: Send) -> None:
        known = {"input", "encoding_format", "dimensions", "user", "input_type", "pooling"}
        data, model = await self._asked(receive, known)
        texts = _tokens(data.get("input")) or [*_texts(data.get("input"), "input")]
        form = data.get("encoding_format", "float")
        if form not in ("float", "base64"):
            raise RequestError(400, f"encoding_format: {form!r} is not supported")
        found, tokens = await self._vectors(model, receive, texts, _pooling(data))
        size = data.get("dimensions", found.shape[1])
        if size != found.shape[1]:
            raise RequestError(400, f"dimensions: this model gives {found.shape[1]}")
        rows = [
            {"object": "embedding", "index": i, "embedding": _written(row, form)}
            for i, row in enumerate(found)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        whole = {"object": "list", "model": model.name, "data": rows, "usage": usage}
        await answer_json(send, whole)

    async def _rerank(self, receive: Receive, send: Send) -> None:
        known = {"query", "documents", "top_n", "return_documents", "pooling"}
        known |= {"scoring", "instruction"}
        data, model = await self._asked(receive, known)
        query = data.get("query")
        if not isinstance(query, str):
            raise RequestError(400, "query: expected a text")
        given = data.get("documents")
        if isinstance(given, list):
            given = [d.get("text") if isinstance(d, dict) else d for d in given]
        documents = _texts(given, "documents")
        top = data.get("top_n", len(documents))
        if type(top) is not int or top < 1:
            raise RequestError(400, "top_n: expected a whole number, at least 1")
        if _is_judged(data):
            if (text := _text(model)) is None:
                raise RequestError(400, f"scoring: model {model.name!r} is no language model")
            work = partial(meaning.judged, text, query, documents, data.get("instruction"))
            scores, tokens = await self._granted(model, receive, work)
        else:
            read = [query, *documents]
            found, tokens = await self._vectors(model, receive, read, _pooling(data))
            scores = _cosines(found[0], found[1:])
        results: list[dict[str, Any]] = [
            {"index": int(i), "relevance_score": float(scores[i])}
            for i in np.argsort(-scores, kind="stable")[:top]
        ]
        if data.get("return_documents") is True:
            for result in results:
                result["document"] = {"text": documents[result["index"]]}
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await answer_json(send, {"model": model.name, "results": results, "usage": usage})


async def _awaited(task: Future[R], receive: Receive, asking: meaning.Asking) -> R:
    """Wait for work in a thread, which ends early where its client leaves.

    Raises:
        DisconnectedError: the client left.
    """
    running = awaited(task)
    leaving = asyncio.ensure_future(client_left(receive))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return await running
    finally:
        leaving.cancel()
        # Before its next run of the engine.
        asking.left.set()
    # It has its place and its memory until it has ended; what waits for a thread ends here.
    if not task.cancel():
        await asyncio.wait((running,))
        running.exception()
    raise DisconnectedError


def _text(model: Served) -> LLM | None:
    """Return what a model that is a language model runs; one behind a pipeline answers alone."""
    return model.text if model.kind == "text" else None


def _pipeline(model: Served) -> Pipeline:
    if (pipeline := model.pipeline) is None:
        why = model.no_meaning or "its bundle does not say what it means"
        raise RequestError(400, f"model {model.name!r} is not a pipeline: {why}")
    return pipeline


def _described(model: Served) -> dict[str, Any]:
    found: dict[str, Any] = {"name": model.name, "ready": model.is_ready}
    if (pipeline := model.pipeline) is not None:
        last = pipeline.models[-1]
        gives = last.head.kind if model.answerer is None else "reply"
        found |= {"takes": pipeline.takes, "gives": gives}
        found["labels"] = list(last.labels)
    return found


def _given(
    scope: Scope, body: bytes | dict[str, Any]
) -> tuple[bytes | str, str, dict[str, Any] | None]:
    """Return an image, a recording or a text, which of ``DRAW`` is wanted, and the chat's terms."""
    chat: Any = None
    query = dict(parse_qsl(str(scope.get("query_string", b""), "latin-1")))
    whole = header(scope, b"content-type") or b""
    kind = whole.partition(b";")[0].strip().lower()
    if isinstance(body, dict):
        if not (isinstance(body.get("text"), str) and len(body) == 1):
            raise RequestError(400, 'expected {"text": "..."}; files are sent as they are')
        given: bytes | str = body["text"]
    elif kind == b"multipart/form-data":
        fields = read_form(body, whole)
        query |= {name: fields.pop(name).text(name) for name in ("draw",) if name in fields}
        if "chat" in fields and not isinstance(chat := from_json(fields.pop("chat").content), dict):
            raise RequestError(400, "chat: expected an object")
        if len(fields) != 1 or not fields.keys() <= {"file", "text"}:
            raise RequestError(400, f"expected one field, file or text; received {[*fields]}")
        name, field = fields.popitem()
        given = field.text(name) if name == "text" else field.content
    elif kind.startswith(b"text/"):
        try:
            given = str(body, "utf-8")
        except UnicodeDecodeError as e:
            raise RequestError(400, "the text is not UTF-8") from e
    else:
        given = body
    draw = query.pop("draw", "false")
    if query or draw not in DRAW:
        raise RequestError(400, f"not supported: {', '.join(query) or f'draw={draw}'}")
    return given, draw, chat


def _spoken(body: bytes, content_type: bytes) -> tuple[str, bytes, str]:
    """Return the model, the recording and the form of the answer that a form asks for.

    Raises:
        RequestError: a field lacks, or is not supported; the message lists which.
    """
    fields = read_form(body, content_type)
    if missing := sorted({"file", "model"} - fields.keys()):
        raise RequestError(400, f"missing: {', '.join(missing)}")
    recording, name = fields.pop("file").content, fields.pop("model").text("model")
    said = {key: field.text(key) for key, field in fields.items()}
    form = said.pop("response_format", "json")
    # What these say is what is done.
    usual = {"temperature": ("0", "0.0"), "stream": ("false", "False")}
    wrong = sorted(key for key, value in said.items() if value not in usual.get(key, ()))
    if form not in WRITTEN:
        wrong.append(f"response_format={form}")
    if wrong:
        raise RequestError(400, f"not supported: {', '.join(wrong)}")
    return name, recording, form


def _said(data: dict[str, Any]) -> tuple[str, str]:
    """Return the text of a request for speech, and the form of the answer.

    Raises:
        RequestError: a field lacks or asks for what is not done; the message lists which.
    """
    text, form = data.get("input"), data.get("response_format", "mp3")
    # What these say is what is done.
    usual = {"voice": ("default",), "speed": (1,), "stream_format": ("audio",)}
    wrong = [
        f"{key}: expected {' or '.join(map(repr, values))}"
        for key, values in usual.items()
        if data.get(key, values[0]) not in values
    ]
    if form not in SOUNDS:
        wrong.append(f"response_format: expected {' or '.join(map(repr, SOUNDS))}, is {form!r}")
    if not (isinstance(text, str) and text):
        wrong.append("input: expected a text")
    if wrong or not isinstance(text, str):
        raise RequestError(400, "; ".join(wrong))
    return text, str(form)


def _texts(given: Any, name: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not (isinstance(texts, list) and texts and all(isinstance(t, str) and t for t in texts)):
        raise RequestError(400, f"{name}: expected a text or a list of texts")
    if len(texts) > MOST:
        raise RequestError(400, f"{name}: at most {MOST} texts, received {len(texts)}")
    return texts


def _tokens(given: Any) -> list[Prompt]:
    """Return lists of tokens; none where the input is something else.

    Raises:
        RequestError: there are too many.
    """
    lists = [given] if isinstance(given, list) and given and type(given[0]) is int else given
    if not (isinstance(lists, list) and lists and isinstance(lists[0], list)):
        return []
    if len(lists) > MOST:
        raise RequestError(400, f"input: at most {MOST} texts, received {len(lists)}")
    if not all(isinstance(each, list) and all(type(t) is int for t in each) for each in lists):
        raise RequestError(400, "input: expected lists of tokens")
    return lists


def _pooling(data: dict[str, Any]) -> str | None:
    found = data.get("pooling")
    if not (found is None or isinstance(found, str)):
        raise RequestError(400, "pooling: expected a text")
    return found


def _is_judged(data: dict[str, Any]) -> bool:
    """Say whether a model judges documents itself, instead of by their vectors.

    Raises:
        RequestError: what is asked contradicts itself.
    """
    scoring, instruction = data.get("scoring", "cosine"), data.get("instruction")
    if scoring not in SCORINGS:
        raise RequestError(400, f"scoring: expected one of {', '.join(SCORINGS)}")
    if not (instruction is None or isinstance(instruction, str)):
        raise RequestError(400, "instruction: expected a text")
    idle = "pooling" if scoring == "judge" else "instruction"
    if data.get(idle) is not None:
        raise RequestError(400, f"{idle}: not with scoring {scoring!r}")
    return bool(scoring == "judge")


def _written(row: Array, form: str) -> Any:
    return row if form == "float" else base64.b64encode(row.astype("<f4").tobytes()).decode()


def _cosines(query: Array, documents: Array) -> Array:
    exact = documents.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(query.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return np.where(lengths > 0, exact @ query.astype(np.float64) / lengths, 0.0)
