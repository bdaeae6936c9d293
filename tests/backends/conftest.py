"""What tests of several engines share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.backends.base import Artifact

Write = Callable[..., Artifact]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an ONNX model from the text of its graph, with inputs as the engine finds them."""
    onnx = pytest.importorskip("onnx")

    def made(graph: str, imports: str = '"" : 21') -> Artifact:
        model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> g {graph}")
        path = tmp_path / "model.onnx"
        onnx.save(model, str(path))
        return Artifact("onnx", path, (), ())

    return made
