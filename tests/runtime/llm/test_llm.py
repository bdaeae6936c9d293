"""The public face: prompts in, texts out."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import (
    BundleError,
    ClosedError,
    InputError,
    LoadError,
    MemoryBudgetError,
    NotAvailableError,
    UsageError,
)
from edgeinfer.llm.generation import Generation
from edgeinfer.runtime.llm import ranking
from edgeinfer.runtime.llm.bundle import BundledModel, CacheSizes, page_bytes, pages_for
from edgeinfer.runtime.llm.chat import ChatTemplate
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import Grammar, SamplingParams
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.runtime.llm.tools import Tool, ToolFormat
from edgeinfer.types import TensorSpec
from tests.runtime.llm.conftest import tiny_config, tiny_weights
from tests.runtime.llm.reference import ReferenceExecutor
from tests.runtime.llm.texts import TEMPLATE, byte_fallback, byte_level

for library in ("tokenizers", "jinja2", "llguidance"):
    pytest.importorskip(library)

VOCAB = 420
MESSAGES = [{"role": "user", "content": "the cat"}]
SHORT = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


def model(template: str = TEMPLATE) -> BundledModel:
    config = tiny_config(vocab=VOCAB, context=512)
    weights = tiny_weights(config)
    texts = Generation((2,), 1, {"bos_token": "<|start|>"}, temperature=0.5, top_k=20)
    return BundledModel(
        "tiny",
        config,
        texts,
        TextTokenizer(byte_level(), VOCAB, texts.bos),
        ChatTemplate(template, texts.tokens) if template else None,
        lambda *_: ReferenceExecutor(config, weights, pages=128),
    )


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(LLM, "_open", lambda *_: model())
    with LLM("tiny.edge") as made:
        yield made


def test_prompts_give_texts(llm: LLM) -> None:
    one, other = llm.generate(["the cat", "hello world"], SHORT)
    assert one.prompt[0] == 1
    assert len(one.outputs[0].tokens) == 8
    assert one.outputs[0].finish == "length"
    assert one.text == llm.model.tokenizer.decode(one.outputs[0].tokens)
    assert one.text != other.text
    assert llm.generate("the cat", SHORT)[0].outputs[0].tokens == one.outputs[0].tokens
    assert llm.generate([], SHORT) == []
    assert llm.generate(list(one.prompt), SHORT)[0].text == one.text
    assert llm.generate([list(one.prompt)] * 2, SHORT)[1].text == one.text


def test_parameters_for_each_prompt(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=n, ignore_eos=True, seed=1) for n in (1, 5)]
    found = llm.generate(["the cat", "the cat"], each)
    assert [len(c.outputs[0].tokens) for c in found] == [1, 5]
    with pytest.raises(InputError, match="one for each of 1 prompts"):
        llm.generate(["the cat"], each)


def test_several_generations_of_a_prompt(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=2, max_tokens=10, temperature=2.0, logprobs=1)
    (found,) = llm.generate("the cat", params)
    assert len({output.tokens for output in found.outputs}) > 1
    assert all(len(o.logprobs) == len(o.tokens) for o in found.outputs)


def test_defaults_are_those_of_the_source(llm: LLM) -> None:
    assert llm.defaults == SamplingParams(temperature=0.5, top_k=20)


def test_stream_is_the_text(llm: LLM) -> None:
    events = list(llm.stream("the cat", SHORT))
    assert "".join(e.text for e in events) == llm.generate("the cat", SHORT)[0].text

    async def streamed() -> str:
        return "".join([e.text async for e in await llm.stream_async("the cat", SHORT)])

    assert asyncio.run(streamed()) == llm.generate("the cat", SHORT)[0].text


def test_conversation_begins_once(llm: LLM) -> None:
    request = llm.chat_request(MESSAGES, SHORT)
    assert llm.model.tokenizer.decode(request.prompt, skip_special=False) == (
        "<|start|>user\nthe cat<|im_end|>\n<|start|>assistant\n"
    )
    first = [{"role": "user", "content": "the cat sat on the mat and the dog saw it"}]
    found = llm.chat(first, SHORT)
    second = [*first, {"role": "assistant", "content": found.text}, *MESSAGES]
    usage = llm.chat(second, SHORT).outputs[0].usage
    assert usage.prompt_tokens > usage.cached_tokens >= 16


def test_model_without_a_template_has_no_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model(""))
    with LLM("tiny.edge") as llm, pytest.raises(UsageError, match="no chat template"):
        llm.chat(MESSAGES)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"name": "clock"}


def test_tool_is_called_where_it_must_be(llm: LLM) -> None:
    params = SamplingParams(max_tokens=120, seed=1)
    found = llm.chat(MESSAGES, params, tools=[WEATHER, CLOCK], tool_choice="weather")
    (call,) = found.outputs[0].calls
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    assert found.outputs[0].finish == "stop"
    text = llm.model.tokenizer.decode(found.prompt)
    assert '"name": "weather"' in text
    none = llm.chat_request(MESSAGES, params, tools=[WEATHER], tool_choice="none")
    assert "weather" not in llm.model.tokenizer.decode(none.prompt)
    assert llm.chat_request(MESSAGES, params, tools=[WEATHER]).params.grammar is None


def test_tools_of_another_form_are_refused(llm: LLM) -> None:
    with pytest.raises(InputError, match="tools"):
        llm.chat(MESSAGES, tools=[{"function": {}}])
    with pytest.raises(InputError, match="one of weather"):
        llm.chat(MESSAGES, tools=[WEATHER], tool_choice="rain")
    params = SamplingParams(grammar=Grammar("json"))
    with pytest.raises(InputError, match="grammar"):
        llm.chat(MESSAGES, params, tools=[WEATHER], tool_choice="required")


@pytest.mark.parametrize(
    ("form", "text", "names"),
    [
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>', ["a"]),
        (
            "hermes",
            'x <tool_call>\n{"name": "a", "arguments": {"b": 1}}\n</tool_call>'
            '<tool_call>\n{"name": "c", "arguments": {}}\n</tool_call>',
            ["a", "c"],
        ),
        ("hermes", '<tool_call>\n{"name": "a", "argum', []),
        ("hermes", "no call", []),
        ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}]', ["a"]),
        ("llama3", '{"name": "a", "parameters": {"x": [1]}}', ["a"]),
        ("llama3", '{"name": "a", "arguments": {}}', []),
        ("llama3", '{"some": "json"}', []),
    ],
)
def test_calls_are_found_in_texts(form: str, text: str, names: list[str]) -> None:
    from edgeinfer.runtime.llm.tools import FORMATS

    (found,) = [f for _, f in FORMATS if f.name == form]
    assert [call.name for call in found.calls(text)] == names


def test_model_without_tools_says_so() -> None:
    with pytest.raises(UsageError, match="knows no tools"):
        ToolFormat("").grammar([Tool.of(CLOCK)], "required")
    assert ToolFormat("").calls('{"name": "a", "arguments": {}}') == ()


def test_tools_that_a_template_does_not_show_are_refused(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks of tools that come otherwise: the model would never have heard of them."""
    text = "{% for m in messages %}{{ m.tools or '' }}{{ m.content }}{% endfor %}"
    model = replace(llm.model, template=ChatTemplate(text, {}))
    monkeypatch.setattr(llm, "model", model)
    with pytest.raises(UsageError, match="chat template shows no tools"):
        llm.chat_request(MESSAGES, tools=[CLOCK])


