import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.faults import (
    PACKED,
    batchwise_recurrent,
    fractional_corners,
    move_batch,
    refused_borders,
)
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import check, model, ops, run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("outputs", ["y, h", ", h", "y"])
def test_batch_moves_to_the_second_axis(outputs: str) -> None:
    """The numbers must be those of the same network fed with steps first."""
    names = [n for n in outputs.replace(" ", "").split(",") if n]
    kinds = {"y": "float[3,5,1,6] y", "h": "float[3,1,6] h"}
    declared = ", ".join(kinds[n] for n in names)
    text = f"""g (float[3,5,2] x, float[1,18,2] w, float[1,18,6] r, float[3,1,6] h0) => ({declared})
        {{ {outputs} = GRU<hidden_size = 6, layout = 1>(x, w, r, , , h0) }}"""
    whole = model(text)
    node = next(iter(whole.graph))
    assert batchwise_recurrent(node)
    assert move_batch(whole, node)
    check(whole)
    assert batchwise_recurrent(node) == ""
    assert [v.name for v in whole.graph.outputs] == names
    plain = model(
        "g (float[5,3,2] x, float[1,18,2] w, float[1,18,6] r, float[1,3,6] h0)"
        " => (float[5,1,3,6] y, float[1,3,6] h) { y, h = GRU<hidden_size = 6>(x, w, r, , , h0) }"
    )
    x, h0 = RNG.standard_normal((3, 5, 2)), RNG.standard_normal((3, 1, 6))
    weights = {"w": RNG.standard_normal((1, 18, 2)), "r": RNG.standard_normal((1, 18, 6))}
    feeds = {k: v.astype(np.float32) for k, v in {"x": x, "h0": h0, **weights}.items()}
    turned = {**feeds, **{k: np.swapaxes(feeds[k], 0, 1) for k in ("x", "h0")}}
    y, h = run(plain, turned)
    expected = {"y": y.transpose(2, 0, 1, 3), "h": h.transpose(1, 0, 2)}
    for name, got in zip(names, run(whole, feeds), strict=True):
        np.testing.assert_allclose(got, expected[name], rtol=1e-6)


def test_layout_of_steps_first_is_left_alone() -> None:
    text = "g (float[5,3,2] x, float[1,18,2] w, float[1,18,6] r) => (float[A,B,C,D] y) { y = GRU<hidden_size = 6>(x, w, r) }"  # noqa: E501
    whole = model(text)
    assert batchwise_recurrent(next(iter(whole.graph))) == ""
    assert ops(whole) == ["GRU"]


@pytest.mark.parametrize(
    ("shape", "scales", "bad"),
    [
        ("1,1,4,4", "1, 1, 2, 2", False),
        ("1,1,4,4", "1, 1, 0.5, 0.5", False),
        ("1,1,3,3", "1, 1, 0.5, 0.5", True),
        ("1,1,H,W", "1, 1, 2, 2", False),
        ("1,1,H,W", "1, 1, 0.5, 2", True),
        ("1,1,5,5", "1, 1, 0.6, 0.6", False),
        ("1,1,4,4", "1, 1, 0.6, 0.6", True),
    ],
)
def test_align_corners_needs_whole_sizes(shape: str, scales: str, bad: bool) -> None:
    text = f"""g (float[{shape}] x) => (float[1,1,A,B] y) <float[4] s = {{{scales}}}> {{
        y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s)
    }}"""
    assert bool(fractional_corners(next(iter(model(text).graph)))) is bad


def test_align_corners_with_sizes_or_another_mode_is_fine() -> None:
    text = """g (float[1,1,4,4] x, int64[4] n) => (float[1,1,A,B] y, float[1,1,C,D] z)
        <float[4] s = {1, 1, 0.6, 0.6}> {
        y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , n)
        z = Resize<mode = "linear">(x, , s)
    }"""
    assert [fractional_corners(n) for n in model(text).graph] == ["", ""]


def test_packed_inputs_and_outputs_are_named() -> None:
    whole = model("g (int4[2] x, float[2] z) => (uint4[2] y) { y = Cast<to = 21>(z) }")
    assert [str(p) for p in refused_borders(whole, PACKED)] == [
        "model input 'x': unsupported_dtype: int4 cannot be exchanged with the engine"
        " (cast it inside the model)",
        "model output 'y': unsupported_dtype: uint4 cannot be exchanged with the engine"
        " (cast it inside the model)",
    ]
    assert refused_borders(whole, frozenset({ir.DataType.STRING})) == []


LRN = {
    f"{sizes} {options}": (sizes, options)
    for sizes in ("1,5,4,3", "N,5,H,W", "2,5,7")
    for options in ("size=2", "size=4, bias=1.5", "size=3, bias=2.0", "size=1, bias=0.5", "size=5")
}


@pytest.mark.parametrize("place", [p for p in PLACES if p != "litert-without-xnnpack"])
def test_channels_are_summed_over_any_size_with_any_bias(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    cases, right = {}, {}
    for name, (sizes, options) in LRN.items():
        x = RNG.standard_normal((2, 5, 7) if sizes == "2,5,7" else (1, 5, 4, 3)).astype(np.float32)
        text = (
            f"g (float[{sizes}] x) => (float[{sizes}] y) {{ [y] y = LRN<{options}, alpha=0.3>(x) }}"
        )
        cases[name] = ir.to_proto(model(text)), {"x": x}
        n = int(options[5])
        bias = float(options.rpartition("bias=")[2]) if "bias" in options else 1.0
        padded = np.pad(
            np.square(x.astype(float)), [(0, 0), ((n - 1) // 2, n // 2)] + [(0, 0)] * (x.ndim - 2)
        )
        total = sum(padded[:, k : k + 5] for k in range(n))
        right[name] = x / (bias + 0.3 / n * total) ** 0.75
    for name, answers in run_each(place, cases).items():
        np.testing.assert_allclose(answers.outputs["y"], right[name], 2e-5, 1e-6, err_msg=name)
