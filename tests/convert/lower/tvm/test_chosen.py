"""Results whose size the data decides: from nothing to all of it, in turn on one library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tvm.run import Array, load, lower


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')


def _agree(folder: Path, text: str, *all_feeds: dict[str, Array]) -> list[tuple[int, ...]]:
    """Run one library on all feeds, next to ONNX Runtime; return the first result's sizes."""
    model = _model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    ready, sizes = load(model, folder), []
    for feeds in all_feeds:
        wanted = session.run(None, feeds)
        got = ready.run(feeds)
        for value, name in zip(wanted, (o.name for o in model.graph.output), strict=True):
            assert got[name].shape == value.shape
            assert got[name].dtype == value.dtype
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
        sizes.append(wanted[0].shape)
    ready.close()
    return sizes


@pytest.mark.parametrize("kind", ["float", "bool", "int64"])
def test_places_of_what_is_not_zero_in_an_open_picture(tmp_path: Path, kind: str) -> None:
    text = f"({kind}[n,3,l] x) => (int64[3,m] y) {{ y = NonZero(x) }}"
    dtype = np.dtype({"float": "f4", "bool": "?", "int64": "i8"}[kind])
    rng = np.random.default_rng(0)
    some = (rng.random((5, 3, 4)) > 0.5).astype(dtype)
    if kind == "float":
        some[3, 1, 2:] = np.nan, -np.inf
    feeds = [some, np.zeros((2, 3, 4), dtype), np.ones((1, 3, 4), dtype), some]
    sizes = _agree(tmp_path, text, *({"x": x} for x in feeds))
    there = np.count_nonzero(some)
    assert [s[1] for s in sizes] == [there, 0, 12, there]


def test_a_mask_chooses_rows_and_what_follows_takes_them(tmp_path: Path) -> None:
    text = (
        "(float[6,4] x, float[4,2] w) => (float[m,2] y)"
        "<float[1] half = {0.5}, int64[1] one = {1}> {"
        " top = ReduceMax<keepdims=0>(x, one) mask = Greater(top, half)"
        " rows = Compress<axis=0>(x, mask) z = MatMul(rows, w) y = Relu(z) }"
    )
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 2)).astype(np.float32)
    feeds = [rng.random((6, 4)).astype(np.float32) * s for s in (0.6, 0.1, 2, 0.6)]
    sizes = _agree(tmp_path, text, *({"x": x, "w": w} for x in feeds))
    assert sizes[1][0] == 0
    assert sizes[2][0] == 6


_DETECTOR = (
    "(float[1,n,4] b, float[1,3,n] s) => (int64[m,3] y, float[m,4] z)"
    "<int64[1] k = {5}, float[1] o = {0.4}, float[1] t = {0.3}, int64[1] two = {2}, int64 at = {2},"
    " int64[1] none = {0}> {"
    " y = NonMaxSuppression(b, s, k, o, t) row = Gather<axis=1>(y, at) flat = Squeeze(b, none)"
    " z = Gather<axis=0>(flat, row) }"
)


def test_a_detector_keeps_what_no_better_box_overlaps(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    feeds = []
    for count, scale in ((40, 1.0), (7, 0.2), (200, 1.0), (1, 1.0)):
        corner = rng.random((1, count, 2)) * 3
        boxes = np.concatenate([corner, corner + rng.random((1, count, 2))], 2)
        scores = np.round(rng.random((1, 3, count)) * scale, 2)
        feeds.append({"b": boxes.astype(np.float32), "s": scores.astype(np.float32)})
    sizes = _agree(tmp_path, _DETECTOR, *feeds)
    assert sizes[1] == (0, 3)
    assert sizes[2][0] > 6


@pytest.mark.sample(each=("mode", "how"))
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("how", ["avg", "max"])
def test_regions_decide_how_many_samples_they_have(tmp_path: Path, mode: str, how: str) -> None:
    text = (
        "(float[2,3,16,20] x, float[n,4] r, int64[n] i) => (float[n,3,4,5] y) {"
        f' y = RoiAlign<coordinate_transformation_mode="{mode}", mode="{how}", output_height=4,'
        " output_width=5, sampling_ratio=0, spatial_scale=0.5>(x, r, i) }"
    )
    rng = np.random.default_rng(3)
    feeds: list[dict[str, Array]] = []
    for count in (6, 0, 1):
        first = rng.random((count, 2)) * 20 - 4
        rois = np.concatenate([first, first + rng.random((count, 2)) * 40], 1).astype(np.float32)
        x = rng.standard_normal((2, 3, 16, 20)).astype(np.float32)
        feeds.append({"x": x, "r": rois, "i": rng.integers(0, 2, count)})
    _agree(tmp_path, text, *feeds)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kinds", [("axis=0", "axis=2", "sorted=0"), ("axis=0, sorted=0", "sorted=1")], ids=len
)
def test_distinct_slices_of_each_kind(kinds: tuple[str, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    feeds = [{"x": rng.integers(0, k, (9, 2, 3)).astype(np.int64)} for k in (2, 1, 50)]
    outputs, nodes = [], []
    for n, given in enumerate(kinds):
        shape = "9,2,M" if "2" in given else "M,2,3" if "axis" in given else "M"
        sizes = {"y": shape.replace("M", f"m{n}"), "i": f"a{n}", "j": f"b{n}", "k": f"c{n}"}
        outputs += [f"int64[{size}] {name}{n}" for name, size in sizes.items()]
        nodes.append(f"y{n}, i{n}, j{n}, k{n} = Unique<{given}>(x)")
    _agree(tmp_path, f"(int64[9,2,3] x) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}", *feeds)


def test_a_result_of_one_size_that_is_declared_as_open(tmp_path: Path) -> None:
    text = "(float[1] x) => (float[n] y, int64[n] i) { y, i = Unique(x) }"
    assert _agree(tmp_path, text, {"x": np.ones(1, np.float32)}) == [(1,)]


@pytest.mark.parametrize(
    "op", ["NonZero(x)", 'RoiAlign<mode="max">(x, r, i)', "NonMaxSuppression(r, i)"]
)
def test_a_gpu_refuses_what_one_thread_counts(tmp_path: Path, op: str) -> None:
    kinds = {"R": "float[1,1,4,4] x, float[n,4] r, int64[n] i", "N": "float[1,1,4,4] x"}[op[0]]
    if "Max" in op:
        kinds = "float[1,5,4] r, float[1,2,5] i"
    out = "float[n,1,1,1] y" if "Roi" in op else "int64[a,b] y"
    # The mean of samples is products there.
    with pytest.raises(UnsupportedError, match="GPU"):
        lower(_model(f"({kinds}) => ({out}) {{ y = {op} }}"), tmp_path, "sm_90")
