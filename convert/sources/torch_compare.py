"""Does an exported model compute what PyTorch does?"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.errors import SourceError
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array

_IN_MEMORY = 1 << 30
"""More bytes of weights than this go to ONNX Runtime through a file: protobuf ends at 2 GB."""


def compare_export(model: ir.Model, cases: list[tuple[Mapping[str, Any], Any]], name: str) -> float:
    """Run an export on inputs whose outputs PyTorch has given.

    Args:
        model: the export.
        cases: inputs by name, and what PyTorch made of them. The first has the user's own sizes,
            the others differ in the dynamic ones.
        name: Name of the model, for messages.

    Returns:
        The largest absolute difference.

    Raises:
        SourceError: the export does not run, or its outputs are not PyTorch's.
    """
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        graph = _serialise(model, Path(folder))
        for index, (feeds, outputs) in enumerate(cases):
            arrays = {key: to_numpy(value) for key, value in feeds.items()}
            _check_inputs(model, arrays, name)
            try:
                actual = _run(graph, arrays) if has_onnxruntime() else _evaluate(model, arrays)
            except Exception as error:
                # Neither engine has a common error class.
                raise SourceError(_cannot_run(name, index, error)) from error
            worst = max(worst, _difference(model, flatten(outputs), actual, name))
    return worst


def flatten(outputs: Any) -> list[Array]:
    """All tensors among the outputs, in the exporter's order."""
    return [to_numpy(leaf) for leaf in leaves(outputs) if is_tensor(leaf)]


def leaves(tree: Any) -> list[Any]:
    """What nested tuples, lists and dicts hold, in PyTorch's order."""
    from torch.utils import _pytree

    found: list[Any] = _pytree.tree_leaves(tree)
    return found


@contextlib.contextmanager
def as_exported() -> Iterator[None]:
    """PyTorch gives the numbers that its exporter's graph would where several are right.

    Of equal values it takes the first, and layers of transformers compute padded tokens too: their
    short cut, which is not what is traced, sets them to zero.
    """
    import torch

    short = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _first_of_equal():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short)


