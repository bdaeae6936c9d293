"""NumPy operators of the second oracle where the ONNX reference is too slow or known to be wrong.

Each takes the attributes as given (defaults are filled in here), the opset version and the inputs
(None where one is left out), and returns the outputs. All work in whatever float type they are
given. An operator raises ``Unhandled`` for a corner it leaves to the ONNX reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators import blocks, forest, tabular
from edgeinfer.convert.verify.operators.batch_norm import batch_normalization
from edgeinfer.convert.verify.operators.cast import cast, constant_of_shape
from edgeinfer.convert.verify.operators.conv import conv, conv_transpose
from edgeinfer.convert.verify.operators.grid import grid_sample
from edgeinfer.convert.verify.operators.norm import (
    gelu,
    group_normalization,
    instance_normalization,
    layer_normalization,
    local_response,
    lp_normalization,
    mean_variance_normalization,
    rms_normalization,
)
from edgeinfer.convert.verify.operators.plain import (
    elementwise,
    flatten,
    gather,
    gather_elements,
    gemm,
    one_hot,
    relu,
    running_sum,
    softsign,
)
from edgeinfer.convert.verify.operators.pool import (
    average_pool,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
)
from edgeinfer.convert.verify.operators.recurrent import gru, lstm, rnn
from edgeinfer.convert.verify.operators.resize import resize, upsample
from edgeinfer.convert.verify.operators.softmax import (
    hardmax,
    log_softmax,
    log_sum_exp,
    softmax,
)
from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array

__all__ = ["OPERATORS", "TABULAR", "Operator", "Unhandled"]

Operator = Callable[[Mapping[str, Any], int, list[Array | None]], tuple[Array, ...]]

OPERATORS: dict[str, Operator] = {
    "Add": elementwise(np.add),
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Cast": cast,
    "ConstantOfShape": constant_of_shape,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Flatten": flatten,
    "CumSum": running_sum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GRU": gru,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "GridSample": grid_sample,
    "GroupNormalization": group_normalization,
    "Hardmax": hardmax,
    "InstanceNormalization": instance_normalization,
    "LRN": local_response,
    "LSTM": lstm,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "LpNormalization": lp_normalization,
    "MatMul": elementwise(np.matmul),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MeanVarianceNormalization": mean_variance_normalization,
    "Mul": elementwise(np.multiply),
    "OneHot": one_hot,
    "RMSNormalization": rms_normalization,
    "RNN": rnn,
    "ReduceLogSumExp": log_sum_exp,
    "Relu": relu,
    "Resize": resize,
    "Softmax": softmax,
    "Softsign": softsign,
    "Sub": elementwise(np.subtract),
    "Upsample": upsample,
}

TABULAR: dict[str, Operator] = {
    "Binarizer": tabular.binarizer,
    "FeatureVectorizer": tabular.vectorizer,
    "Imputer": tabular.imputer,
    "LabelEncoder": tabular.label_encoder,
    "LinearClassifier": tabular.linear_classifier,
    "LinearRegressor": tabular.linear_regressor,
    "Normalizer": tabular.normalizer,
    "OneHotEncoder": tabular.one_hot,
    "SVMClassifier": tabular.svm_classifier,
    "SVMRegressor": tabular.svm_regressor,
    "Scaler": tabular.scaler,
    "TreeEnsemble": forest.ensemble,
    "TreeEnsembleClassifier": forest.classifier,
    "TreeEnsembleRegressor": forest.regressor,
}
"""Of ``ai.onnx.ml``."""

MICROSOFT: dict[str, Operator] = {"MatMulNBits": blocks.matmul_nbits}
"""Of ``com.microsoft``."""
