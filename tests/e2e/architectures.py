"""Architectures in small configurations, with random weights: a module and its inputs each.

From transformers where it has them, from timm, or a few lines of our own where neither is installed
from the registries without a repository of weights.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

Built = tuple[Any, tuple[Any, ...]]


class _Outputs(nn.Module):  # type: ignore[misc, name-defined]
    """A model of transformers, with tensors in and out."""

    def __init__(self, model: Any, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names, self.wanted = model, names, wanted

    def forward(self, *tensors: Any) -> Any:
        made = self.model(**dict(zip(self.names, tensors, strict=True)))
        found = tuple(getattr(made, name) for name in self.wanted)
        return found if len(found) > 1 else found[0]


class _One(_Outputs):
    def forward(self, first: Any) -> Any:
        return super().forward(first)


def _timm(name: str, size: int, **options: Any) -> Built:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("could not import 'timm'")
    with _stand_in_for_torchvision():
        import timm
    model = timm.create_model(name, pretrained=False, num_classes=7, **options)
    return model, (torch.rand(1, 3, size, size),)


_MODES = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS", "NEAREST_EXACT")


class _Anything(types.ModuleType):
    """A module of which every name is a class: timm's data part is imported, and never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Of an enumeration its members are requested, too.
        return type(name, (), {m: m for m in _MODES})


