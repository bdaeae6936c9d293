"""Which functions a ``.pt2`` file may name: what an export of a model needs, in a safe form.

PyTorch runs a program operator by operator, with the file's own numbers. Among its thousands are
some that print, write files, or trust an index; so names are listed, and everything else is code.
The list is PyTorch's core operators and those that its exporter to ONNX translates or takes apart,
less derivatives, losses, and what writes where its arguments say without a look at the size.

Sources: ``torch.Tag.core``; torch/onnx/_internal/exporter/_registration.py; ``_SYM_OPS`` of
torch/_export/serde/serialize.py; kernels in aten/src/ATen/native, PyTorch 2.13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ELEMENTS = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip conj conj_physical
copysign cos cosh deg2rad div divide elu eq erf erfc exp exp2 expm1 fix float_power floor
floor_divide fmax fmin fmod frac ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish
hardtanh heaviside hypot isclose isfinite isinf isnan isneginf isposinf isreal le leaky_relu lerp
less less_equal log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not
logical_or logical_xor logit lt masked_fill maximum minimum mish mul multiply nan_to_num ne neg
negative not_equal positive pow prelu rad2deg real imag reciprocal relu relu6 remainder round
rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink special_erf
special_erfc special_expit special_expm1 special_log1p special_log_softmax special_logit
special_sinc special_softmax sqrt square sub subtract tan tanh threshold true_divide trunc where
xlogy _prelu_kernel __and__ __or__ __xor__ __lshift__ __rshift__ fake_quantize_per_channel_affine
fake_quantize_per_tensor_affine glu
"""
_SUMS = """
_is_all_true _is_any_true _log_softmax _safe_softmax _softmax all amax amin aminmax any argmax
argmin argsort bincount count_nonzero cummax cummin cumprod cumsum kthvalue linalg_vector_norm
log_softmax logcumsumexp logsumexp max mean median min msort nanmean nanmedian nansum norm prod
softmax sort std std_mean sum topk unique_consecutive unique_dim _unique _unique2 var var_mean
"""
_PRODUCTS = """
_linalg_det addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul cdist
_cdist_forward cosine_similarity cross det dot einsum inner kron linalg_cross linalg_det
linalg_matmul linalg_multi_dot linalg_vecdot linear logdet matmul mm mv outer pairwise_distance
tensordot trace vdot scaled_dot_product_attention _scaled_dot_product_attention_math
_scaled_dot_product_flash_attention_for_cpu
"""
_LAYERS = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _native_batch_norm_legit_no_training
_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d _weight_norm_interface _weight_norm adaptive_avg_pool1d
adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d affine_grid_generator alpha_dropout avg_pool1d avg_pool2d avg_pool3d
batch_norm channel_shuffle col2im conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d convolution dropout embedding feature_dropout _fft_c2c _fft_c2r _fft_r2c fft_fft
fft_fft2 fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft
fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fft_fftfreq fft_rfftfreq grid_sampler
grid_sampler_2d grid_sampler_3d group_norm gru gru_cell im2col instance_norm istft layer_norm lstm
lstm_cell max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
max_pool3d_with_indices max_unpool2d max_unpool3d native_dropout native_group_norm
native_layer_norm pixel_shuffle pixel_unshuffle rms_norm _fused_rms_norm rnn_relu rnn_relu_cell
rnn_tanh rnn_tanh_cell stft upsample_bicubic2d upsample_bilinear2d upsample_linear1d
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
"""
_PLACES = """
mT mH _conj _reshape_copy _shape_as_tensor _to_copy _unsafe_view _neg_view adjoint
alias alias_copy as_strided as_strided_copy atleast_1d atleast_2d atleast_3d block_diag
broadcast_tensors broadcast_to bucketize cartesian_prod cat chunk clone column_stack combinations
complex concat concatenate constant_pad_nd contiguous copy detach detach_copy diag diag_embed
diagflat diagonal diagonal_copy diagonal_scatter diff dsplit dstack expand expand_as expand_copy
flatten flip fliplr flipud gather hsplit hstack index index_add index_copy index_fill index_put
index_select isin lift_fresh lift_fresh_copy masked_scatter masked_select matrix_H meshgrid
moveaxis movedim narrow narrow_copy nonzero nonzero_numpy numpy_T one_hot pad permute permute_copy
polar ravel reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave
replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg
roll rot90 scatter scatter_add scatter_reduce searchsorted select select_copy select_scatter slice
slice_copy slice_scatter split split_copy split_with_sizes split_with_sizes_copy squeeze
squeeze_copy stack swapaxes swapdims t t_copy take take_along_dim tensor_split tile to to_dense
transpose transpose_copy tril triu type_as unbind unbind_copy unflatten unfold unfold_copy
unsqueeze unsqueeze_copy view view_as view_as_complex view_as_complex_copy view_as_real
view_as_real_copy view_copy vsplit vstack
"""
_MADE = """
arange bernoulli blackman_window empty empty_like empty_permuted empty_strided eye fill full
full_like hamming_window hann_window linspace logspace multinomial new_empty new_empty_strided
new_full new_ones new_zeros normal normal_functional ones ones_like rand rand_like randint
randint_like randn randn_like randperm scalar_tensor tensor tril_indices triu_indices uniform
vander zero zeros zeros_like
"""
_IN_PLACE = """
abs_ add_ addcdiv_ addcmul_ addmm_ baddbmm_ bernoulli_ bitwise_and_ bitwise_not_ bitwise_or_
bitwise_xor_ ceil_ celu_ clamp_ clamp_max_ clamp_min_ clip_ copy_ cos_ cumsum_ detach_ div_
divide_ dropout_ alpha_dropout_ feature_dropout_ elu_ eq_ erf_ exp_ expm1_ fill_ fill_diagonal_
floor_ floor_divide_ ge_ gelu_ gt_ hardsigmoid_ hardswish_ hardtanh_ index_add_ index_copy_
index_fill_ index_put_ le_ leaky_relu_ lerp_ log1p_ log_ logical_and_ logical_not_ logical_or_
logical_xor_ logit_ lt_ masked_fill_ masked_scatter_ mish_ mul_ multiply_ nan_to_num_ ne_ neg_
normal_ pow_ reciprocal_ relu6_ relu_ remainder_ round_ rsqrt_ scatter_ scatter_add_
scatter_reduce_ selu_ sigmoid_ sign_ silu_ sin_ sqrt_ square_ squeeze_ sub_ subtract_ t_ tanh_
threshold_ transpose_ tril_ triu_ true_divide_ trunc_ uniform_ unsqueeze_ xlogy_ zero_
"""
_OF_NUMBERS = """
_assert_async _assert_scalar _assert_tensor_metadata _local_scalar_dense allclose dim equal
is_complex is_floating_point is_nonzero is_same_size item numel size sym_constrain_range
sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride
"""
"""Operators that give numbers, or look at them, and no tensor."""

_ATEN = frozenset(
    " ".join((_ELEMENTS, _SUMS, _PRODUCTS, _LAYERS, _PLACES, _MADE, _IN_PLACE, _OF_NUMBERS)).split()
)
_NO_TENSORS = frozenset(_OF_NUMBERS.split())

_SIZES = frozenset(
    [f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min", "sqrt")]
    + [f"_operator.{name}" for name in ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "and_")]
    + [f"_operator.{name}" for name in ("or_", "mul", "add", "sub", "floordiv", "mod", "truediv")]
    + ["_operator.pow", "_operator.lshift", "_operator.rshift", "math.trunc"]
)
"""Functions of sizes; PyTorch writes no others."""

_CALLS = """
cond while_loop scan map_impl invoke_subgraph wrap_with_set_grad_enabled wrap_with_autocast
"""
_OF_GRAPHS = frozenset(f"torch.ops.higher_order.{name}" for name in _CALLS.split())
_SWITCHES = frozenset({"torch._C._set_grad_enabled"})

_SPELLED = """
none tanh floor trunc constant reflect replicate circular ortho forward backward sum prod mean amax
amin add multiply left right ij xy fro nuc same valid cpu
"""
_WORDS = frozenset(_SPELLED.split())
_EQUATION = re.compile(r"[A-Za-z.,>\s-]{1,200}")
_NAME = re.compile(r"[\w.]{1,200}")
_MOST_TOLD = 2000

_NUMBERS = frozenset(
    ("as_int", "as_float", "as_bool", "as_sym_int", "as_sym_float", "as_sym_bool", "as_none")
)
_MOST_POWER, _MOST_SHIFT = 16, 62
_MOST_IN_LIST, _MOST_INT = 1 << 31, 1 << 53
_MARKS = ((1 << 63) - 1, -(1 << 63))
"""Whole numbers that stand for the end, or for nothing."""

_TO_SIZES = """
empty empty_permuted empty_strided full new_empty new_empty_strided new_full new_ones new_zeros ones
rand randint randn repeat tile zeros
"""
"""Operators that make a tensor of the sizes that they are given."""

_OF_SIZES = frozenset(_TO_SIZES.split())
_MOST_MADE = 1 << 27
"""Elements that an operator makes of numbers alone."""

_SCALES = (1e-3, 1e3)


def strangers(node: Mapping[str, Any]) -> Iterator[str]:
    """Say what is not let through of one call in a program; nothing where all is.

    Raises:
        ValueError: it is let through, and makes more than any model needs.
    """
    target, inputs = str(node["target"]), list(node["inputs"])
    arguments = [item["arg"] for item in inputs]
    if target in _SIZES:
        yield from _sizes(target, arguments)
    elif target in _OF_GRAPHS:
        for text in _texts(arguments):
            if not _NAME.fullmatch(text):
                yield f"the function {target!r} of the text {text[:40]!r}"
    elif target in _SWITCHES:
        pass
    elif (why := _unfit(target)) is not None:
        yield f"the function {target[:80]!r}{why}"
    else:
        name = target.split(".")[3]
        if (odd := _misplaced(target, inputs)) is not None:
            yield f"the function {target!r} {odd}"
        yield from _words(name, target, arguments)
        _check_numbers(name, target, inputs)


def is_let_through(target: str) -> bool:
    """Whether a function may be named where its arguments are not seen."""
    return target in _SIZES | _OF_GRAPHS | _SWITCHES or _unfit(target) is None


def _unfit(target: str) -> str | None:
    """Say why an operator is none that a model needs; None where it is."""
    import torch

    parts = target.split(".")
    if len(parts) != 5 or parts[:3] != ["torch", "ops", "aten"] or parts[3] not in _ATEN:
        return ""
    name, overload = parts[3:]
    if overload == "data" or overload.startswith("prim_"):
        return ", in a form that trusts what it is given"
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        return ", which this PyTorch does not have"
    schema = getattr(packet, overload)._schema
    if any(argument.is_out for argument in schema.arguments):
        return ", which writes into what it is given"
    tensors = all("Tensor" in str(given.type) for given in schema.returns)
    if name not in _NO_TENSORS and not (schema.returns and tensors):
        return ", which gives no tensors"
    return None


_KINDS = {
    "ScalarType": "as_scalar_type",
    "Layout": "as_layout",
    "MemoryFormat": "as_memory_format",
    "Device": "as_device",
}
"""Types of arguments that a number may not stand for: PyTorch takes it for a place in a table."""

_POSITIONAL = 1


def _misplaced(target: str, inputs: Sequence[Mapping[str, Any]]) -> str | None:
    """Say which argument is not where its name says, or of another kind; None where all fit."""
    import torch

    name, overload = target.split(".")[3:]
    known = getattr(getattr(torch.ops.aten, name), overload)._schema.arguments
    names = [str(item["name"]) for item in inputs]
    placed = [str(item["name"]) for item in inputs if item.get("kind") == _POSITIONAL]
    order = [a.name for a in known]
    if len(set(names)) < len(names) or placed != order[: len(placed)]:
        return "with its arguments in another order"
    types = {a.name: str(a.real_type).removeprefix("Optional[").rstrip("]") for a in known}
    for item in inputs:
        wanted = _KINDS.get(types.get(str(item["name"]), ""))
        if wanted is not None and set(item["arg"]) - {wanted, "as_none"}:
            return f"with a {str(item['name'])!r} that is none"
    return None


def _sizes(target: str, arguments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(set(argument) - _NUMBERS for argument in arguments):
        yield f"the function {target!r} of what is no number"
        return
    most = {"_operator.pow": _MOST_POWER, "_operator.lshift": _MOST_SHIFT}.get(target)
    if most is None:
        return
    last = arguments[-1] if len(arguments) == 2 else {}
    value = last.get("as_int", last.get("as_float"))
    if not isinstance(value, int | float) or not abs(value) <= most:
        yield f"the function {target!r} with a second number that is not known to be {most} at most"


def _texts(arguments: Sequence[Any]) -> Iterator[str]:
    """Yield the texts among arguments, those within lists too, but none of a graph's own."""
    for argument in arguments:
        for kind, value in argument.items():
            if kind == "as_string":
                yield str(value)
            elif kind == "as_strings":
                yield from map(str, value)
            elif isinstance(value, list) and kind != "as_graph":
                yield from _texts([item for item in value if isinstance(item, dict)])


