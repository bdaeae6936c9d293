"""ONNX forms of PyTorch's operators where its own exporter (2.13) has none, or one that can fail.

``masked_scatter``: the exporter's form fails in a run whose mask has more places than there are
elements. Checks of data (``torch._check_tensor_all``, the ``torch_compilable_check`` of
transformers): nothing of them is left but what leads to them, for which it has no form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgeinfer.convert.sources.torch_compare import reason

INT64, FLOAT, BOOL = 7, 1, 9


def forms() -> Mapping[Any, Callable[..., Any]]:
    """Return functions of ``onnxscript`` by PyTorch's operator."""
    import torch
    from onnxscript import opset18 as op

    def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
        """Where the mask is, the next element of the source."""
        shape = op.Shape(op.Add(op.Cast(self, to=FLOAT), op.Cast(mask, to=FLOAT)))
        wide = op.Cast(op.Expand(op.Cast(mask, to=INT64), shape), to=INT64)
        flat = op.Reshape(wide, op.Constant(value_ints=[-1]))
        elements = op.Reshape(source, op.Constant(value_ints=[-1]))
        one = op.Constant(value_int=1)
        place = op.Sub(op.CumSum(flat, op.Constant(value_int=0)), one)
        place = op.Max(place, op.Constant(value_int=0))
        place = op.Min(place, op.Sub(op.Size(elements), one))
        picked = op.Reshape(op.Gather(elements, place), shape)
        return op.Where(op.Cast(wide, to=BOOL), picked, self)

    def all_true(self: Any) -> Any:
        return op.Cast(op.ReduceMin(op.Cast(self, to=INT64), keepdims=0), to=BOOL)

    def any_true(self: Any) -> Any:
        return op.Cast(op.ReduceMax(op.Cast(self, to=INT64), keepdims=0), to=BOOL)

    def chosen(condition: Any, yes: Any, no: Any) -> Any:
        return op.Where(condition, yes, no)

    aten = torch.ops.aten
    return {
        aten.masked_scatter.default: masked_scatter,
        aten._is_all_true.default: all_true,
        aten._is_any_true.default: any_true,
        torch.sym_ite: chosen,
    }


_PLACE = re.compile(r'File "([^"]+)", line (\d+), in forward')


def explained(error: BaseException) -> str:
    """Say what an export failed for: the trace, or an operator that has no form in ONNX."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    why = reason(error)
    places = [found for e in chain for found in _PLACE.findall(str(e))]
    where = f" (at {places[-1][0]}, line {places[-1][1]})" if places else ""
    kinds = {type(e).__name__ for e in chain}
    if "TorchExportError" in kinds:
        return (
            f"torch.export cannot trace it: {why}{where}; rewrite that part for torch.export "
            "(fixed sizes, torch.where or torch.cond for data-dependent branches)"
        )
    missing = re.search(r"<OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>", why)
    if missing is not None:
        what = missing[1].replace("aten.", "torch's ")
        return (
            f"PyTorch's exporter has no form in ONNX for {what} ({missing[2]}){where}; compute it "
            "with other operators in forward()"
        )
    return f"PyTorch's exporter fails{where}, after torch.export has traced it: {why}"
