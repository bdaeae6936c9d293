"""Each kernel against float64, over shapes with tails, on memory that is not aligned."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.products import Product
from tests.kernels.run import HERE, MACHINES, Array, compiled, cpu, machine, misaligned, tvm

from edgeinfer.kernels.defs import conv, gemm, gemv, math, recurrent  # isort: skip
from edgeinfer.kernels.defs.emit import Piece, function, load, loop, pieces, store  # isort: skip


def _normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _close(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    error = float(np.abs(got - want).max(initial=0.0))
    assert error <= tolerance * max(1.0, float(np.abs(want).max(initial=0.0))), error


def test_pieces_cover_a_row() -> None:
    assert pieces(21, 8) == [Piece(0, 8), Piece(8, 8), Piece(16, 4), Piece(20, 1)]
    assert pieces(0, 8) == []


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("sizes", "packed"),
    [
        ((1, 1, 5, 3), True),
        ((1, 1, 33, 300), True),
        ((1, 1, 131, 10), True),
        ((1, 2, 67, 3), False),
        ((1, 7, 16, 17), False),
        ((1, 13, 9, 70), True),
        ((3, 6, 8, 5), False),
    ],
)
def test_matmul(name: str, sizes: tuple[int, int, int, int], packed: bool) -> None:
    batch, m, k, n = sizes
    a, b = _normal(batch, m, k), _normal(batch, k, n)
    kernel = gemm.matmul(
        cpu(name),
        sizes,
        packed=packed,
        shared=packed,
        extra={"bias": ((1, n), "float32")},
        finish=lambda bias: (
            lambda value, row, column, width: value + load(bias, [0, column], width)
        ),
    )
    bias = _normal(1, n)
    right = gemm.pack_columns(b[0], gemm.panel_width(cpu(name), m, n)) if packed else b
    out = misaligned(np.zeros((batch, m, n), np.float32))
    compiled(kernel, name)(misaligned(a), misaligned(right), misaligned(bias), out)
    _close(out, a.astype(np.float64) @ b.astype(np.float64) + bias)


@pytest.mark.sample(each=("name", "m"))
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 128, 1), (5, 37, 2), (3, 64, 4), (2, 33, 1)])
def test_narrow_product(name: str, m: int, k: int, n: int) -> None:
    a, b, bias = _normal(m, k), _normal(n, k), _normal(1, n)
    kernel = gemm.narrow(
        cpu(name),
        (1, m, k, n),
        extra={"bias": ((1, n), "float32")},
        finish=lambda bias: (
            lambda value, row, column, width: value + load(bias, [0, column], width)
        ),
    )
    out = misaligned(np.zeros((1, m, n), np.float32))
    compiled(kernel, name)(misaligned(a[None]), misaligned(b), misaligned(bias), out)
    _close(out[0], a.astype(np.float64) @ b.T.astype(np.float64) + bias)


def _convolved(x: Array, weights: Array, w: conv.ConvWindow) -> Array:
    top, left, bottom, right = w.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    per, inside = w.filters // w.groups, w.channels // w.groups
    out = np.zeros((w.batch, w.filters, *w.out))
    for f in range(w.filters):
        first = f // per * inside
        for i in range(w.kernel[0]):
            for j in range(w.kernel[1]):
                rows = slice(i * w.dilations[0], None, w.strides[0])
                columns = slice(j * w.dilations[1], None, w.strides[1])
                part = padded[:, first : first + inside, rows, columns]
                part = part[:, :, : w.out[0], : w.out[1]]
                out[:, f] += (part * weights[f, :, i, j][:, None, None]).sum(1)
    return out


WINDOWS = [
    conv.ConvWindow(1, 3, 7, 1, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    conv.ConvWindow(2, 6, 8, 2, (9, 11), (3, 2), (2, 1), (1, 2), (0, 1, 2, 0)),
    conv.ConvWindow(1, 5, 9, 1, (6, 7), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    conv.ConvWindow(1, 4, 4, 4, (8, 21), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    conv.ConvWindow(1, 4, 8, 4, (5, 6), (3, 3), (1, 2), (2, 1), (2, 1, 2, 3)),
    conv.ConvWindow(1, 1, 6, 1, (1, 40), (1, 16), (1, 4), (1, 1), (0, 3, 0, 3)),
    conv.ConvWindow(1, 2, 3, 1, (1, 40), (1, 5), (1, 3), (1, 2), (0, 4, 0, 4)),
    conv.ConvWindow(1, 1, 2, 1, (1, 1300), (1, 80), (1, 2), (1, 1), (0, 5, 0, 3)),
    conv.ConvWindow(1, 2, 5, 1, (1, 1300), (1, 3), (1, 1), (1, 1), (0, 1, 0, 1)),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", HERE[:2])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_conv(name: str, window: conv.ConvWindow) -> None:
    x = _normal(window.batch, window.channels, *window.size)
    weights = _normal(window.filters, window.channels // window.groups, *window.kernel)
    kernel = conv.conv(cpu(name), window, extra={}, finish=lambda: lambda value, *_: value)
    out = misaligned(np.zeros((window.batch, window.filters, np.prod(window.out)), np.float32))
    flat = misaligned(x.reshape(window.batch, window.channels, -1))
    compiled(kernel, name)(flat, misaligned(conv.pack(weights, window, cpu(name))), out)
    _close(out.reshape(window.batch, window.filters, *window.out), _convolved(x, weights, window))


@pytest.mark.parametrize("name", HERE[:2])
def test_functions_of_one_value(name: str) -> None:
    special = [0.0, -0.0, 1e-40, -1e-38, 88.6, 88.8, -87.4, -103.0, -110.0, 1e30, -1e30]
    x = np.concatenate(
        [
            special,
            [np.inf, -np.inf, np.nan],
            np.linspace(-20, 20, 1011),
            np.linspace(-0.7, 0.7, 999),
            1 + np.linspace(-1e-3, 1e-3, 99),
            np.geomspace(1e-45, 3.4e38, 999),
        ]
    ).astype(np.float32)
    lanes = cpu(name).lanes
    x = np.resize(x, -(-x.size // lanes) * lanes)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = {
            "exp": np.exp(wide).astype(np.float32),
            "log": np.log(wide).astype(np.float32),
            "sigmoid": (1 / (1 + np.exp(-wide))).astype(np.float32),
            "tanh": np.tanh(wide).astype(np.float32),
        }
    for which, want in expected.items():

        def body(source, out, single=math.VECTOR[which]):  # type: ignore[no-untyped-def]
            with loop(x.size // lanes) as at:
                store(out, [at * lanes], single(load(source, [at * lanes], lanes)), lanes)

        kernel = function(which, {"x": (x.shape, "float32"), "y": (x.shape, "float32")}, body)
        got = np.zeros_like(x)
        compiled(kernel, name)(x, got)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), which)
        np.testing.assert_allclose(got, want, rtol=5e-7, atol=1e-44, err_msg=which)


@pytest.mark.parametrize("name", HERE)
def test_functions_of_gates(name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4093), [np.inf, -np.inf, np.nan]]).astype(np.float32)
    lanes = cpu(name).lanes
    for single, exact in (
        (math.gate_tanh, np.tanh),
        (math.gate_sigmoid, lambda v: (1 + np.tanh(v / 2)) / 2),
    ):

        def body(source, out, single=single):  # type: ignore[no-untyped-def]
            with loop(x.size // lanes) as at:
                store(out, [at * lanes], single(load(source, [at * lanes], lanes)), lanes)

        kernel = function("gate", {"x": (x.shape, "float32"), "y": (x.shape, "float32")}, body)
        got = np.zeros_like(x)
        compiled(kernel, name)(x, got)
        np.testing.assert_allclose(got, exact(x.astype(np.float64)), rtol=0, atol=3e-7)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    ("hidden", "backwards", "reset"),
    [(5, False, False), (18, True, True), (77, False, True), (40, True, False)],
)
def test_recurrent(kind: str, hidden: int, backwards: bool, reset: bool) -> None:
    _recurrent(HERE[0], recurrent.CellSizes(kind, 3, 2, hidden, backwards, reset))


@pytest.mark.sample(each=("name", "kind"))
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("kind", "hidden", "inputs"),
    [("LSTM", 40, 7), ("GRU", 70, 3), ("LSTM", 3, 0)],
)
def test_one_recurrent_step(name: str, kind: str, hidden: int, inputs: int) -> None:
    _recurrent(name, recurrent.CellSizes(kind, 1, 1, hidden, before_reset=True, inputs=inputs))


def test_a_layer_whose_gate_comes_before_a_product_leaves_inputs_alone() -> None:
    assert recurrent.takes_inputs(1, 1, "GRU", True)
    assert not recurrent.takes_inputs(1, 1, "GRU", False)
    assert not recurrent.takes_inputs(2, 1, "LSTM", False)


def _recurrent(name: str, cell: recurrent.CellSizes) -> None:
    steps, batch, hidden, rows = cell.steps, cell.batch, cell.hidden, cell.gates * cell.hidden
    x, r = _normal(steps, batch, cell.inputs or rows), _normal(rows, hidden) * 0.3
    bias, h, c = _normal(rows) * 0.1, _normal(batch, hidden), _normal(batch, hidden) * 0.5
    if cell.kind == "LSTM" or not cell.before_reset:
        bias[:] = 0
    out = np.zeros((steps, batch, hidden), np.float32)
    last, last_c = np.zeros_like(h), np.zeros_like(c)
    given, weights, products = [x], r, x.astype(np.float64)
    if cell.inputs:
        w, inner = _normal(cell.inputs, rows).T * 0.2, _normal(rows)
        given, weights = [x, inner], np.concatenate([w, r], axis=1)
        products = products @ w.T.astype(np.float64) + inner
    given += [recurrent.pack_state(weights, cell, cpu(name)), bias, h]
    extra = ([c], [last_c]) if cell.kind == "LSTM" else ([], [])
    call = compiled(recurrent.recurrent(cpu(name), cell), name)
    call(*map(misaligned, (*given, *extra[0])), out, last, *extra[1])
    want, state = np.zeros(out.shape), h.astype(np.float64)
    memory = c.astype(np.float64)
    for step in range(steps)[::-1] if cell.backwards else range(steps):
        state, memory = _step(cell, products[step], r, bias, state, memory)
        want[step] = state
    _close(out, want)
    _close(last, state)
    if cell.kind == "LSTM":
        _close(last_c, memory)


def _step(
    cell: recurrent.CellSizes, x: Array, r: Array, bias: Array, h: Array, c: Array
) -> tuple[Array, Array]:
    def sigmoid(v: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-v)))

    parts = np.split(r.astype(np.float64), cell.gates)
    given = np.split(x, cell.gates, axis=1)
    if cell.kind == "LSTM":
        i, o, f = (sigmoid(v + h @ w.T) for v, w in zip(given[:3], parts[:3], strict=True))
        c = f * c + i * np.tanh(given[3] + h @ parts[3].T)
        return o * np.tanh(c), c
    z, reset = (sigmoid(v + h @ w.T) for v, w in zip(given[:2], parts[:2], strict=True))
    if cell.before_reset:
        inner = reset * (h @ parts[2].T + np.split(bias, 3)[2])
    else:
        inner = (reset * h) @ parts[2].T
    return (1 - z) * np.tanh(given[2] + inner) + z * h, c


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [n for n in HERE if n in gemv.DOTS])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("shape", "block", "vectors"),
    [
        ((16, 32), 32, 1),
        ((48, 96), 32, 3),
        ((256, 128), 64, 1),
        ((32, 256), 128, 2),
        # Rows, columns and blocks that are not full.
        ((37, 77), 64, 9),
        ((3, 5), 128, 1),
    ],
)
def test_gemv(name: str, bits: int, shape: tuple[int, int], block: int, vectors: int) -> None:
    case = Product(bits, shape, block, vectors)
    y = misaligned(np.zeros((vectors, shape[0]), np.float32))
    compiled(case.kernel(gemv.DOTS[name]), name)(*case.operands(gemv.DOTS[name]), y)
    _close(y, case.expected(), 1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [n for n in HERE if n in ("x86-64-v3", "x86-64-v4-vnni")])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "form",
    [
        gemv.ProductForm(fine=True),
        gemv.ProductForm(zeros=True, scales="float32", fine=True),
        gemv.ProductForm(zeros=True, step=64),
    ],
)
def test_gemv_of_each_form(name: str, bits: int, form: gemv.ProductForm) -> None:
    case = Product(bits, (37, 197), 64, 3, form)
    y = misaligned(np.zeros((3, 37), np.float32))
    compiled(case.kernel(gemv.DOTS[name]), name)(*case.operands(gemv.DOTS[name]), y)
    # Of a vector with 16 bits, 1/64000 of its largest element is what may be missing.
    _close(y, case.expected(), 2e-5)


@pytest.mark.skipif("x86-64-v4-vnni" not in HERE, reason="this CPU has no VNNI")
@pytest.mark.parametrize("bits", [4, 8])
def test_avx_vnni(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs with AVX-512 run the same kernel; what is written for CPUs without it is looked at."""
    name = "x86-64-v3-vnni"
    dot, own = gemv.DOTS[name], machine(name)
    plain = Product(bits, (37, 77), 64, 9)
    module = {"kernel": plain.kernel(dot).with_attr("global_symbol", "kernel")}
    text = tvm.compile(tvm.IRModule(module), target=own.target()).mod.inspect_source("asm")
    assert "{vex}\tvpdpbusd" in text
    assert not re.search(r"%zmm|%k[0-7]|%ymm(1[6-9]|[23]\d)", text)
    wide = replace(own, attributes=("+avx512vnni", "+avx512vl"))
    monkeypatch.setitem(MACHINES, name, wide)
    for shape, block, vectors in [((37, 77), 64, 9), ((48, 96), 32, 3), ((8, 256), 128, 1)]:
        case = Product(bits, shape, block, vectors)
        y = misaligned(np.zeros((vectors, shape[0]), np.float32))
        compiled(case.kernel(dot), name)(*case.operands(dot), y)
        _close(y, case.expected(), 1e-5)


