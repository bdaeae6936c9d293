"""Sampling of images and regions."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal

_PADDING = {
    ("zeros", 0): "constant",
    ("zeros", 1): "constant",
    ("border", 0): "border",
    ("border", 1): "border",
    ("reflection", 0): "symmetric",
    ("reflection", 1): "reflection",
}


@OPS.lower("GridSample", dtypes=FLOATS)
def grid_sample(
    g: Builder, X: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str
) -> Tensor:
    """Resample."""
    if X.rank != 4:
        raise Refusal(f"rank {X.rank}: resample takes images", "unsupported_rank")
    if mode == "cubic":
        raise Refusal("mode 'cubic' is not known to Core ML")
    return g.emit(
        "resample",
        x=X,
        coordinates=grid,
        sampling_mode="nearest" if mode == "nearest" else "bilinear",
        padding_mode=_PADDING[padding_mode, align_corners],
        padding_value=0.0,
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=bool(align_corners),
    )
