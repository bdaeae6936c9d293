"""A PyTorch module to a bundle, with a batch axis that stays free.

Prints the largest difference to PyTorch for two batch sizes.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

import edgeinfer

if importlib.util.find_spec("torch") is None:
    print('skipped: PyTorch is not installed; pip install "edgeinfer[torch]"')
    sys.exit(0)

import torch


class Classifier(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.SiLU(),
            torch.nn.Conv2d(8, 16, 3, stride=2, padding=1),
            torch.nn.GELU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        )
        self.head = torch.nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.features(image)).softmax(dim=-1)
        return result


def main() -> None:
    torch.manual_seed(0)
    module = Classifier().eval()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "classifier.edge")
        edgeinfer.export(
            module,
            bundle,
            example_inputs=(torch.zeros(2, 3, 32, 32),),
            dynamic_shapes={"image": {0: "batch"}},
        )
        with edgeinfer.load(bundle) as session:
            print("input:", session.inputs[0])
            for batch in (1, 5):
                x = np.random.default_rng(0).normal(size=(batch, 3, 32, 32)).astype(np.float32)
                with torch.no_grad():
                    expected = module(torch.from_numpy(x)).numpy()
                difference = float(np.abs(session(x) - expected).max())
                print(f"batch {batch}: within 1e-6 of PyTorch: {difference < 1e-6}")


if __name__ == "__main__":
    main()
