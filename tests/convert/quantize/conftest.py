from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.profiles.schema import Quantization

LIMITS = Quantization(
    format="onnx",
    ops=("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "Concat", "Sigmoid"),
    moves=("MaxPool", "Reshape", "Transpose", "Flatten", "Split", "Pad", "Resize"),
    per_channel=("Conv", "Gemm", "MatMul"),
    activations="uint8",
    joined=("Concat",),
)


def graph(text: str, **weights: np.ndarray) -> ir.Model:
    """A model from ONNX text; ``weights`` name what is constant in it."""
    model = ir.from_onnx_text(text)
    known = {v.name: v for n in model.graph for v in n.inputs if v is not None}
    for name, array in weights.items():
        value = known[name]
        value.const_value = ir.tensor(array, name=name)
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)
        model.graph.register_initializer(value)
    for i, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_{i}"
    InferShapes()(model)
    return model


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A detector whose boxes (0..640) and scores (0..1) meet in one Concat, and 80 images."""
    return made(tmp_path_factory.mktemp("detector"), "Sigmoid(cls)", -1.0)


@pytest.fixture(scope="session")
def clipped_detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same, its scores clipped: every engine has integers for all of the head."""
    return made(tmp_path_factory.mktemp("clipped"), "Clip(cls, zero, one)", 0.4)


def made(folder: Path, score: str, bias: float) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)

    def weights(*shape: int, gain: float = 2.0) -> np.ndarray:
        size = gain / np.sqrt(np.prod(shape[1:]))
        return np.asarray(rng.normal(size=shape) * size, np.float32)

    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        detector (float[1,3,64,64] images) => (float[1,24,64] predictions)
        <float[16,3,3,3] w1, float[32,16,3,3] w2, float[32,32,3,3] w3, float[4,32,1,1] wb,
         float[4] bb, float[20,32,1,1] wc, float[20] bc>
        {
          a = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1)
          ar = Relu(a)
          c = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2)
          cr = Relu(c)
          d = Conv<pads=[1,1,1,1], strides=[2,2]>(cr, w3)
          dr = Relu(d)
          box = Conv(dr, wb, bb)
          boxr = Relu(box)
          cls = Conv(dr, wc, bc)
          score = SCORE
          both = Concat<axis=1>(boxr, score)
          shape = Constant<value_ints=[1,24,64]>()
          predictions = Reshape(both, shape)
        }""".replace("SCORE", score),
        w1=weights(16, 3, 3, 3),
        w2=weights(32, 16, 3, 3),
        w3=weights(32, 32, 3, 3),
        wb=np.abs(weights(4, 32, 1, 1, gain=200.0)),
        bb=np.full(4, 200, np.float32),
        wc=weights(20, 32, 1, 1),
        bc=np.full(20, bias, np.float32),
        **(
            {}
            if "zero" not in score
            else {n: np.full((), v, np.float32) for n, v in (("zero", 0), ("one", 1))}
        ),
    )
    ir.save(model, folder / "detector.onnx")
    pictures = [np.kron(rng.normal(size=(3, 8, 8)), np.ones((8, 8))) for _ in range(80)]
    padded = [np.pad(p, ((0, 0), (3, 3), (3, 3)), mode="edge") for p in pictures]
    windows = np.lib.stride_tricks.sliding_window_view
    smooth = [windows(p, (7, 7), (1, 2)).mean((-1, -2)) for p in padded]
    np.savez(folder / "pictures.npz", images=np.stack(smooth)[:, None].astype(np.float32))
    return folder / "detector.onnx", folder / "pictures.npz"
