# mypy: disable-error-code="misc"
"""Image nets in plain ``torch.nn``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution without bias, then batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class InvertedResidual(nn.Module):
    """Expand, depthwise, optional squeeze-and-excite, project (MobileNets, EfficientNets)."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: type[nn.Module],
        squeeze: nn.Module | None = None,
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        if hidden != inputs:
            parts += [conv(inputs, hidden, 1), activation()]
        parts += [conv(hidden, hidden, kernel, stride, hidden), activation()]
        if squeeze is not None:
            parts.append(squeeze)
        parts.append(conv(hidden, outputs, 1))
        self.body = nn.Sequential(*parts)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class SqueezeExcite(nn.Module):
    """Scale channels by a gate of their means."""

    def __init__(
        self,
        channels: int,
        inner: int = 0,
        activation: type[nn.Module] = nn.ReLU,
        gate: type[nn.Module] = nn.Hardsigmoid,
    ) -> None:
        super().__init__()
        inner = inner or max(8, channels // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            activation(),
            nn.Conv2d(inner, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, table 2."""

    ROWS = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [conv(3, 32, 3, 2), nn.ReLU6()]
        channels = 32
        for expand, outputs, repeats, first in self.ROWS:
            for index in range(repeats):
                stride = first if index == 0 else 1
                hidden = channels * expand
                parts.append(InvertedResidual(channels, hidden, outputs, 3, stride, nn.ReLU6))
                channels = outputs
        parts += [conv(channels, 1280, 1), nn.ReLU6()]
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return y


class MobileNetV3(nn.Module):
    """Howard et al. 2019, tables 1 and 2."""

    LARGE = (
        (3, 16, 16, False, nn.ReLU, 1),
        (3, 64, 24, False, nn.ReLU, 2),
        (3, 72, 24, False, nn.ReLU, 1),
        (5, 72, 40, True, nn.ReLU, 2),
        (5, 120, 40, True, nn.ReLU, 1),
        (5, 120, 40, True, nn.ReLU, 1),
        (3, 240, 80, False, nn.Hardswish, 2),
        (3, 200, 80, False, nn.Hardswish, 1),
        (3, 184, 80, False, nn.Hardswish, 1),
        (3, 184, 80, False, nn.Hardswish, 1),
        (3, 480, 112, True, nn.Hardswish, 1),
        (3, 672, 112, True, nn.Hardswish, 1),
        (5, 672, 160, True, nn.Hardswish, 2),
        (5, 960, 160, True, nn.Hardswish, 1),
        (5, 960, 160, True, nn.Hardswish, 1),
    )
    SMALL = (
        (3, 16, 16, True, nn.ReLU, 2),
        (3, 72, 24, False, nn.ReLU, 2),
        (3, 88, 24, False, nn.ReLU, 1),
        (5, 96, 40, True, nn.Hardswish, 2),
        (5, 240, 40, True, nn.Hardswish, 1),
        (5, 240, 40, True, nn.Hardswish, 1),
        (5, 120, 48, True, nn.Hardswish, 1),
        (5, 144, 48, True, nn.Hardswish, 1),
        (5, 288, 96, True, nn.Hardswish, 2),
        (5, 576, 96, True, nn.Hardswish, 1),
        (5, 576, 96, True, nn.Hardswish, 1),
    )

    def __init__(self, large: bool, classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [conv(3, 16, 3, 2), nn.Hardswish()]
        channels = 16
        for kernel, hidden, outputs, squeeze, activation, stride in (
            self.LARGE if large else self.SMALL
        ):
            gate = SqueezeExcite(hidden) if squeeze else None
            parts.append(
                InvertedResidual(channels, hidden, outputs, kernel, stride, activation, gate)
            )
            channels = outputs
        last, inner = 6 * channels, 1280 if large else 1024
        parts += [conv(channels, last, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(last, inner), nn.Hardswish(), nn.Linear(inner, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(x))
        return y


class EfficientNetB0(nn.Module):
    """Tan and Le 2019, table 1: SiLU, and squeeze-and-excite in every block."""

    ROWS = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [conv(3, 32, 3, 2), nn.SiLU()]
        channels = 32
        for expand, kernel, first, outputs, repeats in self.ROWS:
            for index in range(repeats):
                hidden = channels * expand
                gate = SqueezeExcite(hidden, channels // 4, nn.SiLU, nn.Sigmoid)
                stride = first if index == 0 else 1
                parts.append(
                    InvertedResidual(channels, hidden, outputs, kernel, stride, nn.SiLU, gate)
                )
                channels = outputs
        parts += [conv(channels, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(x))
        return y


class Residual(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 (He et al. 2016)."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            self.body = nn.Sequential(
                conv(inputs, width, 1),
                nn.ReLU(),
                conv(width, width, 3, stride),
                nn.ReLU(),
                conv(width, outputs, 1),
            )
        else:
            self.body = nn.Sequential(
                conv(inputs, width, 3, stride), nn.ReLU(), conv(width, width, 3)
            )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18, -34 (plain) and -50, -101, -152 (bottleneck)."""

    def __init__(self, depths: tuple[int, ...], bottleneck: bool, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                blocks.append(Residual(channels, width, stride, bottleneck))
                channels = width * 4 if bottleneck else width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.pool(self.blocks(self.stem(x))).flatten(1))
        return y


class YoloHead(nn.Module):
    """Three scales, SiLU, upsampling, and boxes decoded from distance distributions."""

    BINS = 8

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        self.classes = classes
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), nn.SiLU(), conv(b, b, 3), nn.SiLU())
            for a, b in ((3, 16), (16, 32), (32, 64), (64, 96), (96, 128))
        )
        self.reduce = nn.ModuleList([conv(128 + 96, 64, 1), conv(64 + 64, 64, 1)])
        channels = (64, 64, 128)
        self.boxes = nn.ModuleList(nn.Conv2d(c, 4 * self.BINS, 1) for c in channels)
        self.scores = nn.ModuleList(nn.Conv2d(c, classes, 1) for c in channels)
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        small, middle, large = features[4], features[3], features[2]
        up = functional.interpolate(small, scale_factor=2.0, mode="nearest")
        middle = functional.silu(self.reduce[0](torch.cat((up, middle), 1)))
        up = functional.interpolate(middle, scale_factor=2.0, mode="nearest")
        large = functional.silu(self.reduce[1](torch.cat((up, large), 1)))
        boxes, scores = [], []
        for index, (level, stride) in enumerate(((large, 8), (middle, 16), (small, 32))):
            boxes.append(self._decode(self.boxes[index](level), stride))
            scores.append(self.scores[index](level).flatten(2).sigmoid())
        return torch.cat(boxes, 2), torch.cat(scores, 2)

    def _decode(self, raw: Tensor, stride: int) -> Tensor:
        """Expected distances to the four sides, as corners in pixels; (batch, 4, cells)."""
        height, width = raw.shape[2:]
        shares = raw.unflatten(1, (4, self.BINS)).flatten(3).softmax(2)
        left, top, right, bottom = torch.einsum("nsbc,b->nsc", shares, self.bins).unbind(1)
        ys = torch.arange(height, dtype=raw.dtype) + 0.5
        xs = torch.arange(width, dtype=raw.dtype) + 0.5
        y, x = (grid.flatten() for grid in torch.meshgrid(ys, xs, indexing="ij"))
        return torch.stack((x - left, y - top, x + right, y + bottom), 1) * stride


