from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.onnxruntime import target
from edgeinfer.convert.lower.onnxruntime.probe import OnnxRuntimeProbe
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.errors import UnsupportedError, UsageError
from edgeinfer.profiles import load
from tests.convert.lower.running import lower, model, run

RNG = np.random.default_rng(0)


def network() -> ir.Model:
    values = ",".join(map(str, RNG.standard_normal(64 * 64).round(3)))
    return model(f"""g (float[N,64] x) => (float[N,64] y) <float[64,64] w = {{{values}}}> {{
        a = MatMul(x, w)
        b = Swish(a)
        y = MatMul(b, w)
    }}""")


def test_artifact_runs_and_says_what_it_needs(tmp_path: Path) -> None:
    whole = network()
    lowered = lower(whole, tmp_path)
    assert [f.name for f in lowered.files] == ["model.onnx"]
    assert lowered.precision == "fp32"
    assert lowered.ops == {"MatMul": 2, "Mul": 1, "Sigmoid": 1}
    assert [(e.backend, e.version) for e in lowered.engines] == [("onnxruntime", ">=1.18")]
    assert "written at opset 21: every node means the same as at 24" in lowered.notes
    feeds = {"x": RNG.standard_normal((2, 64)).astype(np.float32)}
    np.testing.assert_allclose(
        run(lowered.files[0], feeds)[0], run(whole, feeds)[0], rtol=1e-5, atol=1e-5
    )


def test_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    whole = network()
    for options in ({}, {"precision": "fp16"}):
        first, second = (lower(whole, tmp_path, **options).files[0] for _ in range(2))
        assert first.read_bytes() == second.read_bytes()


def test_weights_beyond_the_limit_go_into_their_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "EXTERNAL_ABOVE", 1000)
    whole = network()
    lowered = lower(whole, tmp_path)
    assert [f.name for f in lowered.files] == ["model.onnx", "model.onnx.data"]
    assert lowered.files[0].stat().st_size < 2000
    assert lowered.files[1].stat().st_size >= 64 * 64 * 4
    feeds = {"x": RNG.standard_normal((2, 64)).astype(np.float32)}
    np.testing.assert_allclose(run(lowered.files[0], feeds)[0], run(whole, feeds)[0], rtol=1e-5)
    (one,) = lower(whole, tmp_path, one_file=True).files
    np.testing.assert_allclose(run(one, feeds)[0], run(whole, feeds)[0], rtol=1e-5)
    # The source's own weights must not have been moved to the new file.
    lowered.files[1].unlink()
    run(whole, feeds)


