"""Whisper and Moonshine through the pipeline say what transformers says, on real speech."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.tasks import SpeechTranscriber
from tests.runtime.pipelines.test_speech import byte_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("soundfile")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parent.parent
WORDS = 300
SPEECH = ROOT / "examples" / "pi_listen" / "alexa.wav"


def exporter() -> Any:
    path = ROOT / "examples" / "speech_to_text" / "export.py"
    spec = importlib.util.spec_from_file_location("speech_export", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def livelier(model: Any) -> Any:
    """Let random weights tell tokens apart: as they are, each text is one token over and over."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1 and "encoder.embed_positions" not in name:
                share = 1.0 if "embed" in name else weights.shape[-1] ** -0.5
                weights.copy_(torch.randn(weights.shape, generator=rng) * share)
        model.proj_out.weight.copy_(torch.randn(WORDS, model.config.hidden_size, generator=rng))
    return model.eval()


SMALL = {
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "attn_implementation": "eager",
    "tie_word_embeddings": False,
}


def whisper() -> Any:
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48)
    places = {"max_source_positions": 50, "max_target_positions": 24}
    config = transformers.WhisperConfig(d_model=32, num_mel_bins=20, **sizes, **places, **SMALL)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.max_length = 24
    model.generation_config.suppress_tokens = [5, 6]
    model.generation_config.begin_suppress_tokens = [7]
    return livelier(model)


def moonshine() -> Any:
    heads = dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 4)
    layers = dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 24}
    config = transformers.MoonshineConfig(**sizes, **heads, **layers, **SMALL)
    model = transformers.MoonshineForConditionalGeneration(config)
    model.generation_config.max_length = 24
    return livelier(model)


def greedy(model: Any, given: dict[str, Any]) -> list[int]:
    """Say the likeliest token after the other, all of them computed anew each time."""
    config = model.generation_config
    said = [1]
    while len(said) < 24:
        with torch.no_grad():
            scores = model(**given, decoder_input_ids=torch.tensor([said])).logits[0, -1].clone()
        first = (config.begin_suppress_tokens or []) if len(said) == 1 else []
        scores[[*(config.suppress_tokens or []), *first]] = -torch.inf
        said.append(int(scores.argmax()))
        if said[-1] == 2:
            return said[1:-1]
    return said[1:]


def sound() -> np.ndarray:
    import soundfile

    samples, rate = soundfile.read(SPEECH, dtype="float32")
    assert rate == 16000
    return np.asarray(samples if samples.ndim == 1 else samples.mean(axis=1))


def test_whisper_says_what_transformers_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = whisper()
    extractor = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1)
    file = tmp_path / "words.json"
    words = byte_tokenizer(file)
    made = exporter().bundles(model, file, tmp_path, ["onnxruntime"], extractor.mel_filters)
    expected = []
    for start in range(0, len(sound()), 16000):
        window = sound()[start : start + 16000]
        features = extractor(window, sampling_rate=16000, return_tensors="pt").input_features
        expected.append(greedy(model, {"input_features": features}))
    assert len({token for said in expected for token in said}) > 10
    texts = [words.decode(said, skip_special_tokens=True).strip() for said in expected]
    with SpeechTranscriber(*made) as speech:
        assert speech.transcribe(sound(), 16000) == " ".join(texts)


def test_moonshine_says_what_transformers_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, file = moonshine(), tmp_path / "words.json"
    words = byte_tokenizer(file)
    made = exporter().bundles(model, file, tmp_path, ["onnxruntime"], None)
    with torch.no_grad():
        said = model.generate(input_values=torch.from_numpy(sound())[None], do_sample=False)
    assert len(set(said[0].tolist())) > 10
    with SpeechTranscriber(*made) as speech:
        for _ in range(2):  # states begin anew
            assert speech.transcribe(SPEECH) == words.decode(said[0], skip_special_tokens=True)
