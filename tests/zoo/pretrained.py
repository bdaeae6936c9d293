# mypy: disable-error-code="misc"
"""Nets with published weights; the names of their parts are those of the checkpoints."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class FaceProposals(nn.Module):
    """P-Net of MTCNN (Zhang et al. 2016): any image, a map of boxes and of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), self.conv4_1(x).softmax(1)


class FaceRefinement(nn.Module):
    """R-Net of MTCNN: a 24x24 cut-out, its box and score."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


class FaceOutput(nn.Module):
    """O-Net of MTCNN: a 48x48 cut-out, its box, five landmarks and score."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2 = nn.Linear(256, 2), nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), self.dense6_1(x).softmax(1)


class Crepe(nn.Module):
    """Kim et al. 2018: 1024 samples, a score for each of 360 pitches."""

    def __init__(self, full: bool) -> None:
        super().__init__()
        widths = (1, 1024, 128, 128, 128, 256, 512) if full else (1, 128, 16, 16, 16, 32, 64)
        for index, (inputs, outputs) in enumerate(pairwise(widths), 1):
            kernel, stride = (512, 4) if index == 1 else (64, 1)
            self.add_module(f"conv{index}", nn.Conv2d(inputs, outputs, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{index}_BN", nn.BatchNorm2d(outputs, 0.001))
        self.features = 4 * widths[-1]
        self.classifier = nn.Linear(self.features, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for index in range(1, 7):
            sides = (254, 254) if index == 1 else (31, 32)
            x = functional.pad(x, (0, 0, *sides))
            x = functional.relu(self.get_submodule(f"conv{index}")(x))
            x = functional.max_pool2d(self.get_submodule(f"conv{index}_BN")(x), (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).reshape(-1, self.features)
        return torch.sigmoid(self.classifier(x))