def test_odd_prompts_are_refused(llm: LLM) -> None:
    odd: Any
    for odd in ([1, "x"], [["x"]], [5.0], [None]):
        with pytest.raises(InputError, match="a text, a list of tokens or an ImagePrompt"):
            llm.generate(odd, SHORT)
    with pytest.raises(InputError, match="at most 511 tokens, received 1201"):
        llm.generate("a b " * 300, SHORT)


def test_sleep_and_wake(llm: LLM) -> None:
    before = llm.generate("the cat sat on the mat", SHORT)[0].text
    llm.sleep()
    assert llm.stats().asleep
    assert llm.generate("the cat sat on the mat", SHORT)[0].text == before
    assert not llm.stats().asleep


def test_closed_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model())
    llm = LLM("tiny.edge")
    llm.close()
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate("the cat")


def test_cache_fits_the_memory() -> None:
    config = tiny_config(context=160, head_dim=64)
    page = page_bytes(config, "float16")
    assert page == 2 * 2 * 16 * 2 * 64 * 2
    assert page_bytes(config, "uint8") < page < page_bytes(config, "float32")
    sizes = CacheSizes(sequences=4)
    assert pages_for(config, sizes, None) == 40
    assert pages_for(config, sizes, 1 << 40) == 40
    assert pages_for(config, sizes, 2 * 10 * page) == 10
    assert pages_for(config, CacheSizes(context=32, sequences=4), None) == 8
    assert pages_for(config, CacheSizes(sequences=1, cache_mb=1), 0) == 10
    with pytest.raises(MemoryBudgetError, match=r"needs .* MB at least, and half of 0 MB is there"):
        pages_for(config, sizes, page)
    with pytest.raises(UsageError, match="expected at most 160"):
        pages_for(config, CacheSizes(context=161), None)
    with pytest.raises(UsageError, match="sequences: expected at least 1"):
        pages_for(config, CacheSizes(sequences=0), None)


