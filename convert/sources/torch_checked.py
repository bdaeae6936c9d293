"""Operators that trust their operands, looked at before each is run.

What ``torch.nn.functional`` checks is not checked again by the operators below it, and a ``.pt2``
names those. Sizes in the file prove nothing, so those of the values are looked at.

Source: kernels in aten/src/ATen/native, PyTorch 2.13.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

_MOST_REPEATED = 1 << 31


def check_operands(module: Any) -> Any:
    """Let a program look at the operands of such operators, in the graphs within it too.

    Args:
        module: a ``torch.fx.GraphModule``, which is changed.

    Returns:
        The same.
    """
    from torch.fx import GraphModule

    for name, part in module.named_children():
        if isinstance(part, GraphModule):
            # The exported program has it too.
            setattr(module, name, check_operands(copy.deepcopy(part)))
    changed = False
    for node in module.graph.nodes:
        check = _CHECKS.get(_name(node.target)) if node.op == "call_function" else None
        if check is not None:
            node.target, changed = _checked(node.target, check), True
    if changed:
        module.recompile()
    return module


def _name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name).removeprefix("aten::")


def _checked(operator: Any, check: Callable[[Mapping[str, Any]], bool]) -> Callable[..., Any]:
    name = str(operator).replace(".", "_")

    def run(*args: Any, **kwargs: Any) -> Any:
        known = {a.name: a.default_value for a in operator._schema.arguments}
        known |= dict(zip(known, args, strict=False)) | kwargs
        if not check(known):
            raise ValueError(f"{operator} is given what does not fit together")
        return operator(*args, **kwargs)

    # Code that is written for a graph names it.
    run.__name__ = run.__qualname__ = f"checked_{name}"
    return run


def _transform(of: Mapping[str, Any]) -> bool:
    rank, axes = of["self"].dim(), of["dim"]
    is_axis = all(0 <= axis < rank for axis in axes) and len(set(axes)) == len(axes)
    return is_axis and len(axes) > 0 and of.get("last_dim_size", 1) > 0


def _weight_norm(of: Mapping[str, Any]) -> bool:
    v, g, axis = of["v"], of["g"], of["dim"]
    if not v.numel() or v.dtype != g.dtype:
        return False
    if axis == -1:
        return bool(g.numel() == 1)
    sizes = [size if index == axis else 1 for index, size in enumerate(v.shape)]
    return 0 <= axis < v.dim() and list(g.shape) == sizes


def _batch_norm(of: Mapping[str, Any]) -> bool:
    given = of["input"]
    parts = [of[key] for key in ("weight", "bias", "running_mean", "running_var")]
    return given.dim() > 1 and all(
        list(p.shape) == [given.shape[1]] for p in parts if p is not None
    )


def _attention(of: Mapping[str, Any]) -> bool:
    q, k, v, mask = of["query"], of["key"], of["value"], of["attn_mask"]
    if not all(x.dim() == 4 and x.dtype == q.dtype for x in (q, k, v)):
        return False
    ends = list(q.shape[:2]), q.shape[3]
    if any((list(x.shape[:2]), x.shape[3]) != ends for x in (k, v)) or k.shape[2] != v.shape[2]:
        return False
    sizes = [*ends[0], q.shape[2], k.shape[2]]
    return mask is None or _spreads(mask, sizes)


def _attention_parts(of: Mapping[str, Any]) -> bool:
    """Whether heads of keys go into those of the queries, which are divided by them."""
    q, k, v = of["query"], of["key"], of["value"]
    if not of.get("enable_gqa"):
        return True
    ranks = all(x.dim() >= 3 for x in (q, k, v))
    return ranks and all(x.shape[-3] > 0 and q.shape[-3] % x.shape[-3] == 0 for x in (k, v))


def _spreads(mask: Any, sizes: list[int]) -> bool:
    """Whether a mask has these sizes, or ones in their stead."""
    own = list(mask.shape)
    pairs = zip(own, sizes[len(sizes) - len(own) :], strict=True) if len(own) in (2, 4) else ()
    return len(own) in (2, 4) and all(size in (1, wanted) for size, wanted in pairs)


def _distances(of: Mapping[str, Any]) -> bool:
    a, b = of["x1"], of["x2"]
    same = a.dim() == b.dim() >= 2 and a.dtype == b.dtype
    return bool(same and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-1])


def _repeats(of: Mapping[str, Any]) -> bool:
    repeats = of["repeats"]
    if not hasattr(repeats, "dim") or not repeats.numel():
        return True
    return int(repeats.min()) >= 0 and float(repeats.double().sum()) < _MOST_REPEATED


def _scales(of: Mapping[str, Any]) -> bool:
    given = of.get("self", of.get("input"))
    sizes = of.get("output_size")
    if given is None or sizes is None or "scale_factors" in of:
        return True
    names = ("scales",) if "scales" in of else ("scales_d", "scales_h", "scales_w")
    scales = [of[key] for key in names if key in of]
    own = list(given.shape[2:])
    if len(own) != len(sizes) or len(own) != len(scales):
        return False
    known = [(a, b, s) for a, b, s in zip(own, sizes, scales, strict=True) if s is not None]
    return all(math.isfinite(s) and abs(math.floor(a * s) - b) <= 1 for a, b, s in known)


def _lstm(of: Mapping[str, Any]) -> bool:
    given, states, params = of["input"], of["hx"], of["params"]
    if len(states) != 2 or any(x.dim() != 3 for x in (given, *states)):
        return False
    directions, layers = 1 + bool(of["bidirectional"]), of["num_layers"]
    batch, width = given.shape[0 if of["batch_first"] else 1], given.shape[2]
    hidden, projected = states[1].shape[2], states[0].shape[2]
    each = (4 if of["has_biases"] else 2) + (hidden != projected)
    count = layers * directions
    sizes = [[count, batch, projected], [count, batch, hidden]]
    if [list(s.shape) for s in states] != sizes or len(params) != count * each:
        return False
    wanted: list[list[int]] = []
    for layer in range(layers):
        size = width if layer == 0 else directions * projected
        one = [[4 * hidden, size], [4 * hidden, projected]]
        one += [[4 * hidden]] * 2 if of["has_biases"] else []
        wanted += (one + ([[projected, hidden]] if hidden != projected else [])) * directions
    return [list(p.shape) for p in params] == wanted


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "_fft_c2c": _transform,
    "_fft_r2c": _transform,
    "_fft_c2r": _transform,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _weight_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_attention_math": _attention_parts,
    "scaled_dot_product_attention": _attention_parts,
    "_cdist_forward": _distances,
    "repeat_interleave": _repeats,
    "lstm": _lstm,
    **dict.fromkeys(
        (
            *("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d"),
            *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bicubic2d"),
            *("upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d"),
            *("upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d"),
        ),
        _scales,
    ),
}
"""Whether an operator's operands fit together, by its name."""
