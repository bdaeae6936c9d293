"""Two oracles, a vote where they differ, and plain words where one is missing."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import input_specs
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify import operators as evaluation
from edgeinfer.convert.verify import oracles as module
from edgeinfer.convert.verify.decided import compared
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.convert.verify.locate import disputed_node
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.witness import Abstains, Numpy, OnnxRuntime
from edgeinfer.errors import RunError, VerifyError
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array, Feeds, TensorSpec

GOLDEN = Path(__file__).parents[2] / "golden"
X = np.array([0.5, 2.0], np.float32)


def model(text: str, imports: str = '"": 20') -> ir.Model:
    return ir.from_onnx_text(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")


NEGATE = "g (float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }"


class Liar:
    """A witness that is off by one."""

    def __init__(self, name: str, model: ir.Model) -> None:
        self.name, self._honest = name, Numpy(model, wide=True, seconds=60)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        return {k: v + 1 for k, v in self._honest.run(feeds).items()}

    def close(self) -> None:
        pass


class Silent:
    name = "silent"

    def run(self, feeds: Feeds) -> dict[str, Array]:
        raise Abstains("nothing to say")

    def close(self) -> None:
        pass


def test_both_agree() -> None:
    with Oracles(model(NEGATE)) as oracles:
        expected = oracles.expected([Vector({"x": X}, "user:a"), Vector({"x": -X}, "user:b")])
    assert expected.confirmed == 2
    assert expected.notes == ()
    answer = expected.answers[0]
    assert answer.agreed == ("onnxruntime", "float64")
    assert answer.spread["y"].max_rel < 1e-6
    np.testing.assert_allclose(answer.outputs["y"], -np.exp(X), rtol=1e-6)
    assert answer.outputs["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (
            "g (float[2] x) => (float[2] y) { q, s, z = DynamicQuantizeLinear(x)"
            " y = DequantizeLinear(q, s, z) }",
            2.0**-9,
        ),
        ("g (float16[2] x) => (float16[2] y) { y = Neg(x) }", 2.0**-11),
        ("g (float[2] x) => (float[2] y) { y = Neg(x) }", 0.0),
        # One oracle alone answers.
        ("g (float16[2] x) => (float16[2] y) { y = com.microsoft.FastGelu(x) }", 2.0**-11),
    ],
)
def test_a_model_that_rounds_is_a_rounding_apart_from_itself(text: str, step: float) -> None:
    source = model(text, '"": 20, "com.microsoft": 1')
    x = X.astype(source.graph.inputs[0].dtype.numpy())  # type: ignore[union-attr]
    with Oracles(source) as oracles:
        (answer,) = oracles.expected([Vector({"x": x}, "user:a")]).answers
    assert answer.spread["y"].max_rel == pytest.approx(step, rel=1e-6)


def test_onnxruntime_is_gone_before_the_evaluation_starts() -> None:
    m = model(NEGATE)
    with Oracles(m) as oracles:
        open_then: list[bool] = []

        class Watching(Numpy):
            def run(self, feeds: Feeds) -> dict[str, Array]:
                open_then.append("onnxruntime" in oracles._witnesses)
                return super().run(feeds)

        oracles._witnesses["float64"] = Watching(m, wide=True, seconds=60)
        assert oracles.expected([Vector({"x": X}, "user:a")]).confirmed == 1
        assert open_then == [False]
        oracles.run({"x": X})


def test_the_interface_is_the_source_models() -> None:
    m = model("g (float[N, 3] x, float[3] w = {1, 2, 3}) => (float[N, 3] y) { y = Mul(x, w) }")
    with Oracles(m) as oracles:
        assert oracles.inputs == (TensorSpec("x", "float32", ("N", 3)),)
        assert oracles.outputs == (TensorSpec("y", "float32", ("N", 3)),)


def test_one_oracle_only_is_said() -> None:
    text = "g (float[2] x) => (float[2] y) { y = com.microsoft.FastGelu(x) }"
    with Oracles(model(text, '"": 20, "com.microsoft": 1')) as oracles:
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.confirmed == 0
    assert expected.answers[0].agreed == ("onnxruntime",)
    assert expected.notes[0] == "1 of 1 vectors have one oracle only"
    assert "no float64: the ONNX reference has no com.microsoft::FastGelu" in expected.notes[1]


def test_the_other_oracle_only_is_said() -> None:
    path = next(GOLDEN.glob("lstm_lstm_fwd_layout1*.onnx"))
    arrays = np.load(path.with_suffix(".npz"))
    feeds = {n[3:]: arrays[n] for n in arrays.files if n.startswith("in_")}
    with Oracles(ir.load(path)) as oracles:
        expected = oracles.expected([Vector(feeds, "user:a")])
    assert expected.answers[0].oracle == "float64"
    assert "no onnxruntime: it refuses the model" in expected.notes[1]
    np.testing.assert_allclose(expected.answers[0].outputs["y0"], arrays["out_y0"], rtol=1e-5)


def test_when_time_is_up_the_rest_has_one_oracle() -> None:
    with Oracles(model(NEGATE), seconds=0) as oracles:
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.confirmed == 0
    assert "took too long" in expected.notes[1]


def test_a_lone_float64_is_outvoted_and_the_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(NEGATE)
    with Oracles(m) as oracles:
        oracles._witnesses["float64"] = Liar("float64", m)
        monkeypatch.setattr(module, "disputed_node", lambda *a: "Neg 'n'")
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.answers[0].oracle == "onnxruntime"
    assert expected.answers[0].agreed == ("onnxruntime", "onnx reference")
    assert expected.notes == (
        "float64 alone disagrees at Neg 'n'; onnx reference sides with onnxruntime",
    )


def test_a_lone_onnxruntime_is_outvoted_by_openvino() -> None:
    pytest.importorskip("openvino")
    m = model(NEGATE)
    with Oracles(m) as oracles:
        oracles._witnesses["onnxruntime"] = Liar("onnxruntime", m)
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.answers[0].oracle == "float64"
    assert expected.answers[0].agreed == ("float64", "openvino")
    np.testing.assert_allclose(expected.answers[0].outputs["y"], -np.exp(X), rtol=1e-6)


def test_the_definition_judges_where_onnxruntime_alone_disagrees() -> None:
    """ONNX Runtime subtracts the square of the mean: 2e-2 off at 1000, and 300 at 4096."""
    m = model(
        """g (float[1,4,64] x) => (float[1,4,64] y)
        <float[4] w = {1,1,1,1}, float[4] b = {0,0,0,0}>
        { y = GroupNormalization<num_groups=2>(x, w, b) }""",
        '"": 21',
    )
    x = np.random.default_rng(0).standard_normal((1, 4, 64)).astype(np.float32) + np.float32(4096)
    with Oracles(m) as oracles:
        answer = oracles.expected([Vector({"x": x}, "user:a")]).answers[0]
    assert (answer.oracle, answer.agreed) == ("float64", ("float64", "definitions"))
    assert "onnxruntime alone disagrees at GroupNormalization" in answer.note
    assert answer.spread["y"].max_rel < 2e-4, "what sums round off, not its fault, widens budgets"
    groups = x.astype(np.float64).reshape(2, -1)
    rest = groups - groups.mean(1, keepdims=True)
    right = rest / np.sqrt((rest * rest).mean(1, keepdims=True) + np.float32(1e-5))
    np.testing.assert_allclose(answer.outputs["y"].reshape(2, -1), right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("e = Exp(x) a = Add(e, one) y = Log(a)", [100.0, 5000.0]),
        ("s = Mul(x, x) y = Sqrt(s)", [1e25, 3.0]),
        ("e = Exp(x) s = Add(e, e) y = Div(e, s)", [100.0, 2.0]),
    ],
)
def test_what_only_float32_inside_overflows_may_be_either(body: str, x: list[float]) -> None:
    source = model(f"g (float[2] x) => (float[2] y) <float one = {{1}}> {{ {body} }}")
    feeds = {"x": np.array(x, np.float32)}
    with Oracles(source) as oracles:
        (answer,) = oracles.expected([Vector(feeds, "user:a")]).answers
    one, wide = answer.outputs["y"], answer.overflown["y"]
    assert not np.isfinite(one[0])
    right = {"e": x if "one" in body else [0.5, 0.5], "s": x}[body[0]]
    np.testing.assert_allclose(wide[0], right[0])
    budget = budget_for("fp32")
    for answered in (one, np.array(right, np.float32)):
        metrics = compared("y", answer, {"y": answered}, budget)
        assert metrics is not None
        assert not check(metrics, budget)
    wrong = compared("y", answer, {"y": np.array([88, right[1]], np.float32)}, budget)
    assert wrong is not None
    assert check(wrong, budget)


def test_nobody_settles_what_no_definition_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(NEGATE)
    with Oracles(m) as oracles:
        oracles._witnesses["onnxruntime"] = Liar("onnxruntime", m)
        oracles._witnesses["openvino"] = oracles._witnesses["definitions"] = Silent()
        monkeypatch.setattr(module, "disputed_node", lambda *a: "Neg 'n'")
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.answers[0].agreed == ("float64",)
    assert "nobody could settle it" in expected.notes[1]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.onnx")), ids=lambda p: p.stem)
def test_known_faults_of_the_reference_fail_no_model(path: Path) -> None:
    arrays = np.load(path.with_suffix(".npz"))
    feeds = {n[3:]: arrays[n] for n in arrays.files if n.startswith("in_")}
    with Oracles(ir.load(path)) as oracles:
        answer = oracles.expected([Vector(feeds, "user:a")]).answers[0]
    for name, value in answer.outputs.items():
        expected = arrays[f"out_{name}"]
        rtol = 1e-2 if expected.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-5)


def test_rounding_that_grows_is_told_from_a_fault() -> None:
    """Every node agrees, the whole does not: the difference is the model's, not an oracle's."""
    m = model("""g (float[2] x) => (float[2] y) {
        k = Constant<value = float {1000000.0}>() a = Add(x, k) b = Sub(a, k) y = Exp(b) }""")
    with Oracles(m) as oracles:
        expected = oracles.expected([Vector({"x": np.array([0.1, 2.0], np.float32)}, "user:a")])
    assert expected.notes == (module._ROUNDING,)
    assert expected.answers[0].agreed == ("onnxruntime", "onnx reference")
    assert expected.answers[0].oracle == "float64"
    assert 1e-4 < expected.answers[0].spread["y"].max_rel < 1e-2


def test_random_models_are_refused() -> None:
    text = "g () => (float[2] y) { y = RandomNormal<shape=[2]>() }"
    with pytest.raises(VerifyError, match="draws random numbers \\(RandomNormal\\)"):
        Oracles(model(text))


def test_nobody_can_run_it() -> None:
    m = model("g (float[2] x) => (float[2] y) { y = acme.Foo(x) }", '"": 20, "acme": 1')
    with Oracles(m) as oracles:
        with pytest.raises(RunError, match="no oracle can run the model"):
            oracles.run({"x": X})
        with pytest.raises(VerifyError, match="no oracle can run vector 'user:a'"):
            oracles.expected([Vector({"x": X}, "user:a")])


def test_bad_inputs_are_an_error_of_the_run() -> None:
    with Oracles(model(NEGATE)) as oracles, pytest.raises(RunError, match="its run failed"):
        oracles.run({"x": np.ones(3, np.float32)})


def test_what_the_user_expects_is_compared() -> None:
    vector = Vector({"x": X}, "user:a.npz", given={"y": np.zeros(2, np.float32)})
    with Oracles(model(NEGATE)) as oracles:
        expected = oracles.expected([vector])
    assert expected.notes == ()
    assert "user:a.npz: output 'y' of the source model is another" in expected.contradictions[0]


def test_closing_frees_the_files_and_ends_the_oracles() -> None:
    oracles = Oracles(model(NEGATE))
    folder = oracles._path.parent
    assert folder.is_dir()
    oracles.close()
    oracles.close()
    assert not folder.exists()
    with pytest.raises(RunError):
        oracles.run({"x": X})


def test_onnxruntime_does_not_optimise(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(model("g (float[2] x) => (float[2] y) { a = Neg(x) y = Identity(a) }"), path)
    options = OnnxRuntime(path)._session.get_session_options()
    assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"


def test_weights_lie_beside_the_model() -> None:
    weights = ir.tensor(np.ones((64, 64), np.float32), name="w")
    m = model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }")
    value = next(v for n in m.graph for v in n.inputs if v is not None and v.name == "w")
    value.const_value = weights
    m.graph.initializers["w"] = value
    with Oracles(m) as oracles:
        assert (oracles._path.parent / "weights.bin").stat().st_size >= 64 * 64 * 4
        got = oracles.run({"x": np.ones((1, 64), np.float32)})
    np.testing.assert_array_equal(got["y"], np.full((1, 64), 64))
    assert value.const_value is weights


UNENDING = """g (float[2] x, bool c) => (float[2] y) {
    y = Loop <body = b (int64 i, bool k, float[2] v) => (bool o, float[2] w) {
        a = Not(k) o = Not(a) w = Neg(v) }> (, c, x) }"""


@pytest.mark.parametrize("has_engine", [True, False])
def test_a_run_without_end_ends_all(monkeypatch: pytest.MonkeyPatch, has_engine: bool) -> None:
    monkeypatch.setattr(module, "has_onnxruntime", lambda: has_engine)
    with Oracles(model(UNENDING), time_limit_s=0.2) as oracles:
        assert oracles.run({"x": X, "c": np.array(False)})["y"].tolist() == X.tolist()
        with pytest.raises(VerifyError, match=r"does not end: no end after 0.2 s; --time-limit"):
            oracles.run({"x": X, "c": np.array(True)})


def test_no_oracle_waits_for_a_run_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_onnxruntime", lambda: False)
    vector = Vector({"x": X, "c": np.array(True)}, "user:a")
    with (
        Oracles(model(UNENDING), time_limit_s=0.2, seconds=0.2) as oracles,
        pytest.raises(VerifyError, match="no oracle can run vector"),
    ):
        oracles.expected([vector])


class Nearer:
    """ONNX Runtime on another processor: its kernels round off a part of what they do here."""

    name = "onnxruntime"

    def __init__(self, model: ir.Model, path: Path, part: float) -> None:
        self._right, self._engine = Numpy(model, wide=True, seconds=60), OnnxRuntime(path)
        self._part = part

    def run(self, feeds: Feeds) -> dict[str, Array]:
        right, found = self._right.run(feeds), self._engine.run(feeds)
        return {
            n: (a + self._part * (found[n].astype(np.float64) - a)).astype(np.float32)
            for n, a in right.items()
        }

    def close(self) -> None:
        self._engine.close()


SENSITIVE = """g (float[4,64] x, float[64,3] w) => (float[4,3] y) <float c = {20}>
{ a = MatMul(x, w) s = ReduceMean<keepdims = 1>(a) d = Sub(a, s) b = Mul(d, c) y = Sin(b) }"""


HALVES = """g (float16[64,64] x, float16[64,3] w) => (float16[64,3] y) <int64[1] rows = {0}>
{ a = MatMul(x, w) s = ReduceMean<keepdims = 1>(a, rows) y = Sub(a, s) }"""

STEPS = """g (float[40,4,64] x, float[1,24,64] w, float[1,24,8] r) => (float[1,4,8] y)
<float c = {20}> { o, h = GRU<hidden_size = 8>(x, w, r) s = Mul(h, c) y = Sin(s) }"""


@pytest.mark.parametrize(
    ("text", "offset", "kind"),
    [(SENSITIVE, 30, "f"), (SENSITIVE, 3000, "f"), (HALVES, 30, "e"), (STEPS, 5, "f")],
)
def test_what_rounding_moves_depends_on_no_kernels(
    monkeypatch: pytest.MonkeyPatch, text: str, offset: float, kind: str
) -> None:
    numbers = np.random.default_rng(1)
    net, found = model(text), []
    shapes = {s.name: tuple(int(str(d)) for d in s.shape or ()) for s in input_specs(net)}
    feeds = {n: numbers.standard_normal(s) for n, s in shapes.items()}
    feeds["x"] += offset
    vector = Vector({n: a.astype(kind) for n, a in feeds.items()}, "user:a")
    for part in (1.0, 0.3):
        nearer = partial(Nearer, net, part=part)
        monkeypatch.setattr(module, "OnnxRuntime", lambda path, _, made=nearer: made(path))
        with Oracles(net) as oracles:
            (answer,) = oracles.expected([vector]).answers
        found.append(answer.spread["y"])
    assert found[0] == found[1]
    assert found[0].sqnr_db < 110


@pytest.mark.parametrize(
    "text",
    [
        "g (float[8,512] x, float[512,64] w) => (float[8,64] y) { y = MatMul(x, w) }",
        "g (float[8,64,64] x) => (float[8,64,1] y) <int64[1] a = {2}> { y = ReduceMean(x, a) }",
        "g (float[60,4,64] x, float[1,96,64] w, float[1,96,32] r) => (float[1,4,32] y) "
        "{ o, y = GRU<hidden_size = 32>(x, w, r) }",
    ],
)
def test_what_rounding_moves_is_what_an_engine_shows(text: str) -> None:
    """Sums are as far off as an engine's, within a factor of five, and the same in every run."""
    numbers = np.random.default_rng(0)
    net = model(text)
    shapes = {s.name: tuple(int(str(d)) for d in s.shape or ()) for s in input_specs(net)}
    feeds = {n: numbers.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    feeds = {n: a if n == "x" else a / np.float32(8) for n, a in feeds.items()}
    exact = Evaluator(net, wide=True).run(feeds)["y"]
    summed = Numpy(net, wide=True, rounded=True, summed=True, seconds=60).run(feeds)["y"]
    again = Numpy(net, wide=True, rounded=True, summed=True, seconds=60).run(feeds)["y"]
    with Oracles(net) as oracles:
        engine = oracles.run(feeds)["y"]
    np.testing.assert_array_equal(summed, again)
    ours, theirs = (np.sqrt(np.mean(np.square(a - exact))) for a in (summed, engine))
    assert theirs / 5 < ours < theirs * 5


@pytest.mark.parametrize("level", [0, 4])
def test_what_lets_kernels_round_to_eight_bits_is_a_rounding_apart(level: int) -> None:
    """By its accuracy level ONNX Runtime may round what it multiplies by weights of 4 bits."""
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=8, bits=4
    )
    options = {"block_size": 32, "accuracy_level": level}
    node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in options.items())
    known: dict[str, Any] = {
        "w": rng.integers(0, 256, (8, 2, 16), dtype=np.uint8),
        "s": rng.uniform(0.1, 1, 16).astype(np.float32),
    }
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [info("x", kind, [2, 64])],
        [info("y", kind, [2, 8])],
        [onnx.numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    sets = [onnx.helper.make_opsetid(*v) for v in (("", 21), ("com.microsoft", 1))]
    proto = onnx.helper.make_model(graph, opset_imports=sets, ir_version=10)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    low, high = known["w"] & 15, known["w"] >> 4
    whole = np.stack([low, high], axis=-1).reshape(8, 64).astype(np.float64) - 8
    right = x @ (whole * np.repeat(known["s"].reshape(8, 2), 32, axis=1)).T
    with Oracles(ir.from_proto(proto)) as oracles:
        answer = oracles.expected([Vector({"x": x}, "user:a")]).answers[0]
    judged = budget_for("fp32").widened(answer.spread["y"])
    exact = compare(answer.outputs["y"], right.astype(np.float32))
    assert not check(exact, judged)
    assert bool(check(exact, budget_for("fp32"))) == (level == 4)


TIES = "g (float[4] x) => (int64[1] y) { a = Exp(x) y = ArgMax<axis=0>(a) }"


def test_a_witness_that_cannot_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime refused the moved scores of opset 22 and more, and nobody was told."""

    def refuse(*_: object) -> OnnxRuntime:
        raise Abstains("no kernel for that")

    with Oracles(model(TIES)) as oracles:
        oracles._makers["shaken"] = refuse
        expected = oracles.expected([Vector({"x": np.arange(4, dtype=np.float32)}, "user:a")])
    assert expected.faults == ()
    assert expected.notes == (
        "shaken gave no answer 4 times (no kernel for that): these draws do not say what the last "
        "bits of scores decide",
    )


def test_scores_that_onnxruntime_refuses_to_move_are_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the model, so what is written to move the scores is wrong."""
    real = module._onnxruntime
    asked: list[Path] = []

    def once(of: ir.Model, path: Path, limit: float) -> Any:
        asked.append(path)
        if len(asked) > 1:
            raise Abstains("Mod of float has no version 22")
        return real(of, path, limit)

    monkeypatch.setattr(module, "_onnxruntime", once)
    with Oracles(model(TIES)) as oracles:
        expected = oracles.expected([Vector({"x": np.arange(4, dtype=np.float32)}, "user:a")])
    (fault,) = expected.faults
    assert "Mod of float has no version 22; NumPy answers instead" in fault


def test_an_operator_of_ours_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a fault of ours")

    monkeypatch.setitem(evaluation.OPERATORS, "Neg", fail)
    with Oracles(model(NEGATE)) as oracles:
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    assert expected.answers[0].agreed == ("onnxruntime",)
    (fault,) = expected.faults
    assert fault.startswith("an oracle is broken: float64 failed: Neg")
    assert "TypeError: a fault of ours" in fault


def test_what_nobody_could_evaluate_is_not_said_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was passed over counted as one that agrees, and the rest as rounding."""
    source = model(NEGATE)
    assert disputed_node(source, {"x": X}, budget_for("fp32")) == ""

    def fail(*_: object) -> None:
        raise TypeError("a fault of ours")

    monkeypatch.setitem(evaluation.OPERATORS, "Neg", fail)
    assert disputed_node(source, {"x": X}, budget_for("fp32")) is None


def test_a_sum_that_cancels_is_no_fault_of_a_kernel() -> None:
    """Of a regressor of Gaussian processes, terms of 1e5 add up to 0.7 in some order."""
    numbers = np.random.default_rng(0)
    terms = numbers.standard_normal((3000, 1)).astype(np.float32) * np.float32(1e5)
    source = model("g (float[2,3000] x, float[3000,1] w) => (float[2,1] y) { y = MatMul(x, w) }")
    x = np.stack([np.ones(3000), 1 + 1e-7 * numbers.standard_normal(3000)]).astype(np.float32)
    terms[-1] = -np.float64(terms[:-1]).sum()
    feeds = {"x": x, "w": terms}
    assert disputed_node(source, feeds, budget_for("fp32")) == ""
    with Oracles(source) as oracles:
        (answer,) = oracles.expected([Vector(feeds, "user:a")]).answers
    assert answer.note == module._ROUNDING
    assert answer.spread["y"].max_abs > 0.05


@pytest.mark.parametrize(
    ("op", "reach"),
    [
        ("InstanceNormalization", (54, 75)),
        ("GroupNormalization<num_groups=2>", (54, 75)),
        ("LayerNormalization<axis=2>", (54, 80)),
    ],
)
def test_a_mean_far_beyond_the_deviation_costs_digits(op: str, reach: tuple[int, int]) -> None:
    """Engines add up the mean of 3,000 in orders of their own; each was held to 70 dB."""
    source = model(
        f"""g (float[1,4,1024] x) => (float[1,4,1024] y)
        <float[4] s = {{1,1,1,1}}, float[4] b = {{0,0,0,0}}, float one = {{1}}, float zero = {{0}}>
        {{ y = {op}(x, {"one, zero" if "Layer" in op else "s, b"}) }}""",
        '"": 21',
    )
    x = np.random.default_rng(0).standard_normal((1, 4, 1024)) + 3000
    summed = Numpy(source, wide=True, rounded=True, summed=True, seconds=60)
    exact = Evaluator(source, wide=True).run({"x": x.astype(np.float32)})["y"]
    found = compare(exact, summed.run({"x": x.astype(np.float32)})["y"].astype(np.float64))
    assert reach[0] < found.sqnr_db < reach[1]
