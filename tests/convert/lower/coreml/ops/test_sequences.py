import numpy as np
import pytest

from tests.convert.lower.coreml.run import check, floats

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(op: str, attributes: str = "", steps: str = "5", directions: int = 1) -> str:
    gates, hidden, size = GATES[op], 3, 2
    rng = np.random.default_rng(7)

    def constant(name: str, *shape: int) -> str:
        values = ",".join(f"{v:.6f}" for v in rng.standard_normal(int(np.prod(shape))))
        return f"float[{','.join(map(str, shape))}] {name} = {{{values}}}"

    held = ", ".join(
        [
            constant("w", directions, gates * hidden, size),
            constant("r", directions, gates * hidden, hidden),
            constant("b", directions, 2 * gates * hidden),
        ]
    )
    outs = "y, h, c" if op == "LSTM" else "y, h"
    call = f"{op}<hidden_size={hidden}{', ' + attributes if attributes else ''}>(x, w, r, b)"
    return f"g (float[{steps},2,{size}] x) => ({outs}) <{held}> {{{outs} = {call}}}"


@pytest.mark.parametrize("reset", [0, 1])
def test_gru_of_many_steps_is_a_loop(reset: int) -> None:
    text = layer("GRU", f"linear_before_reset={reset}", "60")
    made = check(text, {"x": floats(60, 2, 2)}, rtol=2e-5)
    assert made["while_loop"] == 1


def test_lstm_is_one_operator() -> None:
    assert check(layer("LSTM"), {"x": floats(5, 2, 2)}, rtol=5e-6)["lstm"] == 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("steps", ["5", "S"])
@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("states", ["", "s", ", s", "s, s"])
def test_both_directions_of_an_lstm_are_one_operator(states: str, batch: str, steps: str) -> None:
    text = layer("LSTM", 'direction="bidirectional"', directions=2)
    text = text.replace("float[5,2,2] x", f"float[{steps},{batch},2] x, float[2,{batch},3] s")
    text = text.replace("(x, w, r, b)", f"(x, w, r, b, , {states})" if states else "(x, w, r, b)")
    sizes = [(5, 2), (7 if steps == "S" else 5, 3 if batch == "N" else 2)]
    feeds = [{"x": floats(s, b, 2), "s": floats(2, b, 3, seed=1)} for s, b in sizes]
    made = check(text, *feeds, rtol=5e-6)
    assert made["lstm"] == 1
    assert made["reverse"] == 0


def test_joining_both_directions_of_an_lstm_costs_nothing() -> None:
    first = layer("LSTM", 'direction="bidirectional"', directions=2)
    head, _, call = first.partition("{y, h, c = ")
    text = (
        head.replace("(y, h, c)", "(z)")
        + "{y, h, c = "
        + call.rstrip("}")
        + " t = Transpose<perm=[0,2,1,3]>(y) j = Reshape(t, shape) z = Relu(j)}"
    ).replace("<float[2,12,2]", "<int64[3] shape = {0, 0, -1}, float[2,12,2]")
    made = check(text, {"x": floats(5, 2, 2)}, rtol=5e-6)
    assert made == {"lstm": 1, "relu": 1}


def test_loop_that_stops_early_and_collects() -> None:
    text = (
        "g (int64 n, float[2] x) => (float[2] z, float[K,2] all) <bool go = {1}> "
        "{z, all = Loop(n, go, x) <body = b (int64 i, bool c, float[2] s) => "
        "(bool again, float[2] t, float[2] piece) <float[2] two = {2.0, 3.0}, int64 last = {3}> "
        "{t = Mul(s, two) piece = Add(s, two) again = Less(i, last)}>}"
    )
    feeds = {"n": np.array(9), "x": floats(2)}
    check(text, feeds, {**feeds, "n": np.array(2)})


def test_attention_with_cache_mask_and_shared_heads() -> None:
    text = (
        "g (float[1,4,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, float[1,2,2,8] pk, "
        "float[1,2,2,8] pv, bool[3,5] m) => (y, float[1,2,5,8] nk, float[1,2,5,8] nv) "
        "{y, nk, nv = Attention<is_causal=1>(q, k, v, m, pk, pv)}"
    )
    mask = np.ones((3, 5), bool)
    mask[0, 1] = False
    feeds = {
        "q": floats(1, 4, 3, 8), "k": floats(1, 2, 3, 8, seed=1), "v": floats(1, 2, 3, 8, seed=2),
        "pk": floats(1, 2, 2, 8, seed=3), "pv": floats(1, 2, 2, 8, seed=4), "m": mask,
    }  # fmt: skip
    check(text, feeds, rtol=5e-6)


def test_quantized_values_stay_integers() -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) <float s = {0.05}, uint8 z = {100}> "
        "{q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)}"
    )
    made = check(text, {"x": 4 * floats(2, 4)})
    assert made["quantize"] == made["dequantize"] == 1
