"""Makes an encoder and a decoder of a Whisper or Moonshine folder of transformers, as bundles.

    python export.py FOLDER OUT --target cpu

``FOLDER`` holds what ``save_pretrained`` wrote, ``tokenizer.json`` among it. ``OUT`` then holds
``encoder.edge`` and ``decoder.edge``:

    edgeinfer run OUT/encoder.edge --then OUT/decoder.edge talk.wav

The encoder takes samples (Whisper's spectrogram is part of it) and gives keys and values of every
layer of the decoder, which are computed once for a window. The decoder takes one token a call; its
keys and values of earlier tokens are states of a fixed size.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache

import edgeinfer
from edgeinfer.media import parse_description

RATE, FFT, HOP, RANGE = 16000, 400, 160, 8.0


class Spectrogram(nn.Module):  # type: ignore[misc]
    """Whisper's logarithmic mel spectrogram, its Fourier transform as a convolution.

    Args:
        filters: (bins, mels), as the feature extractor has them.
    """

    def __init__(self, filters: np.ndarray) -> None:
        super().__init__()
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)
        angle = 2 * np.pi * np.outer(np.arange(FFT // 2 + 1), np.arange(FFT)) / FFT
        waves = np.concatenate([np.cos(angle), np.sin(angle)]) * window
        self.register_buffer("waves", torch.from_numpy(waves).float()[:, None])
        self.register_buffer("filters", torch.from_numpy(np.asarray(filters)).float().T)

    def forward(self, sound: Tensor) -> Tensor:
        """Return the bands of (1, samples): (1, mels, frames)."""
        padded = nn.functional.pad(sound[:, None], (FFT // 2, FFT // 2), mode="reflect")
        parts = nn.functional.conv1d(padded, self.waves, stride=HOP)[:, :, :-1]
        real, imaginary = parts.chunk(2, dim=1)
        levels = torch.log10((self.filters @ (real**2 + imaginary**2)).clamp(min=1e-10))
        return (torch.maximum(levels, levels.amax(dim=(1, 2), keepdim=True) - RANGE) + 4.0) / 4.0


class Encoder(nn.Module):  # type: ignore[misc]
    """Sound to the keys and values of every layer of the decoder: (layers, heads, frames, size)."""

    def __init__(self, model: Any, spectrogram: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.layers = model.model.encoder, model.model.decoder.layers
        self.spectrogram = spectrogram or nn.Identity()

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (1, samples)."""
        states = self.encoder(self.spectrogram(sound))[0]
        attentions = [layer.encoder_attn for layer in self.layers]
        keys = [_by_head(a.k_proj(states), a) for a in attentions]
        values = [_by_head(a.v_proj(states), a) for a in attentions]
        return torch.cat(keys), torch.cat(values)


def _by_head(states: Tensor, attention: Any) -> Tensor:
    return states.reshape(1, states.shape[1], -1, attention.head_dim).transpose(1, 2)


