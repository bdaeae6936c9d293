"""What onnx's inference follows has a bound, and is enough for the sizes of models."""

import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.followed import hide, show
from edgeinfer.convert.passes.inference import infer_shapes
from tests.convert.passes.rewriting import parse

SIDE = 46_341
COMPUTED = "s = Shape(x) m = Mul(s, s)"
DOUBLED = " ".join(f"a{i + 1} = Concat<axis=0>(a{i}, a{i})" for i in range(28))
MANY = " ".join(f"b{i} = Add(v, v)" for i in range(20_000))

LONG = {
    "a result": f"(float[{SIDE}] x) => (float[L] y) {{ {COMPUTED} v = ConstantOfShape(m)"
    " w = Concat<axis=0>(v, v) y = Add(w, w) }",
    "repeated": f"(float[{SIDE}] x) => (float[L] y) <float[1] o = {{1}}> {{ {COMPUTED}"
    " v = Expand(o, m) y = Add(v, v) }",
    "counted": f"(float[{SIDE}] x) => (int64[L] y) <int64 z = {{0}}, int64 o = {{1}}> {{ {COMPUTED}"
    " t = Squeeze(m) v = Range(z, t, o) y = Add(v, v) }",
    "reshaped": f"(float[{SIDE}] x, float[A,B] w) => (float[L] y) {{ {COMPUTED}"
    " v = Reshape(w, m) y = Sub(v, v) }",
    "in a body": f"(float[{SIDE}] x, bool c) => (float[L] y) {{ {COMPUTED}"
    " v = ConstantOfShape(m) y = If(c) <then_branch = t () => (float[L] o) { o = Add(v, v) },"
    " else_branch = e () => (float[L] p) { q = ConstantOfShape(m) p = Mul(q, q) }> }",
    "found by another": f"(float[{SIDE}] x) => (float[L] y) {{ {COMPUTED} a = ConstantOfShape(s)"
    " b = Shape(a) c = Mul(b, b) d = ConstantOfShape(c) e = Add(d, d) k = Shape(e)"
    " y = ConstantOfShape(k) }",
    "of two axes": "(float[3] x) => (int64[L,1] y) <int64[1] z = {1}> { s = Shape(x)"
    f" a0 = Unsqueeze(s, z) {DOUBLED} y = Identity(a28) }}",
    "many": f"(float[256] x) => (float[256] y) {{ v = Neg(x) {MANY} y = Neg(b7) }}",
}

MEASURED = """
import resource, sys, onnx
from edgeinfer.convert.passes.inference import infer_shapes
models = list(map(onnx.load, sys.argv[1:]))
infer_shapes(onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
                                     'g (float[2] x) => (float[2] y) { y = Neg(x) }'))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for model in models:
    infer_shapes(model)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_vectors_of_any_length_take_little(tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate(LONG.values()):
        paths.append(f"{tmp_path}/{number}.onnx")
        onnx.save(ir.to_proto(parse(f"g {text}")), paths[-1])
    command = [sys.executable, "-c", MEASURED, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, done.stderr[-500:]
    grown = dict(zip(LONG, map(int, done.stdout.split()), strict=True))
    assert max(grown.values()) < 100_000, grown


def test_sizes_that_follow_from_sizes_are_found() -> None:
    """A length that is found by following is followed in its turn, as exporters need it."""
    proto = ir.to_proto(
        parse(
            "g (float[2,N,4] x) => (float[A] y) <int64[1] less = {-1}> {"
            " s = Shape(x) r = Shape(s) ones = ConstantOfShape<value = int64[1] {1}>(r)"
            " both = Concat<axis=0>(ones, less) size = Shape(both) y = ConstantOfShape(size)"
            " t = ConstantOfShape(s) z = Add(t, t) }"
        )
    )
    found = infer_shapes(proto)
    info = {v.name: v.type.tensor_type.shape.dim for v in found.graph.value_info}
    assert info["both"][0].dim_value == 4
    assert found.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 4
    assert [d.dim_value for d in info["z"]] == [2, 0, 4]


def test_what_was_hidden_is_shown_again() -> None:
    proto = ir.to_proto(parse("g (float[N] x, float[M] z) => (float[N] y) { y = Add(x, z) }"))
    trial = onnx.ModelProto()
    trial.CopyFrom(proto)
    hidden = hide(trial)
    assert len(hidden.operands) == len(hidden.unknown) == 2
    assert trial != proto
    show(trial, hidden)
    assert trial == proto
