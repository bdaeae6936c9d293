"""Vectors are valid, cover two sizes of what is dynamic, and are the same each time."""

import wave
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.vectors import UserData, gather_vectors, make_vectors
from edgeinfer.errors import InputError, RunError, UsageError
from edgeinfer.types import (
    Array,
    AudioInput,
    Feeds,
    ImageInput,
    InputRange,
    NoiseInput,
    Preprocessing,
)


def model(text: str, opset: int = 20) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')


IMAGE = """g (float[N, 3, H, W] x) => (float[N, 3, h, w] y)
    { y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x) }"""
PLAIN = "g (float[N, 8] x) => (float[N, 8] y) { y = Neg(x) }"


def vectors(
    m: ir.Model,
    *,
    preprocessing: dict[str, Preprocessing] | None = None,
    user_data: UserData | None = None,
    calibration: Path | None = None,
    limit_bytes: int = 32 << 20,
) -> list[Vector]:
    with Oracles(m) as oracles:
        return make_vectors(
            m,
            oracles.inputs,
            oracles=oracles,
            preprocessing=preprocessing,
            user_data=user_data,
            calibration=calibration,
            limit_bytes=limit_bytes,
        )


def test_dynamic_pictures_are_run_at_two_sizes_and_batches() -> None:
    shapes = {v.feeds["x"].shape for v in vectors(model(IMAGE))}
    assert shapes == {(1, 3, 320, 320), (2, 3, 64, 96)}


def test_what_onnx_runtime_refuses_in_each_run_is_judged_by_definitions() -> None:
    # Dilations with automatic padding, and an LRN of three axes, have no kernel there.
    text = """g (float[1,2,7] x) => (float[1,2,7] y) <float[2,2,3] w = {1,2,3,4,5,6,6,5,4,3,2,1}> {
        c = Conv<auto_pad = "SAME_UPPER", dilations = [2]>(x, w) y = LRN<size = 3>(c) }"""
    with Oracles(model(text)) as oracles:
        made = make_vectors(model(text), oracles.inputs, oracles=oracles)
        answers = oracles.expected(made[:1]).answers
    assert {v.feeds["x"].shape for v in made} == {(1, 2, 7)}
    assert [a.agreed for a in answers] == [("float64",)]


def test_the_same_each_time() -> None:
    one, two = vectors(model(IMAGE)), vectors(model(IMAGE))
    assert [v.origin for v in one] == [v.origin for v in two]
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.feeds["x"], b.feeds["x"])


def test_extremes_are_marked() -> None:
    edges = {v.origin.split(":")[1].split()[0]: v.edge for v in vectors(model(PLAIN))}
    assert edges == {
        "natural": False,
        "standard": False,
        "noise": False,
        "zeros": False,
        "large": True,
        "negative": True,
        "offset": True,
        "ties": True,
        "tiny": True,
        "huge": True,
    }


def test_room_is_limited_but_both_sizes_stay() -> None:
    few = vectors(model(IMAGE), limit_bytes=1)
    assert [v.feeds["x"].shape[0] for v in few] == [1, 2]


def test_static_models_are_not_resized() -> None:
    m = model("g (float[4, 8] x) => (float[4, 8] y) { y = Neg(x) }")
    assert {v.feeds["x"].shape for v in vectors(m)} == {(4, 8)}


def test_an_axis_that_is_not_as_dynamic_as_declared_is_noted() -> None:
    m = model("""g (float[N, T] x) => (float[N, 4, 4] y)
        { s = Constant<value_ints=[-1, 4, 4]>() y = Reshape(x, s) }""")
    assert vectors(m)[0].note == "", "any multiple of 16 runs"
    m = model("""g (float[N, 3, T] x) => (float[N, 3, 7] y) {
        s = Constant<value_ints=[16, 7]>() w = ConstantOfShape(s) y = MatMul(x, w) }""")
    assert vectors(m)[0].note == "declared dynamic: 'T' runs at 16 only, as far as tried"


