import numpy as np
import pytest

from tests.convert.lower.coreml.run import check, floats, refusal

REDUCED = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSumExp"),
)


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("keep", [0, 1])
def test_reduction(op: str, keep: int) -> None:
    for axes in ("{1}", "{0,-1}"):
        count = axes.count(",") + 1
        text = (
            f"g (float[2,3,4] x) => (y) <int64[{count}] a = {axes}> "
            f"{{y = {op}<keepdims={keep}>(x, a)}}"
        )
        check(text, {"x": floats(2, 3, 4)}, rtol=5e-6)


def test_reduction_of_everything_and_of_integers() -> None:
    check("g (float[2,3] x) => (y) {y = ReduceSum<keepdims=0>(x)}", {"x": floats(2, 3)})
    text = "g (int32[2,3] x) => (y) {y = ReduceMax(x)}"
    check(text, {"x": np.arange(-3, 3, dtype=np.int32).reshape(2, 3)})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(op: str, last: int) -> None:
    x = np.array([[1, 5, 5, 2], [3, 3, 0, 0]], np.float32)
    call = f"{op}<axis=1, keepdims=0, select_last_index={last}>(x)"
    check(f"g (float[2,4] x) => (int64[2] y) {{y = {call}}}", {"x": x})


@pytest.mark.parametrize("attributes", ["", "exclusive=1", "reverse=1", "exclusive=1, reverse=1"])
def test_running_sum(attributes: str) -> None:
    call = f"CumSum<{attributes}>(x, a)".replace("<>", "")
    check(f"g (float[2,5] x) => (y) <int64 a = {{1}}> {{y = {call}}}", {"x": floats(2, 5)})


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int) -> None:
    text = (
        "g (float[3,7] x) => (float[3,4] v, int64[3,4] i) <int64[1] k = {4}> "
        f"{{v, i = TopK<largest={largest}>(x, k)}}"
    )
    check(text, {"x": floats(3, 7)})


MOVES = (
    ("Reshape(x, s)", "int64[3] s = {4, 0, -1}"),
    ("Transpose<perm=[2,0,1]>(x)", ""),
    ("Flatten<axis=-1>(x)", ""),
    ("Unsqueeze(x, s)", "int64[2] s = {0, -1}"),
    ("Slice(x, b, e, a, t)", "int64[2] b = {-1,1}, int64[2] e = {-9,3}, int64[2] a = {0,2}, "
     "int64[2] t = {-2,1}"),
    ("Expand(x, s)", "int64[4] s = {2,4,3,5}"),
    ("Tile(x, s)", "int64[3] s = {1,2,3}"),
    ("Pad(x, s, v)", "int64[6] s = {1,0,2,0,1,0}, float v = {3.5}"),
    ("Pad(x, s)", "int64[6] s = {0,-1,2,-1,0,-3}"),
    ('Pad<mode="reflect">(x, s)', "int64[6] s = {2,1,0,1,0,3}"),
    ('Pad<mode="edge">(x, s)', "int64[6] s = {2,1,0,1,0,3}"),
    ('Pad<mode="wrap">(x, s)', "int64[6] s = {2,1,0,1,0,3}"),
    ("Trilu<upper=0>(x, s)", "int64 s = {1}"),
    ("Gather<axis=1>(x, s)", "int64[2,2] s = {0,-1,2,1}"),
    ("GatherElements<axis=2>(x, s)", "int64[4,3,1] s = {0,1,2,3,-1,0,1,2,3,0,1,-5}"),
    ("GatherND(x, s)", "int64[2,2] s = {0,1,-1,2}"),
    ("Concat<axis=1>(x, x)", ""),
)  # fmt: skip


@pytest.mark.parametrize(("call", "constants"), MOVES)
def test_movement(call: str, constants: str) -> None:
    held = f"<{constants}>" if constants else ""
    check(f"g (float[4,3,5] x) => (y) {held} {{y = {call}}}", {"x": floats(4, 3, 5)})