def _first_of_equal() -> Any:
    """A mode in which PyTorch takes the first of equal values, as ONNX's TopK does.

    PyTorch leaves the choice among equal values to the kernel; every choice is right, and a module
    whose scores tie (a classifier that starts at zero) would look wrong.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten

    class _FirstOfEqual(TorchDispatchMode):  # type: ignore[misc]
        # Branches and loops are handed on as they are; what runs inside them is not looked at.
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is aten.topk.default:
                return _topk(*args, **kwargs)
            if func is aten.sort.default:
                return _sorted(*args, **kwargs)
            return func(*args, **kwargs)

    def _sorted(x: Any, dim: int = -1, descending: bool = False) -> Any:
        return aten.sort.stable(x, stable=True, dim=dim, descending=descending)

    def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        if not x.ndim:
            return aten.topk.default(x, k, dim, largest, sorted)
        return tuple(part.narrow(dim, 0, k) for part in _sorted(x, dim, descending=largest))

    return _FirstOfEqual()


def check_real(values: Mapping[str, Any] | Sequence[Any], what: str, name: str) -> None:
    """Refuse inputs or outputs of complex numbers, which no artifact takes or gives.

    Raises:
        SourceError: one of them is complex.
    """
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    found = [key for key, v in items if is_tensor(v) and v.is_complex()]
    if found:
        one = "takes" if what == "input" else "gives"
        raise SourceError(
            f"{name}: {what} {found[0]!r} is complex; wrap the module so that forward() {one} real "
            "tensors (torch.view_as_real, torch.view_as_complex)"
        )


def is_tensor(value: Any) -> bool:
    """Whether it is a ``torch.Tensor``."""
    import torch

    return isinstance(value, torch.Tensor)


def to_numpy(tensor: Any) -> Array:
    """A tensor of any device and element type as an array."""
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    return np.asarray(tensor.numpy())


def output_names(outputs: Any, taken: Mapping[str, Any]) -> list[str] | None:
    """Names as ``forward`` gives them: a dict's keys, a named tuple's fields, or numbers."""
    if is_tensor(outputs):
        names = ["output"]
    elif isinstance(outputs, Mapping) and all(is_tensor(value) for value in outputs.values()):
        names = [str(key) for key in outputs]
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        names = [str(field) for field in outputs._fields]
    elif isinstance(outputs, list | tuple):
        names = [f"output_{i}" for i in range(sum(map(is_tensor, leaves(outputs))))]
    else:
        return None
    return None if set(names) & set(taken) or len(set(names)) != len(names) else names


def reason(error: BaseException) -> str:
    """First telling line of the deepest cause that says anything."""
    found = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        if lines:
            # A line that announces the next one tells nothing alone.
            found = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        cause = cause.__cause__
    return found.removesuffix(".")


def _serialise(model: ir.Model, folder: Path) -> str | bytes:
    weights = [value.const_value for value in model.graph.initializers.values()]
    if sum(tensor.nbytes for tensor in weights if tensor is not None) <= _IN_MEMORY:
        return bytes(ir.to_proto(model).SerializeToString())
    path = str(folder / "model.onnx")
    ir.save(model, path, external_data="weights.bin")
    return path


def _check_inputs(model: ir.Model, feeds: Mapping[str, Array], name: str) -> None:
    expected = {value.name for value in model.graph.inputs}
    if expected != feeds.keys():
        raise SourceError(
            f"{name}: its ONNX export has inputs {sorted(map(str, expected))}, forward() has "
            f"{sorted(feeds)}; wrap the module so that forward() takes tensors only"
        )


def _run(graph: str | bytes, feeds: Mapping[str, Array]) -> list[Array]:
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = ort.RunOptions()
    run.log_severity_level = 4
    try:
        session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        # It lacks kernels for some element types (bfloat16) that the reference evaluator has.
        slow: list[Array] = ReferenceEvaluator(graph).run(None, dict(feeds))
        return slow
    results: list[Array] = session.run(None, dict(feeds), run)
    return results


def _evaluate(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    from edgeinfer.convert.verify.evaluate import Evaluator

    return list(Evaluator(model, wide=False).run(feeds).values())


def _cannot_run(name: str, index: int, error: Exception) -> str:
    if index:
        return (
            f"{name}: its ONNX export only runs with the sizes of the example inputs, although "
            f"others were to be possible ({reason(error)}); give other example_inputs, or leave "
            "out dynamic_shapes"
        )
    kind = "NOT_IMPLEMENTED" in str(error) or "type" in str(error)
    advice = (
        "convert the module to float32 or float16"
        if kind
        else "PyTorch's exporter is at fault: write the layer that it names with other operators"
    )
    return (
        f"{name}: its ONNX export does not run ({reason(error)}); {advice}, or give an ONNX export "
        "of your own"
    )


def _difference(model: ir.Model, expected: list[Array], actual: list[Array], name: str) -> float:
    if len(actual) != len(expected):
        raise SourceError(
            f"{name}: PyTorch gives {len(expected)} outputs, its ONNX export {len(actual)}; "
            "return tensors only from forward()"
        )
    worst = 0.0
    for value, wanted, found in zip(model.graph.outputs, expected, actual, strict=True):
        metrics = compare(wanted, found)
        precision = {"float16": "fp16", "bfloat16": "bf16"}.get(wanted.dtype.name, "fp32")
        breaches = check(metrics, budget_for(precision))
        if breaches:
            advice = (
                "forward() may be random or keep state, else the exporter is at fault"
                if precision == "fp32"
                else f"pass module.float() and choose precision {precision} instead"
            )
            raise SourceError(
                f"{name}: its ONNX export gives other numbers than PyTorch for output "
                f"{value.name!r}: {breaches[0]}; {advice}"
            )
        worst = max(worst, metrics.max_abs)
    return worst
