"""PyTorch modules and exported programs, through ``torch.export`` and ``torch.onnx``."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.sources.onnx import fingerprint
from edgeinfer.convert.sources.quiet import quiet
from edgeinfer.convert.sources.repair import repair
from edgeinfer.errors import NotAvailableError, Notes, SourceError, UsageError
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array

if TYPE_CHECKING:
    import torch

Read = tuple[ir.Model, SourceRecord, Notes]
Shapes = Mapping[str, Mapping[int, Any]]

_IN_MEMORY = 1 << 30
"""More bytes of weights than this go to ONNX Runtime through a file: protobuf ends at 2 GB."""


_TRACES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node")


def read_module(
    module: torch.nn.Module,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None,
    dynamic_shapes: Shapes | None,
) -> Read:
    """Export a module and check that the export computes what the module does.

    The module is exported in eval mode and left as it was. The weights of the result share memory
    with the module's parameters.

    Raises:
        UsageError: the examples do not fit ``forward``, or a dynamic size names no input or axis.
        SourceError: the module cannot be exported, or its export gives other numbers.
    """
    _need_onnxscript()
    name = type(module).__name__
    feeds = _by_name(module, example_inputs, name)
    _check_dynamic(dynamic_shapes, feeds)
    notes = Notes()
    if any(part.training for part in module.modules()):
        notes.add("the module was in training mode; exported in eval mode")
    with _eval_mode(module):
        expected = _call(module, feeds, name)
        model = _export(module, feeds, dynamic_shapes, _output_names(expected, feeds), name)
        return _finish(model, feeds, _flatten(expected), dynamic_shapes, notes, name, "torch")


def read_program(
    program: torch.export.ExportedProgram,
    dynamic_shapes: Shapes | None,
    name: str = "ExportedProgram",
    format: str = "torch",
) -> Read:
    """Turn an exported program into a model; ``dynamic_shapes`` only names its dynamic sizes.

    Raises:
        UsageError: a size that is to be named is static, or no input or axis has it.
        SourceError: an operator has no ONNX form, or the result gives other numbers.
    """
    _need_onnxscript()
    notes = Notes()
    if program.example_inputs is None:
        model = _export(program, None, None, None, name)
        _rename_sizes(model, dynamic_shapes or {})
        notes.add("the program holds no example inputs; its export was not compared with PyTorch")
        repair(model, notes, name)
        return model, SourceRecord(format, name, fingerprint(model)), notes
    args, kwargs = program.example_inputs
    with quiet():
        expected = program.module()(*args, **kwargs)
    names = list(program.graph_signature.user_inputs)
    feeds = {
        key: v for key, v in zip(names, _leaves((args, kwargs)), strict=False) if _is_tensor(v)
    }
    model = _export(program, None, None, _output_names(expected, feeds), name)
    _rename_sizes(model, dynamic_shapes or {})
    return _finish(model, feeds, _flatten(expected), None, notes, name, format)


def read_pt2(path: Path, dynamic_shapes: Shapes | None) -> Read:
    """Read a program that ``torch.export.save`` wrote.

    Raises:
        SourceError: the archive is damaged or of another PyTorch version.
        NotAvailableError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise NotAvailableError(
            f'{path}: reading a .pt2 file needs PyTorch; install it: pip install "edgeinfer[torch]"'
        ) from error
    _need_onnxscript()
    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:
        # torch.export raises whatever the damaged part provokes.
        raise SourceError(
            f"{path}: not a readable exported program ({_reason(error)}); save it again with "
            f"torch.export.save under PyTorch {torch.__version__}"
        ) from error
    model, record, notes = read_program(program, dynamic_shapes, path.name, "pt2")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return model, dataclasses.replace(record, sha256=digest), notes


def _need_onnxscript() -> None:
    try:
        with quiet():
            import onnxscript  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "PyTorch models are exported with onnxscript, which is not installed: "
            'pip install "edgeinfer[torch]"'
        ) from error


