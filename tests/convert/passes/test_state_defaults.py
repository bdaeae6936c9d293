import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert.passes import normalise


@pytest.mark.parametrize("bins", [9, 16])
def test_a_transform_is_onesided_unless_told_otherwise(bins: int) -> None:
    told = "" if bins == 9 else "<onesided=0>"
    model = graph(
        f"(float[1,40,1] x) => (float y) {{ y = STFT{told}(x, hop, window) }}",
        hop=np.array(8),
        window=np.ones(16, np.float32),
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    made = normalise(ir.from_proto(model)).model
    assert made.graph.outputs[0].shape == ir.Shape([1, 4, bins, 2])
    x = np.random.default_rng(0).standard_normal((1, 40, 1)).astype(np.float32)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = ReferenceEvaluator(ir.to_proto(made)).run(None, {"x": x})
    assert got.shape == (1, 4, bins, 2)
    np.testing.assert_array_equal(got, want)
