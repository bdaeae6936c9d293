"""Make ``RMSNormalization`` of its formula, then take the scale into it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes import norm
from edgeinfer.convert.passes.infra import attr
from edgeinfer.convert.passes.match import Match, Number, OpPattern, Pattern, SharedPattern, var
from edgeinfer.convert.passes.rewrite import FLOATS, Fusion, ReplacementBuilder

_x = var("x")
_c = var("c")


def _formula(x: Pattern) -> Pattern:
    square = (x**2).named("square")
    return x * (norm.mean(square, "axes") + Number("epsilon")) ** -0.5


_wide = SharedPattern(OpPattern("Cast", (_x,), lambda n: attr(n, "to") == ir.DataType.FLOAT)).named(
    "wide"
)
_narrow = OpPattern("Cast", (_formula(_wide),)).named("narrow")
_normal = OpPattern("RMSNormalization", (_x, var("scale"))).named("normal")


class FuseRmsNorm(Fusion):
    """Make ``RMSNormalization`` of a value over its root mean square.

    In half precision too, with or without the exporter's casts around it: its squares are computed
    in single precision either way. bfloat16 is fused only between two casts.

    Given::

        p = Pow(x, 2)       v = ReduceMean(p, [-1])     e = Add(v, 1e-6)
        s = Sqrt(e)         r = Reciprocal(s)           y = Mul(x, r)

    Result::

        y = RMSNormalization<axis=-1, epsilon=1e-6, stash_type=1>(x, ones)
    """

    since: ClassVar[int] = 23
    patterns: ClassVar[tuple[Pattern, ...]] = (_narrow, _formula(_x))
    dtypes: ClassVar[frozenset[ir.DataType]] = FLOATS | {
        ir.DataType.FLOAT16,
        ir.DataType.BFLOAT16,
    }

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        x = match.values["x"]
        cast = "narrow" in match.values
        if x.dtype != out.dtype or x.shape is None:
            return False
        if not cast and x.dtype == ir.DataType.BFLOAT16:
            return False
        axis = norm.trailing_axis(x, match.values["axes"])
        scale = None if axis is None else norm.ones(x, axis, out.dtype)
        if axis is None or scale is None or match.numbers["epsilon"] <= 0:
            return False
        build.op(
            "RMSNormalization",
            x,
            build.const(scale, "scale"),
            axis=axis - len(x.shape),
            epsilon=match.numbers["epsilon"],
            stash_type=1,
        )
        return True


class AbsorbRmsNormScale(Fusion):
    """Take a product that follows ``RMSNormalization`` into its scale.

    In half precision only ones are replaced: another product would round differently.

    Given::

        n = RMSNormalization(x, ones)       y = Mul(n, scale)

    Result::

        y = RMSNormalization(x, scale)
    """

    patterns: ClassVar[tuple[Pattern, ...]] = (OpPattern("Mul", (_normal, _c)),)
    dtypes: ClassVar[frozenset[ir.DataType]] = FuseRmsNorm.dtypes

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node with the joined scale."""
        x, scale, c = match.values["x"], match.values["scale"], match.values["c"]
        node = match.values["normal"].producer()
        if node is None or x.shape is None:
            return False
        shape = norm.normal_shape(x, attr(node, "axis", -1) % len(x.shape))
        if shape is None or (out.shape is not None and len(out.shape) != len(x.shape)):
            return False
        factor, plain = norm.per_element(c, shape), norm.is_ones(scale)
        if plain and norm.exact_shape(c, shape):
            joined = c
        elif factor is not None and plain:
            joined = build.const(factor, "scale")
        elif factor is not None and out.dtype in FLOATS:
            old = norm.per_element(scale, shape)
            if old is None:
                return False
            joined = build.const(old * factor, "scale")
        else:
            return False
        build.op("RMSNormalization", x, joined, **{k: a.value for k, a in node.attributes.items()})
        return True