def test_draft_model_changes_no_text(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    expected = llm.generate("the cat", SHORT)[0].text
    with LLM("tiny.edge", draft="small.edge") as drafted:
        assert drafted.generate("the cat", SHORT)[0].text == expected


def test_draft_model_of_another_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(model(), tokenizer=TextTokenizer(byte_fallback(), 600, None), name="other")
    made = iter((model(), other))
    monkeypatch.setattr(LLM, "_open", lambda *_: next(made))
    with pytest.raises(LoadError, match="the draft model other has another vocabulary than tiny"):
        LLM("tiny.edge", draft="small.edge")


def test_forgotten_one_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model())
    forgotten = LLM("tiny.edge")
    thread = forgotten.engine._thread
    del forgotten
    gc.collect()
    assert not thread.is_alive()


def test_vectors_are_those_of_the_bundle_that_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that took its file's place meanwhile gave vectors, and the first one texts."""
    opened = [model()]
    monkeypatch.setattr(LLM, "_open", lambda *_: opened.pop())
    with LLM("tiny.edge") as made:
        assert made.embed("the cat").shape[0] == 1


def test_texts_become_vectors(llm: LLM) -> None:
    one, other = found = llm.embed(["the cat", "hello world"])
    assert found.shape == (2, llm.model.config.hidden)
    np.testing.assert_allclose(np.square(found).sum(-1), 1, rtol=1e-5)
    assert np.array_equal(llm.embed("the cat")[0], one)
    tokens = llm.model.tokenizer.encode("hello world")
    assert np.array_equal(llm.embed(tokens)[0], other)
    mean = llm.embed("the cat", pooling="mean", unit=False)
    assert not np.array_equal(mean[0], llm.embed("the cat", unit=False)[0])
    # What generates is not disturbed by it, nor the other way round.
    before = llm.generate("the cat", SHORT)[0].text
    llm.embed("hello")
    assert llm.generate("the cat", SHORT)[0].text == before


def test_a_long_text_is_read_in_parts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [3 + i % 90 for i in range(60)]
    whole = {p: llm.embed(tokens, pooling=p) for p in ("last", "mean")}
    vectors = llm._vectors
    assert vectors is not None
    monkeypatch.setattr(vectors._executor, "max_tokens", 7)
    for pooling, right in whole.items():
        assert np.array_equal(llm.embed(tokens, pooling=pooling), right)  # type: ignore[arg-type]


def test_what_has_no_vector_is_refused(llm: LLM) -> None:
    with pytest.raises(InputError, match="1 to 512 tokens"):
        llm.embed([[5] * 513])
    with pytest.raises(InputError, match="tokens from 0 to 419"):
        llm.embed([[420]])
    with pytest.raises(InputError, match="pooling"):
        llm.embed("a", pooling="first")  # type: ignore[arg-type]
    assert llm.embed([]).shape == (0, llm.model.config.hidden)
    llm.embed("a")
    llm.close()
    with pytest.raises(ClosedError):
        llm.embed("a")


def test_documents_are_judged(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no tokens 'yes' and 'no': it judges nothing"):
        llm.rank("a", ["b"])
    tokenizer = llm.model.tokenizer
    words = [p.decode() for p in tokenizer.vocabulary.bytes if p.isalpha() and p.isascii()]
    yes, no = [w for w in words if len(tokenizer.encode_part(w)) == 1][:2]
    monkeypatch.setattr(ranking, "ANSWERS", (yes, no))
    documents = ["the cat", "hello world", ""]
    scores = llm.rank("who is there", documents, instruction="find it")
    for document, score in zip(documents, scores, strict=True):
        prompt = ranking.question("who is there", document, "find it")
        assert "<Query>: who is there\n<Document>: " + document in prompt
        params = SamplingParams(max_tokens=1, temperature=0, logprobs=VOCAB, ignore_eos=True)
        (told,) = llm.generate(prompt, params)[0].outputs[0].logprobs
        chances = {token: np.exp(value) for token, value in told.top}
        one, other = (chances[tokenizer.encode_part(word)[0]] for word in (yes, no))
        assert score == pytest.approx(one / (one + other), rel=1e-4)
    assert len(set(scores.tolist())) == 3


def test_of_a_strangers_model_no_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer, its template and its numbers were read first."""
    outputs = inputs = (TensorSpec("x", "float32", (1,)),)
    with BundleWriter(tmp_path / "b.edge") as writer:
        names = ("llm.json", "generation.json", "tokenizer.json", "chat_template.jinja")
        files = tuple(writer.add_bytes(f"variants/v/{name}", b"{") for name in names)
        writer.finish(
            Manifest(
                name="m",
                inputs=inputs,
                outputs=outputs,
                vectors=(),
                variants=(Variant("v", "cpu", "llm", "fp32", files, (EngineRequirement("llm"),)),),
                source=SourceRecord("hf", "m", "ab" * 32),
            )
        )
    with pytest.raises(NotAvailableError, match="is machine code, and no trusted key signed"):
        LLM(tmp_path / "b.edge")
    with pytest.raises(BundleError, match=r"llm\.json"):
        LLM(tmp_path / "b.edge", native="allow")
