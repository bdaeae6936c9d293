"""A VITS voice through the pipeline says what transformers says, letter by letter and sample by
sample."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edgeinfer.media.description import parse_description
from edgeinfer.media.symbols import SymbolTable
from edgeinfer.tasks import Speaker
from edgeinfer.types import SymbolInput

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parent.parent
LETTERS = {letter: i for i, letter in enumerate("k abcdefghijlmnopqrstuvwxyz'-ţX")}
TEXTS = ("make", "King Kong's kayak", " a B-c! ", "Xylophon, MAX", "kk", "ab  cd", "k", "rețţea")


def exporter() -> Any:
    path = ROOT / "examples" / "text_to_speech" / "export.py"
    spec = importlib.util.spec_from_file_location("voice_export", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokenizer(folder: Path, **said: Any) -> Any:
    (folder / "vocab.json").write_text(json.dumps(LETTERS))
    return transformers.VitsTokenizer(folder / "vocab.json", phonemize=False, **said)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"pad_token": "k"},
        {"add_blank": False, "unk_token": "X"},
        {"language": "ron", "pad_token": "k"},
    ],
)
def test_ids_are_those_of_the_tokenizer(tmp_path: Path, said: dict[str, Any]) -> None:
    """Also where a special token is a letter, as MMS-TTS has it."""
    theirs = tokenizer(tmp_path, **said)
    table, records = exporter()._described(theirs, [], 16000)
    (tmp_path / "symbols.json").write_text(table, "utf-8")
    (tmp_path / "voice.toml").write_text(records, "utf-8")
    description = parse_description(tmp_path / "voice.toml")
    record = description.preprocessing["ids"]
    assert isinstance(record, SymbolInput)
    ours = SymbolTable(description.files["symbols.json"], record)
    for text in TEXTS:
        assert ours.encode(text).ids[0].tolist() == theirs(text)["input_ids"], text


def voice(**said: Any) -> Any:
    """A small one, whose sounds have lengths of their own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 48}
    sizes |= {"flow_size": 32, "spectrogram_bins": 17, "upsample_initial_channel": 32}
    ups = {"upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8]}
    blocks = {"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]]}
    few = dict.fromkeys(
        (
            "depth_separable_channels",
            "prior_encoder_num_flows",
            "prior_encoder_num_wavenet_layers",
            "posterior_encoder_num_wavenet_layers",
            "duration_predictor_num_flows",
        ),
        2,
    )
    more = {"duration_predictor_flow_bins": 4, "duration_predictor_filter_channels": 32}
    config = transformers.VitsConfig(
        vocab_size=len(LETTERS),
        wavenet_dilation_rate=1,
        **sizes,
        **ups,
        **blocks,
        **few,
        **more,
        **said,
    )
    model = transformers.VitsModel(config).eval()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # As they are, each symbol lasts one frame, or by rounding two.
        for weights in model.duration_predictor.parameters():
            deviation = 0.3 if weights.ndim > 1 else 0.2
            weights.copy_(torch.randn(weights.shape, generator=rng) * deviation)
    return model


def said(model: Any, ids: list[int], **more: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids]), **more).waveform[0])


def test_a_voice_without_noise(tmp_path: Path) -> None:
    model, words = voice(num_speakers=3, speaker_embedding_size=8), tokenizer(tmp_path)
    path = exporter().bundle(
        model, words, tmp_path / "v.edge", ["onnxruntime"], noise=False, speaker=2
    )
    model.noise_scale = model.noise_scale_duration = 0.0
    with Speaker(path) as speaker:
        for text in TEXTS:
            sound = speaker.say(text)
            expected = said(model, words(text)["input_ids"], speaker_id=2)
            assert sound.rate == model.config.sampling_rate
            assert sound.samples.shape == expected.shape
            assert expected.std() > 0.1
            np.testing.assert_allclose(sound.samples, expected, rtol=0, atol=1e-4)
        assert speaker.say("a!").left_out == ("!",)


def test_a_voice_with_noise(tmp_path: Path) -> None:
    """The reference draws what the seeds of the bundle give."""
    model, words = voice(), tokenizer(tmp_path, pad_token="k")
    export = exporter()
    path = export.bundle(model, words, tmp_path / "v.edge", ["onnxruntime"])
    size = (1, model.config.flow_size, export.FRAMES)
    latents = torch.from_numpy(np.random.default_rng(0).standard_normal(size).astype(np.float32))

    def durations(*size: int) -> Any:
        drawn = np.random.default_rng(1).standard_normal(size)
        return torch.from_numpy(drawn.astype(np.float32))

    def frames(wanted: Any) -> Any:
        return latents[:, :, : wanted.shape[2]]

    with Speaker(path) as speaker:
        for text in TEXTS:
            sound = speaker.say(text)
            ids = words(text)["input_ids"]
            with mock.patch.multiple(torch, randn=durations, randn_like=frames):
                expected = said(model, ids)
            silent = said(model, ids)
            assert sound.samples.shape == expected.shape
            np.testing.assert_allclose(sound.samples, expected, rtol=0, atol=1e-4)
            # Other noise, other sound.
            assert silent.shape != expected.shape or abs(silent - expected).max() > 0.01


def test_a_voice_that_romanises_is_refused(tmp_path: Path) -> None:
    words = tokenizer(tmp_path, is_uroman=True)
    with pytest.raises(SystemExit, match="uroman"):
        exporter().bundle(None, words, tmp_path / "v.edge", ["onnxruntime"])