def test_token_ids_stay_below_the_table() -> None:
    m = model("""g (int64[B, S] ids, int64[B, S] attention_mask) => (float[B, S, 2] y) {
        table = Constant<value = float[5, 2] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}>()
        e = Gather(table, ids) m = Cast<to=1>(attention_mask) a = Constant<value_ints=[-1]>()
        u = Unsqueeze(m, a) y = Mul(e, u) }""")
    for constant in [n for n in m.graph if n.op_type == "Constant"]:
        if constant.outputs[0].name == "table":
            constant.outputs[0].shape = ir.Shape([5, 2])
    found = vectors(m)
    assert {v.feeds["ids"].shape for v in found} >= {(1, 16), (2, 7)}
    for vector in found:
        assert vector.feeds["ids"].max() < 5
        mask = vector.feeds["attention_mask"]
        assert set(np.unique(mask)) <= {0, 1}
        assert (np.diff(mask, axis=-1) <= 0).all(), "ones first, then zeros"


def test_streams_get_a_rate_a_frame_and_a_state() -> None:
    m = model("""g (float[N, T] input, float[2, N, 8] state, int64 sr)
        => (float[N] y, float[2, N, 8] s) {
        a = Constant<value_ints=[1]>() y = ReduceSum<keepdims=0>(input, a) s = Identity(state) }""")
    found = vectors(m)
    assert found[0].feeds["input"].shape == (1, 512)
    assert found[0].feeds["sr"] == 16000
    assert not found[0].feeds["state"].any()
    assert any(v.feeds["state"].any() for v in found)
    assert any(v.feeds["sr"] == 8000 for v in found)
    assert {v.feeds["state"].shape[1] for v in found} == {1, 2}


def test_images_follow_the_record() -> None:
    record = ImageInput(64, 64, mean=(0.5,), std=(0.5,), scale=1 / 255)
    m = model("g (float[1, 3, 64, 64] x) => (float[1, 3, 64, 64] y) { y = Neg(x) }")
    natural = vectors(m, preprocessing={"x": record})[0].feeds["x"]
    assert natural.min() >= -1
    assert natural.max() <= 1
    assert natural.min() < -0.5, "the whole range is used"
    smooth = np.abs(np.diff(natural, axis=-1)).mean()
    assert smooth < 0.4 * natural.std(), "neighbours resemble each other, as in a photo"


def test_models_without_inputs_have_one_vector_at_least() -> None:
    m = model("g () => (float[2] y) { y = Constant<value_floats=[1.0, 2.0]>() }")
    assert vectors(m)[0].feeds == {}


def test_sizes_that_cannot_be_found_ask_for_help() -> None:
    m = model("""g (float[N, T] x) => (float[N, 5] y)
        { s = Constant<value_ints=[12345, 5]>() y = Reshape(x, s) }""")
    with pytest.raises(UsageError, match=r"give --data or --input-shape; the last try failed with"):
        vectors(m)