def _by_name(
    module: torch.nn.Module,
    examples: Mapping[str, Any] | Sequence[Any] | None,
    name: str,
) -> dict[str, Any]:
    """Bind the examples to the parameters of ``forward``, in its order."""
    if examples is None:
        raise UsageError(
            f"{name}: a module needs example_inputs: a tuple of tensors, or a dict by the names of "
            "its forward()"
        )
    signature = inspect.signature(module.forward)
    try:
        if isinstance(examples, Mapping):
            bound = signature.bind(**examples)
        else:
            alone = _is_tensor(examples)
            bound = signature.bind(*((examples,) if alone else tuple(examples)))
    except TypeError as error:
        raise UsageError(
            f"{name}: example_inputs do not fit forward{signature}: {error}"
        ) from error
    feeds: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        kind = signature.parameters[key].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            feeds.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            raise UsageError(f"{name}: forward(*{key}) has no input names; wrap it in a module")
        elif value is not None:
            feeds[key] = value
    for key, value in feeds.items():
        if not _is_tensor(value):
            raise UsageError(
                f"{name}: example input {key!r}: expected a torch.Tensor, received "
                f"{type(value).__name__}; wrap the module so that forward() takes tensors only"
            )
    return feeds


def _check_dynamic(dynamic: Shapes | None, feeds: Mapping[str, Any]) -> None:
    for key, axes in (dynamic or {}).items():
        if key not in feeds:
            raise UsageError(f"dynamic_shapes: no input {key!r}; inputs are {', '.join(feeds)}")
        rank = feeds[key].dim()
        for axis in axes:
            if not 0 <= axis < rank:
                raise UsageError(
                    f"dynamic_shapes: input {key!r} has axes 0 to {rank - 1}, received {axis}"
                )


@contextlib.contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode for every part; afterwards each has its own flag back."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


def _call(module: torch.nn.Module, feeds: Mapping[str, Any], name: str) -> Any:
    import torch

    try:
        with torch.no_grad(), quiet():
            return module(**{key: value.clone() for key, value in feeds.items()})
    except Exception as error:
        # Whatever forward() raises is the user's own error about the examples.
        raise SourceError(
            f"{name}: forward() fails on the example inputs: {_reason(error)}"
        ) from error


def _export(
    what: Any,
    feeds: Mapping[str, Any] | None,
    dynamic: Shapes | None,
    output_names: list[str] | None,
    name: str,
) -> ir.Model:
    import torch

    arguments: dict[str, Any] = {"output_names": output_names}
    if feeds is not None:
        shapes = {key: dict(dynamic.get(key, {})) for key in feeds} if dynamic else None
        arguments |= {
            "kwargs": dict(feeds),
            "dynamic_shapes": shapes,
            "input_names": list(feeds),
        }
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(what, dynamo=True, verbose=False, **arguments)
    except Exception as error:
        # The exporter wraps anything a module can do wrong; the root cause says the most.
        raise SourceError(
            f"{name}: torch.export cannot trace it: {_reason(error)}; rewrite that part for "
            "torch.export (fixed sizes, torch.where or torch.cond for data-dependent branches)"
        ) from error
    model: ir.Model = program.model
    _drop_traces(model)
    return model


def _drop_traces(model: ir.Model) -> None:
    """Drop the exporter's stack traces, which hold paths of this machine."""
    for graph in model.graphs():
        for node in graph:
            for key in _TRACES:
                node.metadata_props.pop(key, None)


def _finish(
    model: ir.Model,
    feeds: Mapping[str, Any],
    expected: list[Array],
    dynamic: Shapes | None,
    notes: Notes,
    name: str,
    format: str,
) -> Read:
    _note_merged_sizes(model, dynamic or {}, notes)
    repair(model, notes, name)
    arrays = {key: _to_numpy(value) for key, value in feeds.items()}
    worst = _compare(model, arrays, expected, name)
    notes.add(f"ONNX export equals PyTorch on the example inputs: max abs diff {worst:.3g}")
    return model, SourceRecord(format, name, fingerprint(model)), notes


def _compare(
    model: ir.Model, feeds: Mapping[str, Array], expected: list[Array], name: str
) -> float:
    """Run the export in ONNX Runtime; return the largest difference."""
    actual = _run(model, feeds, name)
    if len(actual) != len(expected):
        raise SourceError(
            f"{name}: PyTorch gives {len(expected)} outputs, its ONNX export {len(actual)}; "
            "return tensors only from forward()"
        )
    worst = 0.0
    for value, wanted, found in zip(model.graph.outputs, expected, actual, strict=True):
        metrics = compare(wanted, found)
        half = wanted.dtype.name in ("float16", "bfloat16")
        breaches = check(metrics, budget_for("fp16" if half else "fp32"))
        if breaches:
            raise SourceError(
                f"{name}: the ONNX export gives other numbers than PyTorch for output "
                f"{value.name!r}: {breaches[0]}; forward() may be random or depend on state, "
                "else report it to PyTorch"
            )
        worst = max(worst, metrics.max_abs)
    return worst