@pytest.mark.parametrize("place", [0, 76])
def test_gemv_of_what_is_no_number_is_none(place: int) -> None:
    case = Product(4, (9, 77), 32, 2)
    w, s, x = case.operands(gemv.DOTS["x86-64-v3"])
    x[1, place] = np.nan
    y = np.zeros((2, 9), np.float32)
    compiled(case.kernel(gemv.DOTS["x86-64-v3"]), "x86-64-v3")(w, s, x, y)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[0]).all()


def test_gemv_of_next_to_nothing_is_next_to_nothing() -> None:
    w, s, x = Product(4, (9, 77), 32, 2).operands(gemv.DOTS["x86-64-v3"])
    y = np.ones((2, 9), np.float32)
    compiled(Product(4, (9, 77), 32, 2).kernel(gemv.DOTS["x86-64-v3"]), "x86-64-v3")(
        w, s, misaligned(x * np.float32(1e-38)), y
    )
    assert np.abs(y).max() < 1e-36


@pytest.mark.parametrize(
    ("shape", "block", "vectors"),
    [((8, 64), 48, 1), ((0, 64), 32, 1), ((8, 0), 32, 1), ((8, 64), 0, 1), ((8, 64), 32, 0)],
)
def test_gemv_refuses_other_sizes(shape: tuple[int, int], block: int, vectors: int) -> None:
    with pytest.raises(ValueError, match="sizes from 1, and blocks of a multiple of 32"):
        gemv.gemv_int4(gemv.DOTS["x86-64-v3"], *shape, block, vectors)


