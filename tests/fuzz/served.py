"""What strangers send to a server: bodies of requests, read but not run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from edgeinfer.types import TensorSpec
from tests.fuzz import mutate

if TYPE_CHECKING:
    from tests.fuzz.readers import Act, Reader

_SPECS = (
    TensorSpec("x", "float32", ("n", 3)),
    TensorSpec("k", "int64", (2,)),
    TensorSpec("t", "string", (2,)),
)
_TENSORS: list[dict[str, Any]] = [
    {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [[1, 2, 3], [4, 5, 6]]},
    {"name": "k", "shape": [2], "datatype": "INT64", "data": [1, 2]},
    {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
]
_BINARY: list[dict[str, Any]] = [
    {k: v for k, v in tensor.items() if k != "data"} | {"parameters": {"binary_data_size": size}}
    for tensor, size in zip(_TENSORS, (24, 16, 10), strict=True)
]
_RAW = bytes(40) + b"\x01\0\0\0a\x01\0\0\0b"
_CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "the cat"}]},
    ],
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 5,
    "seed": 3,
    "stop": ["x"],
    "logit_bias": {"5": 1.5},
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "me",
}
_COMPLETION = {
    "model": "tiny",
    "prompt": ["the cat", "sat"],
    "max_tokens": 5,
    "n": 2,
    "echo": False,
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
}


def readers() -> Iterator[Reader]:
    """Make them."""
    from edgeinfer.runtime.serve import tensors
    from tests.fuzz.readers import Reader

    def infer(body: bytes) -> None:
        size = int.from_bytes(body[:4], "little")
        tensors.read(body[4:], size or None, _SPECS, _SPECS, 1 << 26, is_shared=True)

    ways: list[Callable[[bytes, random.Random], bytes]] = [_in_body, _in_body, mutate.in_bytes]
    plain = bytes(4) + _text({"inputs": _TENSORS, "id": "1"})
    head = _text({"inputs": _BINARY, "outputs": [{"name": "x", "parameters": {}}]})
    place = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 24}
    there = [{**_BINARY[0], "parameters": place}, *_TENSORS[1:]]
    shared = bytes(4) + _text({"inputs": there, "outputs": [{"name": "x", "parameters": place}]})
    binary = len(head).to_bytes(4, "little") + head + _RAW
    yield Reader("infer", ".body", [plain, binary, shared], ways, [_answered(infer)])
    llm = _llm()
    ways = [mutate.in_json, mutate.in_bytes]
    for name, seed in (("chats", _CHAT), ("completions", _COMPLETION)):
        yield Reader(name, ".json", [_text(seed)], ways, [_answered(_asked(llm, name))])


def _text(data: object) -> bytes:
    return json.dumps(data).encode()


def _in_body(raw: bytes, rng: random.Random) -> bytes:
    """Change the JSON in front of raw tensors; half the time its length is told as it is."""
    size = int.from_bytes(raw[:4], "little")
    text, rest = (raw[4 : 4 + size], raw[4 + size :]) if size else (raw[4:], b"")
    changed = mutate.in_json(text, rng)
    if size and rng.random() < 0.8:
        size = len(changed)
    return size.to_bytes(4, "little") + changed + rest


def _llm() -> Any:
    from edgeinfer.runtime.llm.llm import LLM
    from tests.runtime.llm.test_llm import model

    with mock.patch.object(LLM, "_open", return_value=model()):
        return LLM("tiny.edge")


def _asked(llm: Any, name: str) -> Callable[[bytes], None]:
    from edgeinfer.runtime.llm.grammar import Grammars
    from edgeinfer.runtime.llm.grammar_trial import is_plain
    from edgeinfer.runtime.serve import asked
    from edgeinfer.runtime.serve.http import RequestError, from_json

    tokenizer = llm.model.tokenizer
    grammars = Grammars(tokenizer.json, tokenizer.vocab, (2,))

    def read(body: bytes) -> None:
        data = from_json(body)
        if not isinstance(data, dict):
            raise RequestError(400, "expected an object")
        more = {"most": 1 << 26} if name == "chats" else {}
        for found in getattr(asked, name)(llm, data, "id", **more):
            found.request.params.fits(tokenizer.vocab)
            grammar = found.request.params.grammar
            # Others are tried in a process of their own, which they may end.
            if grammar is not None and is_plain(grammar):
                grammars.matcher(grammar).allowed()

    return read


def _answered(read: Callable[[bytes], None]) -> Act:
    """Count as the server does: what it cannot name is a bug."""
    from edgeinfer.cli.failures import BUG
    from edgeinfer.runtime.serve.http import status_of

    def act(path: Path) -> int:
        try:
            read(path.read_bytes())
        except Exception as e:
            return BUG if status_of(e).status >= 500 else 1
        return 0

    return act