def _words(name: str, target: str, arguments: Sequence[Any]) -> Iterator[str]:
    for text in _texts(arguments):
        # Shown where the condition does not hold.
        is_told = name.startswith("_assert_") and text.isprintable() and len(text) < _MOST_TOLD
        is_equation = name == "einsum" and _EQUATION.fullmatch(text)
        if text not in _WORDS and not is_told and not is_equation:
            yield f"the function {target!r} of the text {text[:40]!r}"


def _check_numbers(name: str, target: str, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Look at the numbers that are written in the program.

    Raises:
        ValueError: they make a kernel overflow, or too large a tensor.
    """
    known: dict[str, Any] = {}
    for item in inputs:
        value = next(iter(item["arg"].values()), None)
        values = value if isinstance(value, list) else [value]
        whole = [v.get("as_int") if isinstance(v, dict) else v for v in values]
        most = _MOST_IN_LIST if isinstance(value, list) else _MOST_INT
        for number in whole:
            if type(number) is int and abs(number) > most and number not in _MARKS:
                raise ValueError(f"{target} with the number {number}, which no model needs")
        if "upsample" in name and "scale" in str(item["name"]):
            for number in values:
                if isinstance(number, float) and not _SCALES[0] <= number <= _SCALES[1]:
                    raise ValueError(f"{target} with the scale {number:g}, which no model needs")
        known[str(item["name"])] = whole if isinstance(value, list) else whole[0]
    made = _made(name, known)
    if made > _MOST_MADE:
        raise ValueError(
            f"{target} makes a tensor of {made} elements, more than {_MOST_MADE}; make it of an "
            "input's size, or keep it as a buffer of the module"
        )


def _made(name: str, known: Mapping[str, Any]) -> int:
    """Return how many elements an operator makes, as far as numbers in the program say it."""
    if name == "eye":
        sizes = [known.get("n"), known.get("m", known.get("n"))]
    elif name in ("linspace", "logspace", "randperm") or name.endswith("_window"):
        sizes = [known.get("steps", known.get("n", known.get("window_length")))]
    elif name in ("tril_indices", "triu_indices"):
        sizes = [known.get("row"), known.get("col"), 2]
    elif name == "one_hot":
        sizes = [known.get("num_classes")]
    elif name == "arange":
        start, end, step = known.get("start", 0), known.get("end", 0), known.get("step", 1)
        if not all(isinstance(v, int | float) for v in (start, end, step)) or not step:
            return 0
        span = (end - start) / step
        return int(span) if math.isfinite(span) and span > 0 else 0
    else:
        sizes = known.get("size", known.get("repeats", known.get("dims", [])))
        sizes = sizes if isinstance(sizes, list) and name in _OF_SIZES else []
    return math.prod(s for s in sizes if type(s) is int and s > 0)
