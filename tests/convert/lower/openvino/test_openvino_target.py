import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.openvino.backend import OpenVinoBackend
from edgeinfer.convert.passes import input_specs, output_specs
from edgeinfer.errors import RunError, UnsupportedError, UsageError
from tests.convert.lower.running import lower, model, run_openvino

openvino = pytest.importorskip("openvino")
RNG = np.random.default_rng(0)

ODD = {
    "x": '{"1": "a b"}',
    "z": 'z"<&>',
    "y": "out/π:0",
    "t": "_",
    "u": "u,v",
    "k": "3",
    "w": "w.1",
}


def aliased() -> ir.Model:
    whole = model("""g (float[N,4] x, float[2] unused, float[N,4] z)
        => (float[N,4] y, float[N,4] t, float[N,4] u, float[2] k, float[N,4] w) <float[2] c = {1, 2}> {
        y = Identity(x)
        t = Relu(z)
        u = Identity(t)
        k = Identity(c)
        w = Max(z)
    }""")  # noqa: E501
    for value in (*whole.graph.inputs, *whole.graph.outputs):
        value.name = ODD.get(value.name or "", value.name)
    return whole


def test_names_order_and_dynamic_sizes_survive(tmp_path: Path) -> None:
    path = lower(aliased(), tmp_path, "openvino").files[0]
    core = openvino.Core()
    written = core.read_model(path)
    for ports in (written, core.compile_model(written, "CPU")):
        assert [p.get_names() for p in ports.inputs] == [{ODD["x"]}, {"unused"}, {ODD["z"]}]
        assert [p.get_names() for p in ports.outputs] == [{ODD[n]} for n in "ytukw"]
    assert [str(p.partial_shape) for p in written.inputs] == ["[?,4]", "[2]", "[?,4]"]
    x, z = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    y, t, u, k, w = run_openvino(path, x, np.zeros(2, np.float32), z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(t, np.maximum(z, 0))
    np.testing.assert_array_equal(u, t)
    np.testing.assert_array_equal(w, z)
    assert k.tolist() == [1, 2]


def test_casts_to_other_floats_and_back_write_into_no_input(tmp_path: Path) -> None:
    # The plugin drops them: an output was written into what a run of another size had been given.
    whole = model("""g (float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] r) {
        h = Cast<to = 10>(x) y = Cast<to = 1>(h)
        d = Cast<to = 11>(x) z = Cast<to = 1>(d) r = Relu(x)
    }""")
    made = lower(whole, tmp_path, "openvino")
    artifact = Artifact(made.format, made.files[0], input_specs(whole), output_specs(whole))
    executable = OpenVinoBackend().load(artifact, LoadOptions())
    given = [np.full((n, 4), n, np.float32) for n in (2, 5, 1, 9, 2)]
    for x in given:
        for got in executable.run({"x": x}).values():
            np.testing.assert_array_equal(got, np.full(x.shape, len(x)))
    executable.close()
    for x in given:
        np.testing.assert_array_equal(x, np.full(x.shape, len(x)))


def test_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    digests = [
        [hashlib.sha256(f.read_bytes()).hexdigest() for f in lower(m, tmp_path, "openvino").files]
        for m in (aliased(), aliased())
    ]
    assert digests[0] == digests[1]


def test_nothing_but_the_artifact_is_left_behind(tmp_path: Path) -> None:
    lowered = lower(aliased(), tmp_path, "openvino")
    assert [f.name for f in lowered.files] == ["model.xml", "model.bin"]
    assert sorted(tmp_path.rglob("*")) == sorted([lowered.files[0].parent, *lowered.files])


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"compress_weights": True}])
def test_half_weights_are_read_back_and_computed_in_single(
    options: dict[str, object], tmp_path: Path
) -> None:
    values = ",".join(map(str, RNG.standard_normal(64 * 64).round(3)))
    constant = f"<float[64,64] w = {{{values}}}>"
    whole = model(f"g (float[1,64] x) => (float[1,64] y) {constant} {{ y = MatMul(x, w) }}")
    plain, small = (lower(whole, tmp_path, "openvino", **o) for o in ({}, options))
    assert (plain.precision, small.precision) == ("fp32", "fp16+fp32")
    assert small.files[1].stat().st_size * 2 == plain.files[1].stat().st_size
    x = RNG.standard_normal((1, 64)).astype(np.float32)
    (a,), (b,) = (run_openvino(one.files[0], x) for one in (plain, small))
    np.testing.assert_allclose(a, b, atol=2e-2)
    assert not np.array_equal(a, b)


def test_all_problems_are_in_one_error(tmp_path: Path) -> None:
    whole = model("""g (float[2] x, string[2] s, int8[2] i) => (float[2] y, int8[2] j) {
        [foo] a = com.acme.Foo(x)
        [shift] j = BitShift<direction = "RIGHT">(i, i)
        [hann] b = NoSuchOperator(x)
        y = Add(a, b)
    }""")
    with pytest.raises(UnsupportedError) as caught:
        lower(whole, tmp_path, "openvino")
    found = {p.node: p.reason for p in caught.value.problems}
    assert found == {
        "s": "unsupported_dtype",
        "foo": "unsupported_op",
        "shift": "unsupported_dtype",
        "hann": "unsupported_op",
    }


def test_failure_of_the_whole_model_names_the_nodes(tmp_path: Path) -> None:
    whole = model(
        """g (seq(float[2]) x, bool c) => (seq(float[2]) y) {
        [map] y = SequenceMap(x) <body = b (float[2] u) => (float[2] v) { v = Relu(u) }>
    }""".replace("(x) <body", "<body").replace("}>\n", "}>(x)\n")
    )
    with pytest.raises(UnsupportedError, match="SequenceMap 'map': unsupported_op"):
        lower(whole, tmp_path, "openvino")


def test_unknown_precision_is_a_usage_error(tmp_path: Path) -> None:
    said = "precision 'fp8' cannot be written; known: bf16, fp16, fp32"
    with pytest.raises(UsageError, match=said):
        lower(aliased(), tmp_path, "openvino", precision="fp8")


def test_source_is_untouched(tmp_path: Path) -> None:
    whole = aliased()
    before = ir.to_onnx_text(whole)
    lower(whole, tmp_path, "openvino")
    assert ir.to_onnx_text(whole) == before


def test_a_rank_that_follows_from_the_sizes_is_settled_by_the_backend(tmp_path: Path) -> None:
    whole = model("g (float[N,1] x) => (float[] y) { s = Squeeze(x) y = Neg(s) }")
    whole.graph.outputs[0].shape = None
    whole.graph.outputs[0].name = 'y,"<&>'
    lowered = lower(whole, tmp_path, "openvino")
    backend = OpenVinoBackend()
    described = Artifact("openvino_ir", lowered.files[0], input_specs(whole), output_specs(whole))
    for artifact in (described, replace(described, inputs=(), outputs=())):
        executable = backend.load(artifact, LoadOptions())
        assert executable.outputs[0].shape is None
        for n in (1, 3):
            x = np.arange(1, n + 1, dtype=np.float32).reshape(n, 1)
            (y,) = executable.run({"x": x}).values()
            np.testing.assert_array_equal(y, np.squeeze(-x), strict=True)
        with pytest.raises(RunError, match="its rank follows from the sizes; use run"):
            executable.bind({"x": x}, {executable.outputs[0].name: np.empty(3, np.float32)})
        executable.close()
