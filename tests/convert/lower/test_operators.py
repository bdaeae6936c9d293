"""Operators of every family in their forms, one test over every format that lowers them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.convert.lower.forms import FORMATS, LEAST, MOST, Form, check, f, form, i, one

WHOLE = {
    k: np.random.default_rng(0).integers(0, 90, (4, 3, 5)).astype(k) for k in ("int32", "bool")
}


def _named(*forms: Form) -> dict[str, Form]:
    found: dict[str, Form] = {}
    for made in forms:
        name = made.text.partition("{ ")[2].removesuffix(" }")
        again = sum(other.startswith(name) for other in found)
        found[f"{name} #{again}" if again else name] = made
    return found


def _w(*shape: int) -> dict[str, Any]:
    """Weights of a convolution and its bias."""
    return {"w": f(*shape), "b": f(shape[0])}


_T = {"a": f(4, 3), "b": f(3, 4)}
_EVEN = np.array([[1, 5, 5, 2], [3, 3, 0, 0]], np.float32)
_EDGES = np.array([np.nan, np.inf, -np.inf, 1], np.float32)

_X = np.concatenate([np.linspace(-9, 9, 33), [0, -0.5, 0.5, 1e-4, -1e-4]]).astype(np.float32)

ELEMENTS = _named(
    *(
        form(f"{call}(x)", x=_X)
        for call in (
            *("LeakyRelu<alpha=1.7>", "LeakyRelu<alpha=-0.3>", "Elu<alpha=0.3>", "Elu<alpha=-2.0>"),
            *("Selu<alpha=1.5, gamma=0.7>", "Celu<alpha=0.25>", "HardSigmoid<alpha=0.5, beta=0.1>"),
            *("ThresholdedRelu<alpha=-0.5>", "Shrink<bias=0.25, lambd=1.5>", "Mish"),
        )
    ),
    *(
        form(f"{op}(a, b)", a=f(2, 3, 4), b=f(3, 1))
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Mean", "Sum")
    ),
    *(form(f"{op}(x)", x=_EDGES) for op in ("IsNaN", "IsInf<detect_negative=0>")),
    *(
        form(f"{op}(a, b)", a=f(4).round(), b=f(3, 1).round())
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    *(form(f"{op}(a, b)", a=f(4) > 0, b=f(3, 1) > 0) for op in ("And", "Or", "Xor", "Equal")),
    form("Where(c, a, b)", c=f(2, 1) > 0, a=f(3), b=one(9, np.float32)),
    *(
        form(f"{op}(a, b)", a=np.arange(-6, 6, dtype=k), b=np.array([2], k))
        for k in (np.int32, np.int8)
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Mod<fmod=1>")
    ),
    form("Mod<fmod=1>(a, b)", a=f(5) * 9, b=f(5)),
    *(form("Pow(x, p)", {"p": one(p, np.float32)}, x=np.abs(f(3, 4))) for p in (0.5, 2, 3, -2)),
    *(
        form(
            f"c = Clip(x, l, h) y = Cast<to={to}>(c)",
            {"l": one(-9, np.float32), "h": one(9, np.float32)},
            x=f(5) * 3,
        )
        for to in (1, 6, 7, 9, 10)
    ),
    form(
        "Clip(x, l, h)",
        {"l": one(2, np.int32), "h": one(4, np.int32)},
        x=np.arange(-6, 7, dtype=np.int32),
    ),
    *(
        form(
            f"{op}(a, b)",
            a=np.arange(-90, 90, 18).astype(k),
            b=np.arange(10).astype(k)[::-1].copy(),
        )
        for k in (np.int8, np.uint8, np.int32)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    *(
        form(
            f'BitShift<direction="{way}">(a, b)',
            a=np.arange(0, 250, 25, dtype=np.uint8),
            b=np.arange(10, dtype=np.uint8) % 8,
        )
        for way in ("LEFT", "RIGHT")
    ),
)

REDUCED = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
REDUCTIONS = _named(
    *(
        form(f"Reduce{op}<keepdims={keep}>(x, a)", {"a": i(*axes)}, x=np.abs(f(2, 3, 4)))
        for op in REDUCED
        for keep, axes in ((0, (1,)), (1, (0, -1)))
    ),
    form("ReduceSum<keepdims=0>(x)", x=f(2, 3)),
    *(form(f"Reduce{op}(x, a)", {"a": i(0)}, x=WHOLE["int32"]) for op in ("Max", "Sum", "Min")),
    *(
        form(f"{op}<axis=1, keepdims=0, select_last_index={last}>(x)", x=_EVEN)
        for op in ("ArgMax", "ArgMin")
        for last in (0, 1)
    ),
    *(
        form(f"CumSum<exclusive={out}, reverse={back}>(x, a)", {"a": one(1)}, x=f(2, 5, 3))
        for out in (0, 1)
        for back in (0, 1)
    ),
    *(
        form(
            f"v, j = TopK<axis={axis}, largest={largest}>(x, k)",
            {"k": i(3)},
            outs="v, j",
            x=f(5, 7).round(),
        )
        for axis in (0, -1)
        for largest in (0, 1)
    ),
    *(
        form(f"{op}<axis={axis}>(x)", x=f(3, 4, 5))
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (0, 2)
    ),
)

MOVES = _named(
    *(
        form(call, known, x=f(4, 3, 5))
        for call, known in (
            ("Reshape(x, s)", {"s": i(4, 0, -1)}),
            ("Transpose<perm=[2,0,1]>(x)", {}),
            *((f"Flatten<axis={axis}>(x)", {}) for axis in (0, 2, -1)),
            ("Unsqueeze(x, s)", {"s": i(0, -1)}),
            *(
                ("Slice(x, b, e, a, t)", {"b": i(*b), "e": i(*e), "a": i(0, 2), "t": i(*t)})
                for b, e, t in (
                    ((1, 2), (3, 6), (1, 1)),
                    ((-2, 0), (MOST, -1), (1, 3)),
                    ((0, 4), (100, 1), (2, -1)),
                    ((-100, -3), (-1, MOST), (1, 1)),
                )
            ),
            ("Slice(x, b, e, a, t)", {"b": i(-1, 1), "e": i(-9, 3), "a": i(0, 2), "t": i(-2, 1)}),
            (
                "Slice(x, b, e, a, t)",
                {"b": i(MOST, 1), "e": i(LEAST, MOST), "a": i(2, 0), "t": i(-1, 2)},
            ),
            ("Expand(x, s)", {"s": i(2, 4, 3, 5)}),
            ("Tile(x, s)", {"s": i(1, 2, 3)}),
            ("Pad(x, s, v)", {"s": i(1, 0, 2, 0, 1, 0), "v": one(3.5, np.float32)}),
            ("Pad(x, s)", {"s": i(0, -1, 2, -1, 0, -3)}),
            *(
                (f'Pad<mode="{m}">(x, s)', {"s": i(2, 1, 0, 1, 0, 3)})
                for m in ("reflect", "edge", "wrap")
            ),
            *(
                (f"Trilu<upper={u}>(x, s)", {"s": one(k)})
                for u in (0, 1)
                for k in (0, 1, -2, 9, -9)
            ),
            *(
                (f"Gather<axis={axis}>(x, s)", {"s": i(0, -1, 2, 1).reshape(2, 2)})
                for axis in (0, 1, -1)
            ),
            (
                "GatherElements<axis=2>(x, s)",
                {"s": i(0, 1, 2, 3, -1, 0, 1, 2, 3, 0, 1, -5).reshape(4, 3, 1)},
            ),
            ("GatherND(x, s)", {"s": i(0, 1, -1, 2).reshape(2, 2)}),
            ("Concat<axis=1>(x, x)", {}),
        )
    ),
    *(
        form(call, {"s": i(2, 0), "p": i(1, 0, 0, 0, 2, 0)}, x=x)
        for x in WHOLE.values()
        for call in ("Gather<axis=1>(x, s)", "Transpose(x)", "Pad(x, p)", "Concat<axis=0>(x, x)")
    ),
    form("a, b, c = Split<num_outputs=3>(x)", outs="a, b, c", x=f(7, 2)),
    form("a, b = Split<axis=-1>(x, s)", {"s": i(2, 5)}, outs="a, b", x=f(2, 7)),
    *(
        form(call, {"d": one(4), "v": np.array([-1, 2], np.float32)}, x=i(0, 3, -1, 9, -4, -9))
        for call in ("OneHot<axis=0>(x, d, v)", "OneHot(x, d, v)")
    ),
    *(form(f'DepthToSpace<blocksize=2, mode="{m}">(x)', x=f(1, 8, 2, 3)) for m in ("DCR", "CRD")),
    form("SpaceToDepth<blocksize=2>(x)", x=f(1, 2, 4, 6)),
    *(
        form(f'{op}<reduction="{how}"{more}>(x, j, u)', {"j": places}, x=f(4, 3), u=f(2, 3))
        for how in ("none", "add", "mul", "max", "min")
        for op, more, places in (
            ("ScatterND", "", i(1, -1).reshape(2, 1)),
            ("ScatterElements", ", axis=0", i(0, 1, 2, -1, 3, 0).reshape(2, 3)),
        )
    ),
    *(
        form(f'ScatterElements<reduction="{how}">(x, j, u)', x=f(3), j=i(1, 1, 0, 1, 0), u=f(5))
        for how in ("add", "mul", "max", "min")
    ),
    form("ReverseSequence<time_axis=0, batch_axis=1>(x, l)", x=f(4, 3), l=i(4, 1, 2)),
    form(
        "r = Reshape(x, s) b = Add(r, c) d = Relu(b) e = Transpose<perm=[3,1,5,0,4,2]>(d) "
        "t = Transpose<perm=[3,1,5,0,4,2]>(e) y = Reshape(t, z)",
        {"s": i(2, 2, 1, 2, 3, 1), "z": i(4, 6), "c": f(2, 1, 1, 1, 3, 1)},
        x=f(4, 6),
    ),
)

_EQUATIONS = (
    *("ij,jk->ik", "ij,jk", "bij,bjk->bik", "bij, bkj -> bki", "bhid,bhjd->bhij", "abc,cd->abd"),
    *("bthd,bshd->bhts", "abcd,cde->abe", "i,j->ij", "i,i->", "i,i", "ij->ji", "ij->", "ij->j"),
    *("ba", "...ij,...jk->...ik", "...i->...", "...ij->...ji", "b...,b->b...", "ij,jk,kl->il"),
    *("ij,ij->ij", "ij,kl->ijkl", "ik,jk,k->ij", "abi,aci->abc", ",ij->ij"),
)
_SIZES = dict(zip("abcdehijklst", (2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 4, 3), strict=True))


def _einsum(equation: str) -> Form:
    parts = equation.replace(" ", "").partition("->")[0].split(",")
    feeds: dict[str, Any] = {
        f"x{n}": f(*(_SIZES[c] for c in part.replace("...", "lk" if len(part) > 4 else "")))
        for n, part in enumerate(parts)
    }
    return form(f'Einsum<equation="{equation}">({", ".join(feeds)})', **feeds)


_NONE: dict[str, Any] = {}
PRODUCTS = _named(
    *(
        form("MatMul(a, b)", a=f(*a), b=f(*b))
        for a, b in (
            *(((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((3,), (3, 4))),
            *(((2, 3), (3,)), ((3,), (3,)), ((3,), (5, 3, 4)), ((2, 1, 2, 3), (5, 3, 4))),
        )
    ),
    *(form("MatMul(a, b)", {"b": f(3, 4)}, a=f(*a)) for a in ((2, 3), (3,), (2, 5, 2, 3))),
    *(
        form(
            f"Gemm<{about}>(a, b, c)",
            {"b": b} if fixed else {},
            a=a,
            c=f(*c),
            **(_NONE if fixed else {"b": b}),
        )
        for about, a, b in (
            ("alpha=0.5, beta=2.0", f(2, 3), f(3, 4)),
            ("transA=1, transB=1", f(3, 2), f(4, 3)),
            ("transB=1, alpha=0.7, beta=1.3", f(2, 3), f(4, 3)),
        )
        for c in ((4,), (2, 1), ())
        for fixed in (True, False)
    ),
    *map(_einsum, _EQUATIONS),
    *(form("Det(x)", x=f(4, n, n)) for n in (1, 2, 3)),
)

_CONVS = (
    *("", "strides=[2,2], pads=[1,0,2,1]", "dilations=[2,1]", 'auto_pad="VALID"'),
    *('auto_pad="SAME_UPPER", strides=[2,3]', 'auto_pad="SAME_LOWER"'),
)
_TRANSPOSED = (
    *("", "strides=[2,2], pads=[1,0,0,1]", "strides=[2,2], output_padding=[1,1]", "group=2"),
    *("strides=[3,2], pads=[1,1,1,1], output_padding=[1,0]", "strides=[3,2], output_shape=[10,8]"),
    *('strides=[2,2], auto_pad="SAME_UPPER"', 'strides=[2,2], auto_pad="SAME_LOWER"'),
    "dilations=[2,2]",
)
_POOLS = (
    *("kernel_shape=[3,2]", "kernel_shape=[3,3], strides=[2,2], pads=[1,1,0,1]"),
    *("kernel_shape=[3,3], strides=[2,2], ceil_mode=1", "kernel_shape=[2,2], dilations=[2,3]"),
    "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1",
    'kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_LOWER"',
)
WINDOWS = _named(
    *(
        form(f"Conv<group=2{', ' * bool(a)}{a}>(x, w, b)", _w(6, 2, 3, 2), x=f(2, 4, 9, 8))
        for a in _CONVS
    ),
    form("Conv<pads=[2,2]>(x, w, b)", _w(4, 3, 5), x=f(2, 3, 19)),
    form("Conv<strides=[1,2,2]>(x, w, b)", _w(4, 3, 3, 2, 3), x=f(1, 3, 7, 8, 9)),
    form("Conv<group=6, pads=[1,1,1,1]>(x, w, b)", _w(6, 1, 3, 3), x=f(1, 6, 9, 8)),
    form("Conv<group=3>(x, w, b)", _w(6, 1, 3, 3), x=f(1, 3, 9, 8)),
    form("Conv(x, w, b)", x=f(1, 2, 5, 5), w=f(3, 2, 2, 2), b=f(3)),
    *(
        form(
            f"ConvTranspose<{a}>(x, w, b)",
            {"w": f(4, 3 if "group" in a else 6, 3, 3), "b": f(6)},
            x=f(1, 4, 3, 4),
        )
        for a in _TRANSPOSED
    ),
    form("ConvTranspose<strides=[2], pads=[1,1]>(x, w)", {"w": f(3, 4, 4)}, x=f(1, 3, 9)),
    form("ConvTranspose<group=2>(x, w)", {"w": f(4, 2, 3, 2, 3)}, x=f(1, 4, 5, 4, 3)),
    *(form(f"MaxPool<{a}>(x)", x=f(1, 2, 8, 9)) for a in _POOLS),
    *(
        form(f"AveragePool<{a}, count_include_pad={n}>(x)", x=f(1, 2, 8, 9))
        for a in _POOLS
        for n in (0, 1)
    ),
    *(form(f"LpPool<{a}, p={p}>(x)", x=f(1, 2, 8, 9)) for a in _POOLS[:2] for p in (1, 2, 3)),
    *(
        form(
            f"y, j = MaxPool<kernel_shape=[2,3], strides=[2,2], storage_order={o}>(x)",
            outs="y, j",
            x=f(2, 2, 6, 7),
        )
        for o in (0, 1)
    ),
    *(
        form(f"{k}Pool<{a}>(x)", x=x)
        for k in ("Max", "Average", "Lp")
        for a, x in (
            ("kernel_shape=[3], strides=[2], pads=[1,1]", f(1, 3, 12)),
            ("kernel_shape=[2,3,2], strides=[2,2,1], pads=[1,1,0,0,1,1]", f(2, 3, 6, 7, 8)),
        )
    ),
    *(form(f"Global{k}Pool(x)", x=f(2, 3, 4, 5)) for k in ("Average", "Max")),
    *(
        form(
            f'Resize<mode="{mode}", coordinate_transformation_mode="{how}", '
            f'nearest_mode="{near}">(x, , s)',
            {"s": np.array([1, 1, *s], np.float32)},
            x=f(1, 2, 5, 6),
        )
        for mode, how, near, s in (
            ("nearest", "asymmetric", "floor", (2, 3)),
            ("nearest", "half_pixel", "round_prefer_floor", (1.5, 0.5)),
            ("nearest", "align_corners", "round_prefer_ceil", (2, 2)),
            *(
                (m, h, "floor", s)
                for m in ("linear", "cubic")
                for h in ("half_pixel", "asymmetric", "pytorch_half_pixel")
                for s in ((2, 2), (0.6, 1.7))
            ),
            ("linear", "align_corners", "floor", (2, 3)),
        )
    ),
    *(
        form(
            f'Resize<antialias=1, mode="{m}">(x, , s)',
            {"s": np.array([1, 1, 0.4, 0.6], np.float32)},
            x=f(1, 1, 9, 8),
        )
        for m in ("linear", "cubic")
    ),
    *(
        form(
            f'Resize<axes=[2,3], keep_aspect_ratio_policy="{p}", mode="nearest">(x, , , s)',
            {"s": i(1, 3)},
            x=f(1, 1, 2, 4),
        )
        for p in ("not_larger", "not_smaller")
    ),
    *(
        form(
            f'GridSample<mode="{m}", padding_mode="{p}", align_corners={a}>(x, g)',
            x=f(1, 2, 5, 6),
            g=f(1, 4, 3, 2),
        )
        for m in ("linear", "nearest", "cubic")
        for p in ("zeros", "border", "reflection")
        for a in (0, 1)
    ),
    *(
        form(f'GridSample<mode="{m}">(x, g)', x=f(1, 2, 3, 4, 5), g=f(1, 2, 3, 4, 3))
        for m in ("linear", "nearest")
    ),
    *(
        form(
            f'RoiAlign<coordinate_transformation_mode="{m}", output_height=2, output_width=3, '
            "sampling_ratio=2, spatial_scale=0.5>(x, r, j)",
            opset=20,
            x=f(2, 3, 8, 9),
            r=np.array([[0, 1, 12, 13], [-3, 2, 30, 20]], np.float32),
            j=i(1, 0),
        )
        for m in ("half_pixel", "output_half_pixel")
    ),
    *(
        form(f"AffineGrid<align_corners={a}>(t, s)", {"s": s}, t=f(n, len(s) - 2, len(s) - 1))
        for a in (0, 1)
        for n in (1, 2)
        for s in (i(n, 1, 4, 5), i(n, 1, 2, 4, 5))
    ),
    form(
        "MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, j)",
        x=f(1, 1, 2, 2),
        j=i(5, 7, 13, 15).reshape(1, 1, 2, 2),
    ),
)

_FIVE = np.array([1, 0.5, 2, -1, 3], np.float32)
NORMS = _named(
    *(
        form(call, {"s": _FIVE, "b": _FIVE, "v": np.abs(_FIVE)}, opset=20, x=f(2, 5, 4, 3))
        for call in (
            *("BatchNormalization<epsilon=0.1>(x, s, b, b, v)", "InstanceNormalization(x, s, b)"),
            *("LRN<size=3, alpha=0.2>(x)", "LRN<size=5, alpha=0.1, beta=0.6, bias=2.0>(x)"),
            *("LpNormalization<axis=1, p=1>(x)", "LpNormalization<axis=2>(x)"),
            *(
                "MeanVarianceNormalization<axes=[0,2,3]>(x)",
                "MeanVarianceNormalization<axes=[0,3]>(x)",
            ),
        )
    ),
    *(
        form(
            call,
            {"s": f(3), "b": f(3), "t": f(4, 3), "g": f(4), "all": f(2, 4, 3)},
            opset=23,
            x=f(2, 4, 3),
        )
        for call in (
            *("LayerNormalization(x, s, b)", "LayerNormalization<axis=1>(x, t)"),
            "LayerNormalization<axis=0, epsilon=0.1>(x, all)",
            *("RMSNormalization(x, s)", "GroupNormalization<num_groups=2>(x, g, g)"),
        )
    ),
    form("y, m, d = LayerNormalization(x, s)", {"s": f(4)}, outs="y, m, d", x=f(2, 4)),
)

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _layer(op: str, about: str = "", ways: int = 1, steps: int = 5, **more: Any) -> Form:
    gates = GATES[op]
    known = {"w": f(ways, gates * 3, 2), "r": f(ways, gates * 3, 3), "b": f(ways, gates * 6)}
    outs = "y, h, c" if op == "LSTM" else "y, h"
    operands = "x, w, r, b" + (", l" if "l" in more else "") + (", s" if "s" in more else "")
    call = f"{outs} = {op}<hidden_size=3{about}>({operands})"
    return form(call, known, outs=outs, opset=22, x=f(steps, 2, 2), **more)


LAYERS = _named(
    *(
        _layer(op, f', direction="{way}"', 1 + (way == "bidirectional"), **more)
        for op in GATES
        for way in ("forward", "reverse", "bidirectional")
        for more in (_NONE, {"l": np.array([3, 5], np.int32)})
    ),
    *(_layer("GRU", f", linear_before_reset={n}", steps=s) for n in (0, 1) for s in (5, 60)),
    *(_layer("LSTM", about) for about in (", clip=0.5", ", input_forget=1")),
    _layer("GRU", ', activations=["HardSigmoid", "Relu"]'),
    *(
        _layer("RNN", f', activations=["{name}"]')
        for name in ("Relu", "LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus", "Sigmoid")
    ),
    form("STFT(x, step, , size)", {"step": one(4), "size": one(16)}, x=f(1, 64, 1)),
    form("DFT<onesided=1>(x, , a)", {"a": one(1)}, x=f(2, 9, 1)),
    form("DFT<inverse=1>(x, , a)", {"a": one(1)}, x=f(3, 16, 2)),
)

FAMILIES = {
    "elements": ELEMENTS,
    "reductions": REDUCTIONS,
    "moves": MOVES,
    "products": PRODUCTS,
    "windows": WINDOWS,
    "norms": NORMS,
    "layers": LAYERS,
}
_INDICES = "y, j = MaxPool<kernel_shape=[2,3], strides=[2,2], storage_order={}>(x)"
REFUSED = {"aimodel": {"windows": {_INDICES.format(n): "is int64" for n in (0, 1)}}}
"""Forms that a format refuses, and what it says."""


LONG = {("tvm", name) for name in ("reductions", "products", "windows", "layers")}
"""What takes a compiler tens of seconds; its node cases are run, too."""


@pytest.mark.parametrize(
    ("form", "family"),
    [
        pytest.param(form, family, marks=[pytest.mark.sweep] * ((form, family) in LONG))
        for form in FORMATS
        for family in FAMILIES
    ],
)
def test_forms(form: str, family: str) -> None:
    check(form, FAMILIES[family], REFUSED.get(form, {}).get(family, {}))


OPEN = {
    "tflite": {"moves": 11, "products": 3, "windows": 42, "layers": 3},
    "mlprogram": {"products": 3, "windows": 36, "layers": 3},
}
"""How many forms need a size that is open then."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.sweep] * (name == "windows")) for name in FAMILIES],
)
@pytest.mark.parametrize("form", OPEN)
def test_forms_of_open_sizes(form: str, family: str) -> None:
    forms = {name: one.opened() for name, one in FAMILIES[family].items()}
    check(form, forms, OPEN[form].get(family, 0))