@contextlib.contextmanager
def _stand_in_for_torchvision() -> Iterator[None]:
    """Let timm be imported next to a PyTorch that torchvision is not made for."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    parts: tuple[str, ...] = (
        "",
        ".transforms",
        ".transforms.functional",
        ".datasets",
        ".datasets.folder",
        ".ops",
    )
    parts += (".ops.misc", ".models", ".models.feature_extraction", ".transforms.v2")
    made = {f"torchvision{part}": _Anything(f"torchvision{part}") for part in parts}
    for name, module in made.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, module)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def _transformers() -> Any:
    return pytest.importorskip("transformers")


# ---- images


def mobilenet_v4_hybrid() -> Built:
    return _timm("mobilenetv4_hybrid_medium", 96)


def dino_v3() -> Built:
    t = _transformers()
    c = t.DINOv3ViTConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=64,
        num_register_tokens=4,
    )
    return _One(t.DINOv3ViTModel(c), ("pixel_values",), ("last_hidden_state",)), (
        torch.rand(1, 3, 64, 64),
    )


def swin_v2() -> Built:
    t = _transformers()
    c = t.Swinv2Config(
        image_size=64, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return _One(t.Swinv2ForImageClassification(c), ("pixel_values",), ("logits",)), (
        torch.rand(1, 3, 64, 64),
    )


def convnext_v2() -> Built:
    t = _transformers()
    c = t.ConvNextV2Config(hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, num_labels=5)
    return _One(t.ConvNextV2ForImageClassification(c), ("pixel_values",), ("logits",)), (
        torch.rand(1, 3, 64, 64),
    )


def efficient_vit() -> Built:
    return _timm("efficientvit_b0", 64)


def fast_vit() -> Built:
    return _timm("fastvit_t8", 64)


def _detector(kind: str, gain: float = 0.0) -> Built:
    t = _transformers()
    backbone = t.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 40],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
        out_indices=[2, 3, 4],
    )
    about: dict[str, Any] = {
        "backbone_config": backbone,
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [24, 32, 40],
        "encoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "d_model": 32,
        "num_queries": 20,
        "decoder_in_channels": [32, 32, 32],
        "decoder_ffn_dim": 48,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "num_labels": 6,
        "anchor_image_size": [64, 64],
        "use_pretrained_backbone": False,
        "backbone": None,
    }
    c = getattr(t, f"{kind}Config")(**about)
    model = getattr(t, f"{kind}ForObjectDetection")(c)
    for weight in model.parameters():
        if gain and weight.dim() > 1:
            torch.nn.init.xavier_normal_(weight, gain=gain)
    return _One(model, ("pixel_values",), ("logits", "pred_boxes")), (torch.rand(1, 3, 64, 64),)


def rt_detr_v2() -> Built:
    # As it draws its weights, features shrink to 1e-8, and rounding alone chooses the queries.
    return _detector("RTDetrV2", gain=2.0)


def d_fine() -> Built:
    return _detector("DFine")


def sam2_encoder() -> Built:
    t = _transformers()
    backbone = t.Sam2HieraDetConfig(
        hidden_size=16,
        num_attention_heads=1,
        image_size=[128, 128],
        blocks_per_stage=[1, 1, 2, 1],
        embed_dim_per_stage=[16, 32, 64, 128],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[4, 2, 4, 2],
        global_attention_blocks=[3],
        window_positional_embedding_background_size=[4, 4],
    )
    c = t.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[128, 64, 32, 16],
        fpn_hidden_size=32,
        backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]],
    )
    return _One(t.Sam2VisionModel(c), ("pixel_values",), ("last_hidden_state",)), (
        torch.rand(1, 3, 128, 128),
    )


def depth_anything() -> Built:
    t = _transformers()
    backbone = t.Dinov2Config(
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=3,
        mlp_ratio=2,
        image_size=56,
        patch_size=14,
        out_features=["stage1", "stage2", "stage3", "stage4"],
        reshape_hidden_states=False,
    )
    c = t.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=48,
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
    )
    return _One(t.DepthAnythingForDepthEstimation(c), ("pixel_values",), ("predicted_depth",)), (
        torch.rand(1, 3, 56, 56),
    )


class SuperPoint(nn.Module):  # type: ignore[misc, name-defined]
    """Key points and descriptors, and attention between those of two images (LightGlue)."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (1, 16, 32, 32)
        self.body = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(sizes)
        )
        self.points, self.words = nn.Conv2d(32, 65, 1), nn.Conv2d(32, 32, 1)
        self.mix = nn.MultiheadAttention(32, 4, batch_first=True)
        self.place = nn.Linear(2, 16, bias=False)

    def _features(self, x: Any) -> Any:
        for layer in self.body:
            x = F.max_pool2d(torch.relu(layer(x)), 2)
        scores = torch.softmax(self.points(x), 1)[:, :-1]
        h, w = scores.shape[2:]
        scores = F.pixel_shuffle(scores, 8)
        best = F.max_pool2d(scores, 9, 1, 4)
        scores = torch.where(scores == best, scores, torch.zeros_like(scores))
        top, index = scores.flatten(1).topk(24, dim=1)
        place = torch.stack((index % (w * 8), index // (w * 8)), -1).float()
        grid = place / torch.tensor([w * 4.0, h * 4.0]) - 1
        words = F.grid_sample(self.words(x), grid[:, None], align_corners=False)[:, :, 0]
        words = F.normalize(words, dim=1).transpose(1, 2)
        turn = self.place(grid)
        cos, sin = (f(turn).repeat_interleave(2, -1) for f in (torch.cos, torch.sin))
        half = torch.stack((-words[..., 1::2], words[..., ::2]), -1).flatten(-2)
        return top, words * cos + half * sin

    def forward(self, one: Any, other: Any) -> Any:
        (first, a), (second, b) = self._features(one), self._features(other)
        a = a + self.mix(a, b, b)[0]
        scores = a @ b.transpose(1, 2)
        both = torch.log_softmax(scores, 1) + torch.log_softmax(scores, 2)
        return first, second, both.max(2).values


def superpoint_lightglue() -> Built:
    return SuperPoint(), (torch.rand(1, 1, 64, 64), torch.rand(1, 1, 64, 64))


# ---- sound


def _whisper() -> Any:
    t = _transformers()
    return t.WhisperForConditionalGeneration(
        t.WhisperConfig(
            vocab_size=99,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_mel_bins=20,
            max_source_positions=40,
            max_target_positions=30,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def whisper_encoder() -> Built:
    model = _whisper().model.encoder
    return _One(model, ("input_features",), ("last_hidden_state",)), (torch.rand(1, 20, 80),)


class _Step(nn.Module):  # type: ignore[misc, name-defined]
    """A decoder over all tokens so far, and the encoder's result."""

    def __init__(self, decoder: Any, head: Any) -> None:
        super().__init__()
        self.decoder, self.head = decoder, head

    def forward(self, ids: Any, states: Any) -> Any:
        made = self.decoder(input_ids=ids, encoder_hidden_states=states, use_cache=False)
        return self.head(made.last_hidden_state[:, -1])


def whisper_decoder_step() -> Built:
    model = _whisper()
    step = _Step(model.model.decoder, model.proj_out)
    return step, (torch.tensor([[1, 5, 7, 9]]), torch.rand(1, 40, 32))


def _moonshine() -> Any:
    t = _transformers()
    return t.MoonshineForConditionalGeneration(
        t.MoonshineConfig(
            vocab_size=99,
            hidden_size=32,
            intermediate_size=48,
            encoder_num_hidden_layers=2,
            decoder_num_hidden_layers=2,
            encoder_num_attention_heads=4,
            decoder_num_attention_heads=4,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            decoder_start_token_id=1,
        )
    )


def moonshine_encoder() -> Built:
    encoder = _moonshine().model.encoder
    return _One(encoder, ("input_values",), ("last_hidden_state",)), (torch.rand(1, 8000) - 0.5,)


def moonshine_decoder_step() -> Built:
    model = _moonshine()
    step = _Step(model.model.decoder, model.proj_out)
    return step, (torch.tensor([[1, 5, 7, 9]]), torch.rand(1, 20, 32))


class Zipformer(nn.Module):  # type: ignore[misc, name-defined]
    """A chunk of a streaming Zipformer: cached attention and convolution at half the rate."""

    def __init__(self, width: int = 32, heads: int = 4, left: int = 8) -> None:
        super().__init__()
        self.heads, self.left = heads, left
        self.ask, self.value = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.out, self.gate = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 7, groups=width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))
        self.scale = nn.Parameter(torch.ones(width))
        self.weight = nn.Parameter(torch.zeros(2))
        self.place = nn.Parameter(torch.rand(heads, 64))

    def forward(self, x: Any, keys: Any, values: Any, past: Any) -> Any:
        whole = x
        weight = torch.softmax(self.weight, 0)
        x = (x.unflatten(1, (-1, 2)) * weight[:, None]).sum(2)
        query, key = self.ask(x).chunk(2, -1)
        key, value = torch.cat((keys, key), 1), torch.cat((values, self.value(x)), 1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (query, key, value))
        scores = q @ k.transpose(2, 3)
        length, total = scores.shape[2:]
        shift = torch.arange(total)[None] - torch.arange(length)[:, None] + length - 1
        scores = scores + self.place[:, shift]
        made = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        x = x + self.out(made)
        a, b = self.gate(x).chunk(2, -1)
        wide = torch.cat((past, (a * torch.sigmoid(b)).transpose(1, 2)), 2)
        x = x + F.silu(self.conv(wide)).transpose(1, 2)
        x = x + self.feed(x)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * self.scale
        x = whole + x.repeat_interleave(2, 1)
        return x, key[:, -self.left :], value[:, -self.left :], wide[:, :, -6:]


def zipformer_streaming() -> Built:
    cache = (torch.rand(1, 8, 32), torch.rand(1, 8, 32), torch.rand(1, 32, 6))
    return Zipformer(), (torch.rand(1, 16, 32), *cache)


class _Codec(nn.Module):  # type: ignore[misc, name-defined]
    """The codes of sound, and sound again."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        codes = self.model.encode(x).audio_codes
        return codes, self.model.decode(audio_codes=codes).audio_values


def dac() -> Built:
    t = _transformers()
    c = t.DacConfig(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=32,
        upsampling_ratios=[4, 2],
        n_codebooks=2,
        codebook_size=32,
        codebook_dim=4,
        hidden_size=32,
    )
    return _Codec(t.DacModel(c)), (torch.rand(1, 1, 160) - 0.5,)


class Vocoder(nn.Module):  # type: ignore[misc, name-defined]
    """The end of Kokoro: magnitude and phase by snake activations, and sound by an inverse STFT."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(20, 32, 7, padding=3)
        self.up = nn.ConvTranspose1d(32, 16, 8, 4, padding=2)
        self.alpha = nn.Parameter(torch.ones(1, 16, 1))
        self.last = nn.Conv1d(16, 22, 7, padding=3)
        self.register_buffer("window", torch.hann_window(20))

    def forward(self, mel: Any) -> Any:
        x = self.up(F.leaky_relu(self.first(mel), 0.1))
        x = x + torch.sin(x * self.alpha) ** 2 / self.alpha
        x = self.last(F.pad(x, (1, 0), mode="reflect"))
        size, phase = torch.exp(x[:, :11]), torch.sin(x[:, 11:])
        return torch.istft(size * torch.exp(phase * 1j), 20, 5, 20, window=self.window)


def kokoro_vocoder() -> Built:
    return Vocoder(), (torch.rand(1, 20, 16),)


# ---- series


def patch_tst() -> Built:
    t = _transformers()
    c = t.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        prediction_length=6,
        d_model=16,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=32,
    )
    return _One(t.PatchTSTForPrediction(c), ("past_values",), ("prediction_outputs",)), (
        torch.rand(1, 32, 3),
    )


ARCHITECTURES: tuple[Callable[[], Built], ...] = (
    mobilenet_v4_hybrid,
    dino_v3,
    swin_v2,
    convnext_v2,
    efficient_vit,
    fast_vit,
    rt_detr_v2,
    d_fine,
    sam2_encoder,
    depth_anything,
    whisper_encoder,
    whisper_decoder_step,
    moonshine_encoder,
    moonshine_decoder_step,
    zipformer_streaming,
    dac,
    kokoro_vocoder,
    superpoint_lightglue,
    patch_tst,
)