class UNet(nn.Module):
    """Two levels down, two transposed convolutions up (Ronneberger et al. 2015)."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._double(3, 16), self._double(16, 32)])
        self.bottom = self._double(32, 64)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 4, 2, 1)]
        )
        self.merge = nn.ModuleList([self._double(64, 32), self._double(32, 16)])
        self.head = nn.Conv2d(16, outputs, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(conv(inputs, outputs), nn.ReLU(), conv(outputs, outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat((grow(x), skip), 1))
        y: Tensor = self.head(x)
        return y


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm over channels, two linear layers, a learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over axis 1 of an image."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Liu et al. 2022, ConvNeXt-T made narrow and short."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, 32, 4, 4), ChannelNorm(32, eps=1e-6)]
        for inputs, outputs in ((32, 64), (64, 128)):
            parts += [ConvNeXtBlock(inputs), ChannelNorm(inputs, eps=1e-6)]
            parts.append(nn.Conv2d(inputs, outputs, 2, 2))
        parts.append(ConvNeXtBlock(128))
        self.features = nn.Sequential(*parts)
        self.head = nn.Sequential(nn.LayerNorm(128, eps=1e-6), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.features(x).mean((2, 3)))
        return y


class Oddities(nn.Module):
    """What plain classifiers lack: grouped and dilated convolutions, other norms, shuffles."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 24, 3, 2), nn.InstanceNorm2d(24, affine=True)
        )
        self.grouped = nn.Sequential(nn.PReLU(24), nn.Conv2d(24, 48, 3, padding=1, groups=4))
        self.dilated = nn.Sequential(
            nn.GroupNorm(6, 48), nn.ELU(), nn.Conv2d(48, 48, 3, padding=2, dilation=2)
        )
        self.grow = nn.ConvTranspose2d(48, 24, 3, 2, 1, output_padding=1, groups=3)
        self.pixels = nn.Sequential(nn.Conv2d(24, 32, 1), nn.PixelShuffle(2), nn.LeakyReLU(0.1))
        self.head = nn.Linear(8 * 4, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.grouped(self.stem(x))
        y = y.unflatten(1, (4, 12)).transpose(1, 2).flatten(1, 2)
        y = y + self.dilated(y)
        y = functional.avg_pool2d(y, 3, 2, 1, count_include_pad=False)
        y = functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        y = self.pixels(self.grow(y))
        left, right = y.chunk(2, 1)
        y = torch.cat((right * left.sigmoid(), functional.softplus(left)), 1)
        pooled = torch.cat((y.amax((2, 3)), y.mean((2, 3)), y.std((2, 3)), y[:, :, 1, 2]), 1)
        return self.head(pooled), y
