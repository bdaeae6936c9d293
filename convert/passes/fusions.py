"""The passes that make whole operators of what exporters took apart, in their order."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.fold_conv_bn import FoldConvBn
from edgeinfer.convert.passes.fold_pad import FoldPad
from edgeinfer.convert.passes.fuse_attention import FuseAttention
from edgeinfer.convert.passes.fuse_gelu import FuseGelu
from edgeinfer.convert.passes.fuse_hard_swish import FuseHardSigmoid, FuseHardSwish
from edgeinfer.convert.passes.fuse_layer_norm import AbsorbLayerNormScale, FuseLayerNorm
from edgeinfer.convert.passes.fuse_leaky_relu import FuseLeakyRelu
from edgeinfer.convert.passes.fuse_mish import FuseMish, FuseSoftplus
from edgeinfer.convert.passes.fuse_rms_norm import AbsorbRmsNormScale, FuseRmsNorm
from edgeinfer.convert.passes.fuse_silu import FuseSilu

FUSIONS: tuple[ir.passes.PassBase, ...] = (
    RemoveDeadCode(),
    FoldPad(),
    FoldConvBn(),
    FuseLayerNorm(),
    AbsorbLayerNormScale(),
    FuseRmsNorm(),
    AbsorbRmsNormScale(),
    FuseGelu(),
    FuseHardSwish(),
    FuseHardSigmoid(),
    FuseSilu(),
    FuseSoftplus(),
    FuseMish(),
    FuseLeakyRelu(),
    FuseAttention(),
)
"""In order: a dead reader would keep a value from being an inner one, HardSwish holds a clip that
HardSigmoid would take, Mish a softplus."""