@pytest.mark.parametrize("kind", ["bool", "int32", "uint8"])
def test_movement_of_other_types(kind: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(kind)
    for call in ("Gather<axis=1>(x, s)", "Transpose(x)", "Pad(x, p)", "Concat<axis=0>(x, x)"):
        text = (
            f"g ({kind}[2,3] x) => (y) <int64[2] s = {{2,0}}, int64[4] p = {{1,0,0,2}}> "
            f"{{y = {call}}}"
        )
        check(text, {"x": x})


def test_split_into_uneven_parts() -> None:
    text = "g (float[7,2] x) => (a, b, c) {a, b, c = Split<num_outputs=3>(x)}"
    check(text, {"x": floats(7, 2)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    call = f'ScatterND<reduction="{reduction}">(x, i, u)'
    text = f"g (float[4,3] x, float[2,3] u) => (y) <int64[2,1] i = {{1,-1}}> {{y = {call}}}"
    check(text, {"x": floats(4, 3), "u": floats(2, 3, seed=1)})
    call = f'ScatterElements<axis=1, reduction="{reduction}">(x, i, u)'
    text = f"g (float[4,3] x, float[2,2] u) => (y) <int64[2,2] i = {{0,2,1,-1}}> {{y = {call}}}"
    check(text, {"x": floats(4, 3), "u": floats(2, 2, seed=1)})


def test_one_hot_and_where_it_is() -> None:
    text = (
        "g (int64[3] x) => (y) <int64 d = {4}, float[2] v = {-1.0, 2.0}> "
        "{y = OneHot<axis=0>(x, d, v)}"
    )
    check(text, {"x": np.array([0, 3, -1])})
    check(
        "g (float[2,3] x) => (int64[2,N] y) {y = NonZero(x)}", {"x": np.eye(2, 3, dtype=np.float32)}
    )


def test_shapes_of_a_run() -> None:
    text = (
        "g (float[N,3,M] x) => (float[P,3] y) <int64[1] m = {-1}, int64[1] t = {3}, "
        "int64 z = {0}, int64 u = {2}> "
        "{s = Shape(x) a = Gather(s, z) b = Gather(s, u) p = Mul(a, b) o = Reshape(p, m) "
        "q = Concat<axis=0>(o, t) r = Transpose<perm=[0,2,1]>(x) y = Reshape(r, q)}"
    )
    check(text, {"x": floats(2, 3, 4)}, {"x": floats(1, 3, 5)})


def test_slice_between_bounds_of_a_run() -> None:
    text = "g (float[6,2] x, int64[1] b, int64[1] e) => (float[N,2] y) {y = Slice(x, b, e)}"
    feeds = {"x": floats(6, 2), "b": np.array([1]), "e": np.array([4])}
    check(text, feeds, {**feeds, "b": np.array([-3]), "e": np.array([99])})


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->bik", "ij->ji", "ij,ij->i", "i,j->ij"])
def test_einstein_sum(equation: str) -> None:
    left = equation.split("->")[0].split(",")
    sizes = {"i": 3, "j": 4, "k": 5, "b": 2}
    shapes = [[sizes[c] for c in part] for part in left]
    names = "xz"[: len(shapes)]
    operands = ", ".join(f"float{s} {n}" for s, n in zip(shapes, names, strict=True))
    call = f'Einsum<equation="{equation}">({", ".join(names)})'
    feeds = {n: floats(*s, seed=i) for i, (n, s) in enumerate(zip(names, shapes, strict=True))}
    check(f"g ({operands}) => (y) {{y = {call}}}", feeds)


MATRICES = (
    *(((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,))),
    ((2, 1, 2, 3), (5, 3, 4)),
)


@pytest.mark.parametrize("shapes", MATRICES)
def test_matrix_product(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = shapes
    text = f"g (float{list(a)} a, float{list(b)} b) => (y) {{y = MatMul(a, b)}}"
    check(text, {"a": floats(*a), "b": floats(*b, seed=1)})


@pytest.mark.parametrize("attributes", ["", "alpha=0.5, beta=2.0", "transA=1, transB=1"])
def test_gemm_by_a_known_matrix(attributes: str) -> None:
    shape, rows = ((4, 3), "[3,2]") if "trans" in attributes else ((3, 4), "[2,3]")
    values = ",".join(f"{v:.5f}" for v in floats(12).ravel())
    call = f"Gemm<{attributes}>(x, w, c)".replace("<>", "")
    text = (
        f"g (float{rows} x) => (y) <float{list(shape)} w = {{{values}}}, "
        f"float[4] c = {{1.0,2.0,3.0,4.0}}> {{y = {call}}}"
    )
    sizes = (3, 2) if "trans" in attributes else (2, 3)
    check(text, {"x": floats(*sizes)})


def test_tensors_without_elements_are_refused() -> None:
    text = (
        "g (float[4] x) => (float[0] y) <int64[1] b = {3}, int64[1] e = {3}> {y = Slice(x, b, e)}"
    )
    assert refusal(text)[0].reason == "dynamic_shape"