def _run(model: ir.Model, feeds: Mapping[str, Array], name: str) -> list[Array]:
    used = {value.name for value in model.graph.inputs}
    given = {key: value for key, value in feeds.items() if key in used}
    if len(given) != len(used):
        raise SourceError(
            f"{name}: the export has inputs {sorted(used - given.keys(), key=str)} that forward() "
            "has not; wrap the module so that forward() takes tensors only"
        )
    weights = [value.const_value for value in model.graph.initializers.values()]
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        graph: str | bytes
        if sum(tensor.nbytes for tensor in weights if tensor is not None) > _IN_MEMORY:
            graph = str(Path(folder) / "model.onnx")
            ir.save(model, graph, external_data="weights.bin")
        else:
            graph = ir.to_proto(model).SerializeToString()
        try:
            return _run_onnxruntime(graph, given)
        except Exception as first:
            # No common error class. ONNX Runtime lacks kernels for some types (bfloat16) that the
            # reference evaluator has.
            try:
                results: list[Array] = ReferenceEvaluator(graph).run(None, given)
            except Exception:
                raise SourceError(
                    f"{name}: ONNX Runtime cannot run the export: {_reason(first)}; convert the "
                    "module to float32 or float16 first"
                ) from first
            return results


def _run_onnxruntime(graph: str | bytes, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results


def _output_names(outputs: Any, feeds: Mapping[str, Any]) -> list[str] | None:
    """Names of the outputs: a dict's keys, a named tuple's or dataclass's fields, or numbers."""
    if _is_tensor(outputs):
        names = ["output"]
    elif isinstance(outputs, Mapping) and all(_is_tensor(v) for v in outputs.values()):
        names = [str(key) for key in outputs]
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        names = [str(field) for field in outputs._fields]
    elif isinstance(outputs, list | tuple) and all(_is_tensor(v) for v in outputs):
        names = [f"output_{index}" for index in range(len(outputs))]
    else:
        return None
    return None if set(names) & set(feeds) or len(set(names)) != len(names) else names


def _rename_sizes(model: ir.Model, names: Shapes) -> None:
    """Give the dynamic sizes of an exported program the user's names, everywhere."""
    inputs = {value.name: value for value in model.graph.inputs}
    renamed: dict[str, str] = {}
    for key, axes in names.items():
        value = inputs.get(key)
        if value is None or value.shape is None:
            known = ", ".join(name or "" for name in inputs)
            raise UsageError(f"dynamic_shapes: no input {key!r}; inputs are {known}")
        for axis, new in axes.items():
            size = value.shape[axis] if 0 <= axis < len(value.shape) else None
            if not isinstance(size, ir.SymbolicDim) or size.value is None:
                raise UsageError(
                    f"dynamic_shapes: axis {axis} of input {key!r} is {size} in the exported "
                    "program; export it again with that axis dynamic"
                )
            renamed[size.value] = getattr(new, "__name__", str(new))
    if not renamed:
        return
    words = re.compile(r"\b(" + "|".join(map(re.escape, renamed)) + r")\b")
    for graph in model.graphs():
        values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
        for value in values:
            if value.shape is not None:
                value.shape = ir.Shape(
                    dim
                    if isinstance(dim, int) or dim.value is None
                    else words.sub(lambda found: renamed[found[0]], dim.value)
                    for dim in value.shape
                )


def _note_merged_sizes(model: ir.Model, dynamic: Shapes, notes: Notes) -> None:
    """Say where the module itself ties or fixes sizes that the user named."""
    for value in model.graph.inputs:
        for axis, wanted in dynamic.get(value.name or "", {}).items():
            label = getattr(wanted, "__name__", str(wanted))
            size = value.shape[axis] if value.shape is not None else None
            found = size.value if isinstance(size, ir.SymbolicDim) else size
            if isinstance(found, int):
                notes.add(
                    f"size {label!r} of input {value.name!r} is fixed to {found} by the module"
                )
            elif found is not None and found != label and isinstance(wanted, str):
                notes.add(f"size {label!r} of input {value.name!r} always equals {found!r}")


def _leaves(tree: Any) -> list[Any]:
    from torch.utils import _pytree

    leaves: list[Any] = _pytree.tree_leaves(tree)
    return leaves


def _flatten(outputs: Any) -> list[Array]:
    """All tensors among the outputs, in the exporter's order."""
    return [_to_numpy(leaf) for leaf in _leaves(outputs) if _is_tensor(leaf)]


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _to_numpy(tensor: Any) -> Array:
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    return np.asarray(tensor.numpy())


def _reason(error: BaseException) -> str:
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