def test_user_data_comes_first_and_fixes_the_base(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((1, 3, 32, 64)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros((1, 3, 16, 32), np.float32))
    np.savez(tmp_path / "b.npz", x=x + 1)
    found = vectors(model(IMAGE), user_data=tmp_path)
    assert [v.origin for v in found[:2]] == ["user:a.npz", "user:b.npz"]
    np.testing.assert_array_equal(found[0].feeds["x"], x)
    assert list(found[0].given) == ["y"]
    assert len(found) == 3, "one more, at another size"
    assert all(a != b for a, b in zip(found[2].feeds["x"].shape, x.shape, strict=True) if b != 3)


def test_feeds_in_memory() -> None:
    x = np.ones((3, 8), np.float32)
    found = vectors(model(PLAIN), user_data=[{"x": x}])
    assert found[0].origin == "user:#0"
    assert {v.feeds["x"].shape[0] for v in found} == {3, 1}


def test_data_of_another_machine_is_the_same_numbers(tmp_path: Path) -> None:
    """ONNX Runtime took such bytes as if they were in this machine's order."""
    x = np.arange(24, dtype=">f4").reshape(3, 8)
    np.savez(tmp_path / "a.npz", x=x, y=x)
    for data in ([{"x": x, "y": x}], tmp_path):
        first = vectors(model(PLAIN), user_data=data)[0]
        for array in (first.feeds["x"], first.given["y"]):
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, x)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x': expected x: float32"),
        ({"x": np.ones((1, 8))}, "received float64\\[1, 8\\] in #0"),
        ({"x": np.ones((1, 9), np.float32)}, "received float32\\[1, 9\\]"),
        ({"x": np.ones(8, np.float32)}, "received float32\\[8\\]"),
        ({"x": np.ones((1, 8), np.float32), "z": np.ones(1)}, "input 'z': expected one of"),
    ],
)
def test_data_that_does_not_fit(feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        vectors(model(PLAIN), user_data=[feeds])


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for i in range(20):
        image.new("RGB", (40, 40), (i, 0, 0)).save(tmp_path / f"{i:02}.png")
    record = ImageInput(64, 32)
    found = vectors(model(IMAGE), preprocessing={"x": record}, calibration=tmp_path)
    real = [v for v in found if v.origin.startswith("calibration")]
    assert len(real) == 16
    assert real[0].feeds["x"].shape == (1, 3, 32, 64)
    assert real[0].origin == "calibration:00.png"
    assert real[-1].origin > "calibration:17.png", "spread over the folder"


def test_a_folder_of_recordings(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    with wave.open(str(tmp_path / "a.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes((np.sin(np.arange(900)) * 9000).astype("<i2").tobytes())
    m = model("g (float[1, 512] x, float[1, 4] state) => (float[1, 512] y) { y = Neg(x) }")
    record = AudioInput(16000, 512)
    found = vectors(m, preprocessing={"x": record}, calibration=tmp_path)
    assert found[0].origin == "calibration:a.wav"
    assert found[0].feeds["x"].shape == (1, 512)
    assert found[0].feeds["state"].shape == (1, 4)


def test_calibration_folders_must_be_there_and_hold_something(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty"):
        vectors(model(PLAIN), calibration=tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        vectors(model(PLAIN), calibration=tmp_path / "none")


def test_sizes_of_minus_one_are_free() -> None:
    m = model(IMAGE)
    m.graph.inputs[0].shape = ir.Shape([-1, 3, -1, -1])
    assert {v.feeds["x"].shape for v in vectors(m)} == {(1, 3, 320, 320), (2, 3, 64, 96)}


def test_an_extreme_that_hangs_on_rounding_is_left_out_with_a_note() -> None:
    # Silence scaled by its own range, as spectrograms are: rounding alone would decide.
    scaled = model("""g (float[1, 64] x) => (float[1, 64] y) <float e = {1e-30}> {
        a = Abs(x)
        top = ReduceMax(a)
        low = ReduceMin(a)
        range = Sub(top, low)
        some = Add(range, e)
        d = Sub(a, low)
        y = Div(d, some)
    }""")
    found = vectors(scaled)
    assert [v.origin.split(":")[1].split()[0] for v in found] == [
        *("natural", "standard", "noise", "large", "negative", "offset", "ties", "tiny", "huge")
    ]
    assert found[0].note.startswith("no vector of style zeros 1x64: a change of 6e-08 moves output")


def test_data_wins_over_what_would_be_made_up() -> None:
    m = model("""g (float[6, 2] x, int64[3] i) => (float[3, 2] y) {
        z = Constant<value_int=0>() w = CumSum(i, z) y = Gather(x, w) }""")
    real: dict[str, Array] = {"x": np.ones((6, 2), np.float32), "i": np.array([5, -5, 5], np.int64)}
    found = vectors(m, user_data=[real])
    assert [v.origin for v in found] == ["user:#0"]
    np.testing.assert_array_equal(found[0].feeds["i"], real["i"])


def test_other_sizes_look_like_the_data() -> None:
    m = model(
        """g (float[N, 2] x, int64[N] i) => (float[N, 2] y) <float[30, 2] t = {ONES}> {
        e = Gather(t, i) y = Add(x, e) }""".replace("ONES", ", ".join("1" * 60))
    )
    real: dict[str, Array] = {
        "x": np.full((3, 2), 250, np.float32),
        "i": np.array([20, 21, 25], np.int64),
    }
    made = [v for v in vectors(m, user_data=[real]) if v.origin.startswith("synthetic")]
    assert made
    for vector in made:
        assert 20 <= vector.feeds["i"].min() <= vector.feeds["i"].max() <= 25
        assert (vector.feeds["x"] == 250).all()


def test_declared_ranges_are_kept_and_reached() -> None:
    with Oracles(m := model(PLAIN)) as oracles:
        found = make_vectors(m, oracles.inputs, oracles=oracles, declared={"x": (-300.0, 200.0)})
    arrays = [v.feeds["x"] for v in found]
    assert min(a.min() for a in arrays) == -300
    assert max(a.max() for a in arrays) == 200
    assert not any(v.edge for v in found), "what was declared is no extreme"


@pytest.mark.parametrize(
    ("nodes", "low", "high"),
    [
        ("c = Constant<value_float=255.0>() y = Div(x, c)", 0, 255),
        ("c = Constant<value_float=0.003921569>() y = Mul(c, x)", 0, 255),
        ("c = Constant<value_float=32768.0>() y = Div(x, c)", -32768, 32767),
        ("c = Constant<value_float=32768.0>() y = Mul(x, c)", -1, 1),
        ("c = Constant<value_floats=[123.7, 116.3, 103.5]>() y = Sub(x, c)", 0, 255),
        ("c = Constant<value_floats=[0.485, 0.456, 0.406]>() y = Sub(x, c)", 0, 1),
        ("t = Transpose<perm=[1, 0]>(x) c = Constant<value_float=255.0>() y = Div(t, c)", 0, 255),
    ],
)
def test_ranges_are_told_from_what_the_graph_does_first(
    nodes: str, low: float, high: float
) -> None:
    m = model(f"g (float[5, 3] x) => (float[a, b] y) {{ {nodes} }}")
    ordinary = [v.feeds["x"] for v in vectors(m) if not v.edge]
    assert low <= min(a.min() for a in ordinary)
    assert max(a.max() for a in ordinary) <= high
    assert np.ptp(ordinary[0]) > 0.7 * (high - low)


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("(int64[8] t) => (int64[8] y) <int64 k = {86400}> { y = Mod(t, k) }", (-(2**62), 2**62)),
        ("(int32[8] t) => (bool[8] y) <int32 k = {7}> { y = Equal(t, k) }", (-(2**31), 1790000031)),
        (
            "(int16[8] t) => (float[8] y) <float k = {32768}> { c = Cast<to=1>(t) y = Div(c, k) }",
            (-32768, 32767),
        ),
        (
            "(float[1,3,8,8] t) => (float[1,3,8,8] y) <float k = {127.5}> { c = Sub(t, k) "
            "y = Div(c, k) }",
            (0, 255),
        ),
        (
            "(uint8[8] t) => (float[8] y) <float k = {0.1}, uint8 z = {128}> "
            "{ y = DequantizeLinear(t, k, z) }",
            (0, 255),
        ),
    ],
)
def test_what_users_feed_is_among_them(body: str, holds: tuple[int, int]) -> None:
    made = [v.feeds["t"] for v in vectors(model(f"g {body}"))]
    low, high = min(int(t.min()) for t in made), max(int(t.max()) for t in made)
    assert low <= holds[0]
    assert high >= holds[1]
    if holds[1] < 2**20:
        assert (low, high) == holds


def test_lengths_are_told_by_their_name() -> None:
    m = model("""g (float[1, 7, 2] x, int64[1] x_lengths) => (float[1, 7, 2] y) {
        f = Cast<to=1>(x_lengths) y = Mul(x, f) }""")
    assert {int(n) for v in vectors(m) for n in v.feeds["x_lengths"]} <= set(range(1, 8))


def test_sizes_and_scales_of_pictures_are_known_by_their_names() -> None:
    """As a detector takes them that cuts its boxes off at the picture's own edge."""
    m = model("""g (float[1, 3, 96, 64] image, float[1, 2] im_shape, float[1, 2] scale_factor,
                    float threshold) => (float[1, 3, 96, 64] y, float[1, 2] size) {
        size = Div(im_shape, scale_factor)
        y = ThresholdedRelu<alpha=0.5>(image) t = Add(threshold, threshold) }""")
    made = vectors(m)
    sizes = np.concatenate([v.feeds["im_shape"] for v in made])
    scales = np.concatenate([v.feeds["scale_factor"] for v in made])
    shares = np.stack([v.feeds["threshold"] for v in made])
    assert sizes[0].tolist() == [96, 64]
    assert np.all(sizes == np.rint(sizes))
    assert np.all((sizes >= [48, 32]) & (sizes <= [96, 64]))
    assert np.all((scales >= 0.5) & (scales <= 2))
    assert np.ptp(scales) > 0.5
    assert np.all((shares >= 0) & (shares < 1))


def test_a_scale_is_zero_once_beside_ordinary_inputs() -> None:
    m = model("g (float[1, 8] x, float scale) => (float[1, 8] y) { y = Mul(x, scale) }")
    found = [v for v in vectors(m) if v.origin == "synthetic:natural with scales of 0"]
    assert len(found) == 1
    assert found[0].feeds["scale"] == 0
    assert found[0].feeds["x"].any()
    assert not found[0].edge
    divisor = model("g (float[1, 8] x, float scale) => (float[1, 8] y) { y = Div(x, scale) }")
    assert all(v.feeds["scale"] > 0 for v in vectors(divisor) if not v.edge)


def test_noise_is_noise_in_every_vector() -> None:
    """A voice that draws how long its sounds are speaks for hours where it is anything else."""
    m = model("g (float[1, 400] noise) => (float[1, 400] y) { y = Exp(noise) }")
    records: dict[str, Preprocessing] = {"noise": NoiseInput(scale=0.5)}
    with Oracles(m) as oracles:
        found = gather_vectors(
            m, oracles.inputs, oracles=oracles, preprocessing=records, reach=True
        )
    drawn = [v.feeds["noise"] for v in found.vectors if v.feeds["noise"].any()]
    assert len(found.vectors) > len(drawn) > 1
    for noise in drawn:
        assert 0.4 < noise.std() < 0.6
        assert abs(noise.mean()) < 0.15
    assert found.ranges == {"noise": InputRange(-4.0, 4.0, "declared")}


def test_inputs_that_the_source_refuses_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A style that was not judged was left out without a word."""
    real = Oracles.run

    def run(self: Oracles, feeds: Feeds) -> dict[str, Array]:
        if 0 < np.abs(feeds["x"]).max() < 1e-3:
            raise RunError("its kernel knows no tiny numbers")
        return real(self, feeds)

    monkeypatch.setattr(Oracles, "run", run)
    made = vectors(model(PLAIN))
    assert not [v for v in made if "tiny" in v.origin]
    assert made[0].note.endswith(
        "left out tiny: the source does not run with it: its kernel knows no tiny numbers"
    )


def test_no_cast_is_asked_for_what_its_type_does_not_hold() -> None:
    """Each engine gives something else for Cast<int32>(exp(30)), so the model was refused."""
    text = "g (float[1, 8] x) => (int32[1, 8] y) { e = Exp(x) y = Cast<to=6>(e) }"
    made = vectors(model(text))
    assert all(np.exp(v.feeds["x"]).max() < 2**31 for v in made)
    assert len(made) > 4
    why = "ONNX leaves open what a cast of 'e' to int32 gives there"
    assert made[0].note == f"left out large, offset, huge: {why}"
    held = "g (float[1, 8] x) => (uint8[1, 8] y) { e = Exp(x) y = Cast<to=2>(e) }"
    assert any("large" in v.origin for v in vectors(model(held)))


def test_roots_of_powers_are_asked_where_powers_leave_float32() -> None:
    text = "g (float[1,2,6] x) => (float[1,2,5] y) { y = LpPool<kernel_shape = [2], p = 3>(x) }"
    sizes = {v.origin: float(np.abs(v.feeds["x"]).max()) for v in vectors(model(text))}
    assert sizes["synthetic:faint"] < 1e-19
    assert sizes["synthetic:far"] > 1e14
    assert not any(
        "far" in v.origin
        for v in vectors(model(text.replace("LpPool", "MaxPool").replace(", p = 3", "")))
    )


def test_angles_are_not_asked_where_they_mean_nothing() -> None:
    text = "g (float[2,6] x) => (float[2,1] y, float[2,6] s) { y = ReduceL2(x, a) s = Sin(x) }"
    source = model(text.replace("{ y", "<int64[1] a = {1}> { y"))
    origins = {v.origin for v in vectors(source)}
    assert "synthetic:faint" in origins
    assert "synthetic:far" not in origins
