"""Makes a bundle that speaks of a VITS or MMS-TTS folder of transformers.

    python export.py FOLDER OUT.edge --target cpu
    edgeinfer run OUT.edge "Good morning." -o morning.wav

``FOLDER`` holds what ``save_pretrained`` wrote: the model, ``vocab.json`` and
``tokenizer_config.json``. The numbers that a voice draws at random are inputs of the model, which
the bundle fills by a seed: the same text sounds the same every time. ``--noise zero`` draws none,
which sounds flatter; ``--speaker`` takes one of a model of several.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers.models.vits import modeling_vits

import edgeinfer
from edgeinfer.media import parse_description

FRAMES = 2048
"""Frames of sound until the noise repeats: half a minute of most voices."""

LENGTH = 13
"""Symbols of the text that is traced; any number is right afterwards."""


class Voice(nn.Module):  # type: ignore[misc]
    """Ids of symbols to samples, all that is drawn given.

    Args:
        model: ``VitsModel``.
        speaker: number of one of several.
    """

    def __init__(self, model: Any, speaker: int | None) -> None:
        super().__init__()
        self.model, self.speaker = model, speaker

    def forward(
        self, ids: Tensor, latents: Tensor | None = None, durations: Tensor | None = None
    ) -> Tensor:
        """Speak (1, symbols): (1, samples)."""
        with _given(latents, durations):
            found: Tensor = self.model(input_ids=ids, speaker_id=self.speaker).waveform
        return found


@contextlib.contextmanager
def _given(latents: Tensor | None, durations: Tensor | None) -> Iterator[None]:
    """Let the model take noise instead of drawing it, zeros where there is none.

    Its splines pick elements by a mask, of which no graph knows the size: here all are computed,
    and those outside are left as they are.
    """

    def like(wanted: Tensor) -> Tensor:
        if latents is None:
            return torch.zeros_like(wanted)
        return latents[:, :, torch.arange(wanted.shape[2]) % latents.shape[2]]

    def sized(*size: int) -> Tensor:
        return torch.zeros(size) if durations is None else durations

    with (
        mock.patch.object(modeling_vits, "_unconstrained_rational_quadratic_spline", _spline),
        mock.patch.object(modeling_vits, "torch_compilable_check", _unchecked),
        mock.patch.object(torch, "randn_like", like),
        mock.patch.object(torch, "randn", sized),
    ):
        yield


def _unchecked(*_: object) -> None:
    """Stand in for a check of values, which a graph cannot hold."""


def _spline(
    inputs: Tensor,
    widths: Tensor,
    heights: Tensor,
    derivatives: Tensor,
    reverse: bool = False,
    tail_bound: float = 5.0,
    least: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    edge = torch.full_like(derivatives[..., :1], math.log(math.expm1(1 - least)))
    derivatives = torch.cat([edge, derivatives, edge], dim=-1)
    held = inputs.clamp(-tail_bound, tail_bound)
    found, scale = modeling_vits._rational_quadratic_spline(
        *(held, widths, heights, derivatives, reverse, tail_bound), *(least,) * 3
    )
    inside = held == inputs
    return torch.where(inside, found, inputs), torch.where(inside, scale, 0.0)


RECORDS = """
[inputs.ids]
kind = "symbols"
vocabulary = "symbols.json"
begin = {blank}
after = {blank}
marks = {marks}
lower = {normal}
unknown = "{unknown}"
trim = {normal}
{noise}
[output]
kind = "speak"
sample_rate = {rate}
"""
NOISE = """
[inputs.{name}]
kind = "noise"
seed = {seed}
"""


def bundle(
    model: Any,
    tokenizer: Any,
    out: Path,
    targets: Sequence[str],
    *,
    noise: bool = True,
    speaker: int | None = None,
) -> Path:
    """Write the bundle.

    Args:
        model: ``VitsModel``.
        tokenizer: its ``VitsTokenizer``.
        out: path of the bundle.
        targets: as ``edgeinfer convert`` takes them.
        noise: whether anything is drawn.
        speaker: number of one of several.
    """
    if tokenizer.is_uroman:
        raise SystemExit(f"{out.name}: this voice reads a text in Latin letters made by uroman")
    config = model.config
    given = {"ids": torch.randint(0, config.vocab_size, (1, LENGTH))}
    if noise:
        given["latents"] = torch.randn(1, config.flow_size, FRAMES)
    if noise and config.use_stochastic_duration_prediction:
        given["durations"] = torch.randn(1, 2, LENGTH)
    symbols = torch.export.Dim("symbols", min=2)
    sizes = {"ids": {1: symbols}, "latents": None, "durations": {2: symbols}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.onnx.export(
            Voice(model, speaker).eval(),
            tuple(given.values()),
            str(folder / "voice.onnx"),
            input_names=list(given),
            output_names=["samples"],
            dynamic_shapes=tuple(sizes[name] for name in given),
            dynamo=True,
            verbose=False,
        )
        table, records = _described(tokenizer, [*given][1:], config.sampling_rate)
        (folder / "symbols.json").write_text(table, "utf-8")
        (folder / "voice.toml").write_text(records, "utf-8")
        description = parse_description(folder / "voice.toml")
        edgeinfer.export(
            *(folder / "voice.onnx", out),
            targets=targets,
            description=description,
            overwrite=True,
        )
    return out


def _described(tokenizer: Any, noise: Sequence[str], rate: int) -> tuple[str, str]:
    """Return the table of symbols and the pipeline file of a voice."""
    table = dict(tokenizer.encoder)
    if tokenizer.language == "ron" and "ţ" in table:
        table["ț"] = table["ţ"]
    special = {*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}
    # Of a voice that reads phonemes they are what is given; none of them is left out.
    is_normal = tokenizer.normalize and not tokenizer.phonemize
    records = RECORDS.format(
        blank="[0]" if tokenizer.add_blank else "[]",
        marks=json.dumps(sorted(s for s in special & table.keys() if len(s) == 1)),
        normal=str(bool(is_normal)).lower(),
        unknown="skip" if is_normal else "refuse",
        noise="".join(NOISE.format(name=n, seed=i) for i, n in enumerate(noise)),
        rate=rate,
    )
    return json.dumps(table), records


def main() -> int:
    """Export a folder."""
    from transformers import VitsModel, VitsTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--noise", choices=("seeded", "zero"), default="seeded")
    parser.add_argument("--speaker", type=int)
    asked = parser.parse_args()
    model = VitsModel.from_pretrained(asked.folder)
    tokenizer = VitsTokenizer.from_pretrained(asked.folder)
    has_noise = asked.noise == "seeded"
    bundle(*(model, tokenizer, asked.out, asked.target), noise=has_noise, speaker=asked.speaker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