@pytest.mark.parametrize("name", gemv.DOTS)
@pytest.mark.parametrize("bits", [4, 8])
def test_gemv_asks_for_weights_ahead(name: str, bits: int) -> None:
    """Once for each line of 64 bytes of a step, whatever the number of vectors is."""
    dot = gemv.DOTS[name]
    make = gemv.gemv_int4 if bits == 4 else gemv.gemv_int8
    for vectors in (1, 4):
        text = make(dot, 4 * dot.rows, 256, vectors=vectors).script()
        assert text.count("llvm.prefetch") == max(1, bits * dot.rows * 4 // 64)


@pytest.mark.skipif("x86-64-v4-vnni" not in HERE, reason="this CPU has no VNNI")
@pytest.mark.parametrize("bits", [4, 8])
def test_gemv_reads_from_several_places_to_the_same_bits(bits: int) -> None:
    """As on processors with AMX, whose kernels of one vector need no more than VNNI."""
    case, name = Product(bits, (2048, 96), 32, 1, gemv.ProductForm(fine=True)), "x86-64-v4-vnni"
    found = []
    for dot in (gemv.DOTS[name], gemv.DOTS["x86-64-v4-amx"]):
        y = misaligned(np.zeros((1, 2048), np.float32))
        compiled(case.kernel(dot), name)(*case.operands(dot), y)
        found.append(y)
    assert np.array_equal(found[0], found[1])
    _close(found[0], case.expected(), 2e-5)
    lines = [case.kernel(dot).script().count("llvm.prefetch") for dot in gemv.DOTS.values()]
    assert lines[0] == 4 * lines[1]


def test_a_transform_of_sound_is_no_straight_code() -> None:
    window = conv.ConvWindow(1, 1, 258, 1, (1, 640), (1, 256), (1, 128), (1, 1), (0, 0, 0, 0))
    made = conv.conv(cpu(HERE[0]), window, extra={}, finish=lambda: lambda value, *_: value)
    assert made.script().count("\n") < 2000


def test_a_long_row_of_sound_is_a_loop() -> None:
    """Written out, its code grows with the sound."""

    def size(length: int) -> int:
        window = conv.ConvWindow(1, 1, 1, 1, (1, length), (1, 256), (1, 2), (1, 1), (0, 0, 0, 0))
        plain = conv.conv(cpu(HERE[0]), window, extra={}, finish=lambda: lambda value, *_: value)
        return len(plain.script())

    assert size(32 * 1024) < 1.1 * size(4 * 1024)
