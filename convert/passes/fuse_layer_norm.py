"""Make ``LayerNormalization`` of its formula, then take scale and bias into it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes import norm
from edgeinfer.convert.passes.infra import attr
from edgeinfer.convert.passes.match import Match, Number, OpPattern, Pattern, var
from edgeinfer.convert.passes.rewrite import FLOATS, Fusion, ReplacementBuilder

_x = var("x")
_centred = (_x - norm.mean(_x, "axes")).named("centred")
_variance = norm.mean((_centred**2).named("square"), "axes2")
_formula = _centred * (_variance + Number("epsilon")) ** -0.5

_normal = OpPattern("LayerNormalization", (_x, var("scale"))).named("normal")
_biased = OpPattern("LayerNormalization", (_x, var("scale"), var("bias"))).named("normal")
_c = var("c")


class FuseLayerNorm(Fusion):
    """Make ``LayerNormalization`` of mean, difference, variance and quotient.

    The normalised axes must be the last ones and of known size. Where they are not the last ones,
    the formula stays: no transposes are put around it.

    Given::

        m = ReduceMean(x, [-1])     d = Sub(x, m)           p = Pow(d, 2)
        v = ReduceMean(p, [-1])     e = Add(v, 1e-5)        s = Sqrt(e)         y = Div(d, s)

    Result::

        y = LayerNormalization<axis=-1, epsilon=1e-5>(x, ones)
    """

    since: ClassVar[int] = 17
    dtypes: ClassVar[frozenset[ir.DataType]] = FLOATS | {ir.DataType.FLOAT16}
    patterns: ClassVar[tuple[Pattern, ...]] = (_formula,)

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        x = match.values["x"]
        axis = norm.trailing_axis(x, match.values["axes"])
        if axis is None or axis != norm.trailing_axis(x, match.values["axes2"]):
            return False
        scale = norm.ones(x, axis, out.dtype)
        if scale is None or x.shape is None or match.numbers["epsilon"] <= 0:
            return False
        build.op(
            "LayerNormalization",
            x,
            build.const(scale, "scale"),
            axis=axis - len(x.shape),
            epsilon=match.numbers["epsilon"],
        )
        return True


class AbsorbLayerNormScale(Fusion):
    """Take a product or a sum that follows ``LayerNormalization`` into its scale and bias.

    The other operand must have the shape of the normalised axes, or be a constant that broadcasts
    to it. A computed one is taken only in the place of ones or of no bias, and so is any in half
    precision, where another product would round differently.

    Given::

        n = LayerNormalization(x, ones)     s = Mul(n, scale)       y = Add(s, bias)

    Result::

        y = LayerNormalization(x, scale, bias)
    """

    dtypes: ClassVar[frozenset[ir.DataType]] = FuseLayerNorm.dtypes
    patterns: ClassVar[tuple[Pattern, ...]] = (
        OpPattern("Mul", (_normal, _c)),
        OpPattern("Mul", (_biased, _c)),
        OpPattern("Add", (_normal, _c)),
        OpPattern("Add", (_biased, _c)),
    )

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node with the joined constants."""
        x, scale, bias = match.values["x"], match.values["scale"], match.values.get("bias")
        node, user = match.values["normal"].producer(), out.producer()
        if node is None or user is None or x.shape is None:
            return False
        shape = norm.normal_shape(x, attr(node, "axis", -1) % len(x.shape))
        if shape is None or (out.shape is not None and len(out.shape) != len(x.shape)):
            return False
        if user.op_type == "Mul":
            joined = _scaled(scale, bias, match.values["c"], shape, build)
        else:
            joined = _shifted(scale, bias, match.values["c"], shape, build)
        if joined is None:
            return False
        build.op(
            "LayerNormalization", x, *joined, **{k: a.value for k, a in node.attributes.items()}
        )
        return True


def _scaled(
    scale: ir.Value,
    bias: ir.Value | None,
    c: ir.Value,
    shape: tuple[int, ...],
    build: ReplacementBuilder,
) -> tuple[ir.Value, ...] | None:
    factor, old = norm.per_element(c, shape), norm.per_element(scale, shape)
    if factor is None:
        fits = bias is None and norm.exact_shape(c, shape) and norm.is_ones(scale)
        return (c,) if fits else None
    if old is None or (scale.dtype not in FLOATS and not norm.is_ones(scale)):
        return None
    joined = (build.const(old * factor, "scale"),)
    if bias is None:
        return joined
    if scale.dtype not in FLOATS:
        return None
    shift = norm.per_element(bias, shape)
    return None if shift is None else (*joined, build.const(shift * factor, "bias"))


def _shifted(
    scale: ir.Value,
    bias: ir.Value | None,
    c: ir.Value,
    shape: tuple[int, ...],
    build: ReplacementBuilder,
) -> tuple[ir.Value, ...] | None:
    shift = norm.per_element(c, shape)
    if shift is None:
        return (scale, c) if bias is None and norm.exact_shape(c, shape) else None
    if bias is None:
        return scale, build.const(shift, "bias")
    old = norm.per_element(bias, shape) if scale.dtype in FLOATS else None
    return None if old is None else (scale, build.const(old + shift, "bias"))
