"""Definitions of ours, in the standard's terms, of operators that ONNX itself gives none for.

A target writes an operator so where it has no lowering of its own, or its own refuses a form.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions import (
    body,
    deform,
    linear,
    optional,
    powers,
    recurrent,
    regions,
    remainder,
    resize,
    rounded,
    sample,
    scatter,
    select,
    spectrum,
    training,
    transposed,
    whole,
    words,
)

__all__ = ["DEFINED", "DOMAINS", "OPSET"]

OPSET = body.OPSET

DEFINED: dict[str, Callable[[ir.Node], onnx.FunctionProto | None]] = {
    "Adagrad": training.adagrad,
    "Adam": training.adam,
    "AffineGrid": sample.affine_grid,
    "BatchNormalization": training.batch_normalization,
    "Col2Im": sample.col2im,
    "Compress": select.compress,
    "ConvTranspose": transposed.conv_transpose,
    "DFT": spectrum.dft,
    "DeformConv": deform.deform_conv,
    "Det": linear.det,
    "Dropout": training.dropout,
    "DynamicQuantizeLinear": rounded.dynamic_quantize_linear,
    "GRU": recurrent.recurrent,
    "Gemm": whole.gemm,
    "GlobalLpPool": powers.global_lp_pool,
    "GridSample": sample.grid_sample,
    "LRN": powers.local_response,
    "LSTM": recurrent.recurrent,
    "LpPool": powers.lp_pool,
    "MatMul": whole.matmul,
    "MaxRoiPool": regions.max_roi_pool,
    "MaxUnpool": sample.max_unpool,
    "MelWeightMatrix": spectrum.mel_weight_matrix,
    "Mod": remainder.mod,
    "Momentum": training.momentum,
    "OptionalGetElement": optional.get_element,
    "OptionalHasElement": optional.has_element,
    "RNN": recurrent.recurrent,
    "ReduceMean": whole.reduce_mean,
    "Resize": resize.resize,
    "RoiAlign": regions.roi_align,
    "STFT": spectrum.stft,
    "TensorScatter": scatter.tensor_scatter,
    "TfIdfVectorizer": words.tf_idf_vectorizer,
    "Unique": select.unique,
}
"""By operator of these domains; None of a form that needs sizes which are not known."""

DOMAINS = ("", "ai.onnx.preview.training")
