"""ONNX's reference evaluator: ``onnx`` in plain NumPy, slow, written to be right."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.base import Artifact, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    array_type,
    check_device,
    check_file,
    check_signature,
    fits,
    one_line,
    thread_count,
)
from edgeinfer.backends.copying import Copying
from edgeinfer.errors import ClosedError, LoadError, RunError
from edgeinfer.machine.cpu import usual_name
from edgeinfer.types import Array, Dim, Feeds, TensorSpec

NAME = "reference"
INSTALL = "pip install onnx"

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")

_DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool", "string"),
)


class ReferenceBackend:
    """Runs ONNX models with ``onnx.reference``."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for onnx."""
        try:
            import onnx
            import onnx.reference

            version = str(onnx.__version__)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == "onnx"
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"onnx {reason}; {INSTALL}")
        return Probe(NAME, version, (Device("cpu", usual_name()),))

    def capabilities(self) -> Capabilities:
        """ONNX with dynamic shapes; bound buffers are copied, runs wait for each other."""
        return Capabilities(
            frozenset({"onnx"}), frozenset(_DTYPES), zero_copy=False, keeps_time=False, forks=True
        )

    def load(self, artifact: Artifact, options: LoadOptions) -> ReferenceExecutable:
        """Open an ONNX model of ONNX's own operators.

        Raises:
            NotAvailableError: onnx or the device is not here.
            LoadError: not an ONNX model, or one with operators of somebody else.
        """
        check_device(self.probe(), options.device, "it runs on the CPU only")
        thread_count(NAME, options)
        if options.extra:
            raise LoadError(f"backend {NAME!r} has no options, received {sorted(options.extra)}")
        path = check_file(NAME, artifact, ("onnx",))
        model, evaluator = _open(path)
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = tuple(_spec(v) for v in model.graph.input if v.name not in constants)
        outputs = tuple(_spec(v) for v in model.graph.output)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        return ReferenceExecutable(evaluator, inputs, outputs)


def _open(path: Path) -> tuple[Any, Any]:
    import onnx
    import onnx.reference

    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise LoadError(f"onnx cannot read {path}: {one_line(error)}") from error
    if not model.graph.output:
        raise LoadError(f"onnx cannot read {path}: there is no graph with an output in it")
    own = {(function.domain, function.name) for function in model.functions}
    strange = sorted(
        f"{node.domain}::{node.op_type}"
        for node in model.graph.node
        if node.domain not in _DOMAINS and (node.domain, node.op_type) not in own
    )
    if strange:
        raise LoadError(f"backend {NAME!r} knows ONNX's operators only, not {', '.join(strange)}")
    try:
        return model, onnx.reference.ReferenceEvaluator(model)
    except Exception as error:
        raise LoadError(f"onnx.reference refuses {path}: {one_line(error)}") from error


def _spec(value: Any) -> TensorSpec:
    import onnx

    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value")
        raise LoadError(f"backend {NAME!r}: {value.name!r} is a {kind}, which has no array")
    tensor = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except KeyError as error:
        raise LoadError(f"backend {NAME!r}: {value.name!r} has no element type") from error
    dtype = "string" if tensor.elem_type == onnx.TensorProto.STRING else dtype
    if dtype not in _DTYPES:
        raise LoadError(f"backend {NAME!r}: {value.name!r} has elements {dtype}, which it refuses")
    if not tensor.HasField("shape"):
        return TensorSpec(value.name, dtype, None)
    return TensorSpec(value.name, dtype, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None


class ReferenceExecutable(Copying):
    """A model in the evaluator; runs of several threads wait for each other."""

    def __init__(
        self, evaluator: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._evaluator = evaluator
        self._names = [spec.name for spec in outputs]
        self._dtypes = {s.name: array_type(s.dtype) for s in (*inputs, *outputs)}
        self._lock = threading.Lock()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the evaluator failed.
            ClosedError: after ``close``.
        """
        with self._lock:
            evaluator = self._opened()
            self._check(feeds)
            try:
                # Operators may work in place; the caller's arrays are not ours to change.
                with np.errstate(all="ignore"), forks.undivided():
                    results = evaluator.run(self._names, {k: v.copy() for k, v in feeds.items()})
            except Exception as error:
                message = f"{type(error).__name__}: {one_line(error)}"
                raise RunError(f"onnx.reference failed: {message}") from error
        return {n: self._own(n, v) for n, v in zip(self._names, results, strict=True)}

    def _opened(self) -> Any:
        if self._evaluator is None:
            raise ClosedError(f"backend {NAME!r}: used after close()")
        return self._evaluator

    def close(self) -> None:
        """Free the model."""
        with self._lock:
            self._evaluator = None

    def _check(self, feeds: Feeds) -> None:
        names = [spec.name for spec in self.inputs]
        if feeds.keys() != set(names):
            raise RunError(f"run: expected inputs {names}, received {list(feeds)}")
        for spec in self.inputs:
            array = feeds[spec.name]
            if spec.dtype != "string" and array.dtype != self._dtypes[spec.name]:
                raise RunError(
                    f"run: input {spec.name!r}: expected {spec.dtype}, received {array.dtype}"
                )
            if spec.shape is not None and not fits(spec.shape, array.shape):
                raise RunError(f"run: input: expected {spec}, received shape {array.shape}")

    def _own(self, name: str, value: Any) -> Array:
        """Return a result as an array of the declared type, in memory of its own."""
        array = np.array(value)
        wanted = self._dtypes[name]
        if array.dtype == wanted:
            return array
        # onnx.reference gives float64, or a str_, where an operator's NumPy function does.
        if wanted.hasobject or (array.dtype.kind == "f" and wanted.kind in "fV"):
            return array.astype(wanted)
        raise RunError(
            f"onnx.reference gave {array.dtype} for output {name!r}, the model says {wanted}"
        )