def test_all_problems_are_in_one_error_and_nothing_is_written(tmp_path: Path) -> None:
    whole = model("""g (float[2] x, int4[2] q, float[1,1,2,2] p, int64[1,1,2,2] i, int64[4] n)
        => (float[2] y, float[A,B,C,D] u) {
        [foo] y = com.acme.Foo(x)
        [unpool] u = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(p, i, n)
    }""")
    with pytest.raises(UnsupportedError) as caught:
        lower(whole, tmp_path)
    assert {p.node: p.reason for p in caught.value.problems} == {
        "q": "unsupported_dtype",
        "foo": "unsupported_op",
        "unpool": "unsupported_attribute",
    }
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_operator_without_kernel_is_written_by_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = OnnxRuntimeProbe.fault
    monkeypatch.setattr(
        OnnxRuntimeProbe,
        "fault",
        lambda self, node, of: (
            "no" if node.op_type == "ThresholdedRelu" else kernels(self, node, of)
        ),
    )
    whole = model("g (float[8] x) => (float[8] y) { [e] y = ThresholdedRelu<alpha = 0.5>(x) }")
    lowered = lower(whole, tmp_path)
    assert "ThresholdedRelu" not in lowered.ops
    assert any("ThresholdedRelu: no kernel" in note for note in lowered.notes)
    assert not any(n.metadata_props for n in (*whole.graph, *ir.load(lowered.files[0]).graph))
    x = RNG.standard_normal(8).astype(np.float32)
    expected = np.where(x > 0.5, x, 0)
    np.testing.assert_allclose(run(lowered.files[0], {"x": x})[0], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_bernoulli_draws_one_with_probability_p(kind: str, tmp_path: Path) -> None:
    """ONNX's definition, which ONNX Runtime inlines, draws one with probability 1 - p."""
    dtype = np.float32 if kind == "float" else np.float64
    whole = model(f"g ({kind}[N] x) => (int32[N] y) {{ y = Bernoulli<dtype = 6, seed = 1.0>(x) }}")
    path = lower(whole, tmp_path).files[0]
    p = np.repeat(np.asarray([0, 1, 0.25], dtype), 4000)
    (y,) = run(path, {"x": p})
    assert y.dtype == np.int32
    assert y[:4000].tolist() == [0] * 4000
    assert y[4000:8000].tolist() == [1] * 4000
    assert abs(y[8000:].mean() - 0.25) < 0.03


def test_newer_version_than_the_kernels_know_is_written_as_an_older_one(tmp_path: Path) -> None:
    text = """g (uint8[2,3] x) => (float[2,3] y)
        <float[3] s = {0.5, 1, 2}, uint8[3] z = {0, 1, 2}> {
        y = DequantizeLinear<axis = 1>(x, s, z)
    }"""
    lowered = lower(model(text, opset=28), tmp_path)
    x = np.asarray([[1, 2, 3], [4, 5, 6]], np.uint8)
    (y,) = run(lowered.files[0], {"x": x})
    assert y.tolist() == [[0.5, 1, 2], [2, 4, 8]]


def test_what_a_definition_lacks_is_told_of_the_node_that_the_user_knows(tmp_path: Path) -> None:
    whole = model("g (double[2] x) => (double[2] y) { [mine] y = Gelu(x) }")
    with pytest.raises(UnsupportedError, match="Erf 'mine': unsupported_dtype: "):
        lower(whole, tmp_path)


def test_unknown_precision_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision 'int3' cannot be written; known: fp16, fp32"):
        lower(network(), tmp_path, precision="int3")


def test_source_is_untouched(tmp_path: Path) -> None:
    whole = network()
    before = ir.to_onnx_text(whole)
    lower(whole, tmp_path)
    assert ir.to_onnx_text(whole) == before


@pytest.mark.parametrize(
    ("name", "precision", "keys", "fused"),
    [
        ("cuda", "fp32", 197, False),
        ("cuda", "fp16", 197, True),
        ("cuda", "fp32", 1024, True),
        ("onnxruntime", "fp32", 197, True),
    ],
)
def test_attention_is_products_where_the_engine_is_faster_so(
    name: str, precision: str, keys: int, fused: bool, tmp_path: Path
) -> None:
    shape = f"float[1,2,{keys},4]"
    model = ir.from_onnx_text(
        f'<ir_version: 12, opset_import: ["" : 24]> g ({shape} q, {shape} k, {shape} v) '
        f"=> ({shape} y) {{ y = Attention(q, k, v) }}"
    )
    lowered = target_for("onnx").lower(model, load(name), LowerOptions(precision), tmp_path)
    assert ("Attention" in lowered.ops) is fused
    assert any("products" in note for note in lowered.notes) is not fused
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((1, 2, keys, 4)).astype(np.float32) for n in "qkv"}
    session = import_onnxruntime().InferenceSession(
        lowered.files[0], providers=["CPUExecutionProvider"]
    )
    got = session.run(None, feeds)[0]
    scores = feeds["q"] @ feeds["k"].swapaxes(2, 3) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ feeds["v"]
    np.testing.assert_allclose(got, expected, atol=5e-3 if precision == "fp16" else 1e-5)


@pytest.mark.parametrize(
    ("given", "width"), [("q, k, v, mask, , , lengths", 3), ("q, k, v, mask, past, past", 5)]
)
def test_a_mask_over_fewer_keys_than_there_are_is_filled_up(
    given: str, width: int, tmp_path: Path
) -> None:
    whole = model(f"""g (float[1,2,2,8] q, float[1,2,5,8] k, float[1,2,5,8] v,
        float[2,{width}] mask, float[1,2,1,8] past, int64[1] lengths) => (float[1,2,2,8] y)
        {{ y = Attention({given}) }}""")
    feeds = {
        v.name: RNG.standard_normal(v.shape.numpy()).astype(np.float32)
        for v in whole.graph.inputs
        if v.name and v.shape is not None
    }
    feeds["lengths"] = np.array([3])
    (found,) = run(lower(whole, tmp_path).files[0], feeds)
    past = feeds["past"] if "past" in given else np.zeros((1, 2, 0, 8), np.float32)
    keys, values = (np.concatenate([past, feeds[n]], 2) for n in "kv")
    scores = feeds["q"] @ keys.swapaxes(2, 3) / np.sqrt(8)
    scores = scores[..., :width] + feeds["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, weights @ values[:, :, :width], rtol=1e-4, atol=1e-5)


def test_places_from_the_end_are_picked(tmp_path: Path) -> None:
    whole = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 24, "ai.onnx.ml" : 3]>
        g (float[2,4] x, int64[1,3] i) => (float[2,3] y)
        { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }"""
    )
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    (found,) = run(lower(whole, tmp_path).files[0], {"x": x, "i": np.array([[-1, 0, 2]])})
    np.testing.assert_array_equal(found, x[:, [-1, 0, 2]])