class Decoder(nn.Module):  # type: ignore[misc]
    """One token and the states of the ones before, to scores of the next and the states then."""

    def __init__(self, model: Any, most: int) -> None:
        super().__init__()
        self.decoder, self.head, self.most = model.model.decoder, model.proj_out, most
        self.register_buffer("nothing", torch.zeros(1, 1, model.config.hidden_size))

    def forward(
        self,
        ids: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        position: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take one token (1, 1) at a position (1,)."""
        places = torch.arange(self.most)
        kept = _Kept(keys, values, (places == position)[:, None])
        later = (places > position).float() * -1e9
        found = self.decoder(
            input_ids=ids,
            attention_mask=later[None, None, None],
            position_ids=position[None],
            encoder_hidden_states=self.nothing,
            cache=_Cache(kept, cross_keys, cross_values),
            use_cache=True,
        )
        return self.head(found[0]), position + 1, torch.cat(kept.keys), torch.cat(kept.values)


class _Cache(EncoderDecoderCache):  # type: ignore[misc]
    """Keys and values of the decoder's tokens, and the encoder's."""

    def __init__(self, kept: _Kept, cross_keys: Tensor, cross_values: Tensor) -> None:
        count = kept.old[0].shape[0]
        layers = [SimpleNamespace(keys=cross_keys[i], values=cross_values[i]) for i in range(count)]
        for layer in layers:
            layer.keys, layer.values = layer.keys[None], layer.values[None]
        self.self_attention_cache = kept
        self.cross_attention_cache = SimpleNamespace(layers=layers)
        self.is_updated = dict.fromkeys(range(count), True)


class _Kept:
    """Keys and values of a fixed number of tokens, the one at ``here`` replaced."""

    def __init__(self, keys: Tensor, values: Tensor, here: Tensor) -> None:
        self.old, self.here = (keys, values), here
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.is_sliding = self.is_linear = self.is_dummy = [False] * keys.shape[0]

    def update(self, key: Tensor, value: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Put a token's key and value in their place."""
        self.keys.append(torch.where(self.here, key, self.old[0][layer][None]))
        self.values.append(torch.where(self.here, value, self.old[1][layer][None]))
        return self.keys[-1], self.values[-1]

    def get_seq_length(self, *_: Any) -> int:
        """Positions are given."""
        return 0


ENCODER = """
[inputs.sound]
kind = "audio"
sample_rate = 16000
{window}
[output]
kind = "encode"
"""
DECODER = """
[inputs.ids]
kind = "tokens"
vocab_size = {vocabulary}
[inputs.cross_keys]
kind = "encoded"
[inputs.cross_values]
kind = "encoded"
[inputs.position]
kind = "state"
output = "position_next"
[inputs.keys]
kind = "state"
output = "keys_next"
[inputs.values]
kind = "state"
output = "values_next"
[output]
kind = "write_speech"
output = "scores"
vocabulary = "tokenizer.json"
begin = {prompt}
end = {end}
most = {most}
suppress = {suppress}
suppress_first = {suppress_first}
"""


def bundles(
    model: Any, tokenizer: Path, out: Path, targets: Sequence[str], filters: np.ndarray | None
) -> tuple[Path, Path]:
    """Write both bundles.

    Args:
        model: ``WhisperForConditionalGeneration`` or ``MoonshineForConditionalGeneration``.
        tokenizer: its ``tokenizer.json``.
        out: a folder.
        targets: as ``edgeinfer convert`` takes them.
        filters: of Whisper's feature extractor; None where the encoder takes samples.
    """
    out.mkdir(parents=True, exist_ok=True)
    model = model.eval()
    given, config = model.generation_config, model.config
    whisper = filters is not None
    longest = config.max_target_positions if whisper else config.max_position_embeddings
    most = min(given.max_length or longest, longest)
    samples = 2 * HOP * config.max_source_positions if whisper else RATE
    sound = torch.randn(1, samples) * 0.1
    encoder = Encoder(model, Spectrogram(filters) if filters is not None else None)
    named = ["cross_keys", "cross_values"]
    open_sizes = None if whisper else {"sound": {1: "samples"}}
    _onnx(encoder, (sound,), out / "encoder.onnx", ["sound"], named, open_sizes)
    window = f"samples = {samples}" if whisper else ""
    (out / "encoder.toml").write_text(ENCODER.format(window=window))
    with torch.no_grad():
        cross = encoder(sound)
    layers, heads, _, size = cross[0].shape
    kept = torch.zeros(layers, heads, most, size)
    step = (torch.tensor([[1]]), *cross, torch.tensor([0]), kept, kept.clone())
    inputs = ["ids", *named, "position", "keys", "values"]
    outputs = ["scores", "position_next", "keys_next", "values_next"]
    frames = None if whisper else {name: {2: "frames"} for name in named}
    _onnx(Decoder(model, most), step, out / "decoder.onnx", inputs, outputs, frames)
    prompt = _prompt(given, whisper)
    said = DECODER.format(
        vocabulary=config.vocab_size,
        prompt=json.dumps(prompt),
        end=json.dumps(np.atleast_1d(given.eos_token_id).tolist()),
        most=most - len(prompt),
        suppress=json.dumps(list(given.suppress_tokens or ()) if whisper else []),
        suppress_first=json.dumps(list(given.begin_suppress_tokens or ()) if whisper else []),
    )
    (out / "decoder.toml").write_text(said)
    (out / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    for name in ("encoder", "decoder"):
        description = parse_description(out / f"{name}.toml")
        edgeinfer.export(
            *(out / f"{name}.onnx", out / f"{name}.edge"),
            targets=targets,
            description=description,
            overwrite=True,
        )
    return out / "encoder.edge", out / "decoder.edge"


def _prompt(given: Any, whisper: bool) -> list[int]:
    """Return the first token, and for a Whisper of many languages English, text, no times."""
    prompt = [int(given.decoder_start_token_id)]
    if whisper and getattr(given, "lang_to_id", None):
        prompt += [given.lang_to_id["<|en|>"], given.task_to_id["transcribe"]]
    if whisper and getattr(given, "no_timestamps_token_id", None):
        prompt.append(given.no_timestamps_token_id)
    return prompt


def _onnx(
    module: nn.Module,
    given: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic: dict[str, dict[int, str]] | None,
) -> None:
    torch.onnx.export(
        module.eval(),
        given,
        str(path),
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes=dynamic and tuple(dynamic.get(name) for name in inputs),
        dynamo=True,
        verbose=False,
    )


def main() -> int:
    """Export a folder."""
    from transformers import AutoFeatureExtractor, AutoModelForSpeechSeq2Seq

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", action="append", required=True)
    asked = parser.parse_args()
    model = AutoModelForSpeechSeq2Seq.from_pretrained(asked.folder, attn_implementation="eager")
    filters = getattr(AutoFeatureExtractor.from_pretrained(asked.folder), "mel_filters", None)
    bundles(model, asked.folder / "tokenizer.json", asked.out, asked.target, filters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
