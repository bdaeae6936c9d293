"""Recordings to texts: a model that hears and one that writes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.manifest import StateRecord
from edgeinfer.errors import BundleError, DamagedError, RunError, UsageError
from edgeinfer.heads import Encode, Features, WriteSpeech
from edgeinfer.media.description import Description
from edgeinfer.results import Text
from edgeinfer.runtime.pipelines import SpeechPipeline
from edgeinfer.tasks import SpeechTranscriber
from edgeinfer.types import AudioInput, EncodedInput, FrameInput, TokenInput
from tests.runtime.pipelines.conftest import MakeBundle

RATE = 100
WORDS = ["<s>", "</s>", "ab", "cd", "ef", "gh"]
VOCABULARY = {
    "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(WORDS)}, "merges": []},
    "decoder": {"type": "Fuse"},
    "added_tokens": [
        {"id": i, "content": WORDS[i], "special": True, "normalized": False} for i in (0, 1)
    ],
}

_NUMBERS = itertools.count()

HEARS = """
hears (float[1,N] sound) => (float[1,T,1] frames) {
  shape = Constant <value = int64[3] {1, -1, 1}> ()
  frames = Reshape (sound, shape)
}
"""
"""Each sample is a frame."""

WRITES = """
writes (int64[1,L] tokens, float[1,T,1] frames) => (float[1,L,6] scores) {
  axis = Constant <value = int64[1] {1}> ()
  here = Shape <start = 1> (tokens)
  zero = Constant <value = int64[1] {0}> ()
  said = Slice (frames, zero, here, axis)
  last = Constant <value = float[6] {0, 1, 2, 3, 4, 5}> ()
  away = Sub (said, last)
  far = Abs (away)
  scores = Neg (far)
}
"""
"""The frame of a place names the token that comes behind it."""

REPEATS = """
writes (int64[1,L] tokens, float[1,T,1] frames) => (float[1,L,6] scores) {
  shape = Constant <value = int64[3] {1, -1, 1}> ()
  each = Reshape (tokens, shape)
  number = Cast <to = 1> (each)
  none = Sub (number, number)
  said = Add (none, frames)
  last = Constant <value = float[6] {0, 1, 2, 3, 4, 5}> ()
  away = Sub (said, last)
  far = Abs (away)
  scores = Neg (far)
}
"""
"""The only frame names every token."""

ONE_BY_ONE = """
writes (int64[1,1] tokens, float[1,T,1] frames, int64[1] place)
    => (float[1,1,6] scores, int64[1] next) {
  axis = Constant <value = int64[1] {1}> ()
  one = Constant <value = int64[1] {1}> ()
  next = Add (place, one)
  said = Slice (frames, place, next, axis)
  last = Constant <value = float[6] {0, 1, 2, 3, 4, 5}> ()
  away = Sub (said, last)
  far = Abs (away)
  scores = Neg (far)
}
"""


def head(**more: Any) -> WriteSpeech:
    return WriteSpeech(**{"vocabulary": "tokenizer.json", "begin": (0,), "end": (1,), **more})


def bundles(
    make: MakeBundle,
    graph: str = WRITES,
    said: WriteSpeech | None = None,
    vocabulary: bytes = json.dumps(VOCABULARY).encode(),
    sound: AudioInput | None = None,
    **more: Any,
) -> tuple[Path, Path]:
    sound, number = sound or AudioInput(RATE), next(_NUMBERS)
    hears = make(f"hears{number}", HEARS, head=Features(), preprocessing={"sound": sound})
    records = {"tokens": TokenInput(6), "frames": FrameInput()}
    writes = make(
        *(f"writes{number}", graph, {"tokenizer.json": vocabulary}),
        head=said or head(),
        preprocessing=records,
        **more,
    )
    return hears, writes


def samples(*tokens: int) -> np.ndarray:
    """A recording that says tokens."""
    return np.array([*tokens, *[1] * 8], np.float32)


def heard(paths: tuple[Path, Path], *sounds: np.ndarray, rate: int = RATE) -> list[list[Text]]:
    with edgeinfer.pipeline(*paths) as speech:
        assert isinstance(speech, SpeechPipeline)
        found = [speech(sound, rate) for sound in sounds]
    return [[each for each in one if isinstance(each, Text)] for one in found]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_is_said_is_written(make: MakeBundle, one_by_one: bool) -> None:
    more: dict[str, Any] = {}
    if one_by_one:
        more = {"states": (StateRecord("place", "next"),), "said": head(output="scores")}
    paths = bundles(make, ONE_BY_ONE if one_by_one else WRITES, **more)
    # The tokens of one recording leave nothing to the next.
    (first,), (second,), (third,) = heard(paths, *[samples(2, 5, 3)] * 2, samples(3))
    assert (first.text, third.text) == ("abghcd", "cd")
    assert first == second
    assert 0 < first.score < 1


def test_nothing_said_is_no_text(make: MakeBundle) -> None:
    assert heard(bundles(make), samples()) == [[]]


def test_a_text_has_an_end(make: MakeBundle) -> None:
    long = samples(*[4] * 40)
    assert heard(bundles(make, said=head(most=3)), long)[0][0].text == "ef" * 3
    assert heard(bundles(make, said=head(per_second=10.0)), long)[0][0].text == "ef" * 5


def test_a_text_is_no_longer_than_what_can_be_said(make: MakeBundle) -> None:
    # A window of a hundredth of a second, and three thousand tokens of it as the head has it.
    one = AudioInput(RATE, 1)
    ((found,),) = heard(bundles(make, REPEATS, sound=one), np.full(2, 4, np.float32))
    assert found.text == " ".join(["ef" * 16] * 2)


def test_windows_that_overlap_are_refused(make: MakeBundle) -> None:
    paths = bundles(make, sound=AudioInput(RATE, 50, 10))
    with pytest.raises(UsageError, match="do not overlap, received one of 50 samples each 10"):
        heard(paths, samples(2))


def test_windows_are_written_one_by_one(make: MakeBundle) -> None:
    paths = bundles(make, sound=AudioInput(RATE, 4))
    ((found,),) = heard(paths, np.array([2, 3, 1, 1, 4, 1, 1, 1, 5, 1], np.float32))
    assert found.text == "abcd ef gh"


def test_what_does_not_fit_is_refused(make: MakeBundle) -> None:
    with pytest.raises(DamagedError, match=r"tokenizer.json: no tokenizer.json"):
        heard(bundles(make, vocabulary=b"{}"), samples(2))
    with pytest.raises(UsageError, match="takes one token, and keeps nothing"):
        heard(bundles(make, WRITES.replace("int64[1,L]", "int64[1,1]")), samples(2))
    with pytest.raises(BundleError, match="begin: expected 1 to 64 tokens"):
        bundles(make, said=head(begin=()))


def encoded(make: MakeBundle, hears: Any = None, **more: Any) -> tuple[Path, Path]:
    """Bundles of which the first encodes for the second."""
    sound, number = {"sound": AudioInput(RATE)}, next(_NUMBERS)
    records = {"tokens": TokenInput(6), "frames": EncodedInput()}
    files = {"tokenizer.json": json.dumps(VOCABULARY).encode()}
    return (
        make(f"hears{number}", HEARS, head=hears or Encode(), preprocessing=sound),
        make(f"writes{number}", WRITES, files, head=head(**more), preprocessing=records),
    )


def test_what_is_encoded_is_given_as_it_is(make: MakeBundle) -> None:
    ((found,),) = heard(encoded(make), samples(2, 5, 3))
    assert found.text == "abghcd"
    with SpeechTranscriber(*encoded(make)) as speech:
        assert speech.transcribe(samples(3), RATE) == "cd"


def test_suppressed_tokens_do_not_come(make: MakeBundle) -> None:
    # The nearest of the others, of equals the lowest.
    ((found,),) = heard(encoded(make, suppress=(5,), suppress_first=(2, 3)), samples(3, 5, 2))
    assert found.text == "efefab"
    with pytest.raises(RunError, match="every token is suppressed"):
        heard(encoded(make, suppress=tuple(range(6))), samples(3))


def test_frames_are_not_what_is_encoded(make: MakeBundle) -> None:
    with pytest.raises(UsageError, match=r"takes 'frames', which .* does not give"):
        heard(encoded(make, Features()), samples(2))
    hears, writes = encoded(make)[0], bundles(make)[1]
    with pytest.raises(UsageError, match=r"takes frames, which .* does not give"):
        heard((hears, writes), samples(2))


def test_a_token_beyond_the_vocabulary_is_an_error(make: MakeBundle) -> None:
    small = {**VOCABULARY, "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "ab": 2}}}
    with pytest.raises(RunError, match="token 5 of a vocabulary of 3"):
        heard(bundles(make, vocabulary=json.dumps(small).encode()), samples(5))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_decoder_writes_what_its_package_writes(tmp_path: Path) -> None:
    """A tiny Moonshine of chance's weights, exported, next to transformers' greedy generation."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json")
    torch.manual_seed(0)
    config = transformers.MoonshineConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.3 * torch.randn_like(parameter))

    class Hears(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, sound: Any) -> Any:
            return model.model.encoder(sound).last_hidden_state

    class Writes(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, tokens: Any, frames: Any) -> Any:
            given = {"input_ids": tokens, "encoder_hidden_states": frames, "use_cache": False}
            return model.proj_out(model.model.decoder(**given).last_hidden_state)

    sounds = [torch.randn(1, 16000), 0.1 * torch.randn(1, 9000)]
    dim = torch.export.Dim
    shared: dict[str, Any] = {"targets": ["onnxruntime"]}
    hears = edgeinfer.export(
        *(Hears().eval(), tmp_path / "hears.edge"),
        example_inputs={"sound": sounds[0]},
        dynamic_shapes={"sound": {1: dim("samples", min=3200, max=160000)}},
        description=Description({"sound": AudioInput(16000)}, Features()),
        **shared,
    )
    with torch.no_grad():
        frames = Hears()(sounds[0])
    files = {"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()}
    records: dict[str, Any] = {"tokens": TokenInput(300), "frames": FrameInput()}
    writes = edgeinfer.export(
        *(Writes().eval(), tmp_path / "writes.edge"),
        example_inputs={"tokens": torch.tensor([[0, 5, 7]]), "frames": frames},
        dynamic_shapes={
            "tokens": {1: dim("length", min=1, max=190)},
            "frames": {1: dim("heard", min=2, max=1000)},
        },
        description=Description(records, head(most=24), files=files),
        **shared,
    )
    texts = heard((hears.path, writes.path), *(s[0].numpy() for s in sounds), rate=16000)
    for sound, (found,) in zip(sounds, texts, strict=True):
        right = model.generate(sound, max_new_tokens=24, do_sample=False, num_beams=1)
        assert len(set(right[0].tolist())) > 3
        assert found.text == tokenizer.decode(right[0], skip_special_tokens=True).strip()


def byte_tokenizer(path: Path) -> Any:
    """A tokenizer of bytes and two special tokens, of 300 tokens."""
    tokenizers, transformers = (
        pytest.importorskip("tokenizers"),
        pytest.importorskip("transformers"),
    )
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "</s>", *letters, *(f"Ġw{i}" for i in range(300 - 2 - len(letters)))]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({n: i for i, n in enumerate(names)}, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(path))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
