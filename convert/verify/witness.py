"""Those who can say what a model computes: engines and evaluations behind one small protocol."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime, import_openvino
from edgeinfer.backends.process.deadline import deadline
from edgeinfer.convert.sources.original import Original
from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator, TookTooLong
from edgeinfer.errors import LoadError
from edgeinfer.types import Array, Feeds

TIME_LIMIT_S = 600.0
"""What one run of a model may take, unless the caller says otherwise."""


class Abstains(Exception):  # noqa: N818 - a vote not given, not an error of the model
    """A witness cannot answer, and why in half a sentence."""


class Broke(Abstains):
    """A witness failed at what it should do; it lacks no operator, no type, no time."""


class Unending(Abstains):
    """A run was ended, because it took longer than one may."""

    def __init__(self, limit_s: float) -> None:
        """Name the option that gives it longer."""
        super().__init__(f"no end after {limit_s:g} s; --time-limit gives it longer")


class Witness(Protocol):
    """Answers what the outputs of a model are."""

    name: str

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Return the outputs in the model's types.

        Raises:
            Abstains: it cannot.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class OnnxRuntime:
    """ONNX Runtime as it reads the file: no graph optimisation."""

    name = "onnxruntime"

    def __init__(self, path: Path, time_limit_s: float = TIME_LIMIT_S) -> None:
        """Open a model, if the engine is installed; weights in other files lie next to it."""
        self._limit_s = time_limit_s
        if not has_onnxruntime():
            raise Abstains("it is not installed")
        ort = import_onnxruntime()
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # Freed after each run: other stages need the memory between runs.
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = ort.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as e:
            raise Abstains(f"it refuses the model ({_first_line(e)})") from e
        self._outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        if self._session is None:
            raise Abstains("it is closed")
        options = import_onnxruntime().RunOptions()
        options.log_severity_level = 4
        # It is looked at before each operator, inside of loops too.
        timer = threading.Timer(self._limit_s, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            results = self._session.run(None, dict(feeds), options)
        except Exception as e:
            if options.terminate:
                raise Unending(self._limit_s) from e
            raise Broke(f"its run failed ({_first_line(e)})") from e
        finally:
            timer.cancel()
        found = dict(zip(self._outputs, results, strict=True))
        if nothing := [name for name, value in found.items() if value is None]:
            raise Abstains(f"nothing is given for {nothing[0]!r} by its operator")
        return found

    def close(self) -> None:
        """Free the session."""
        self._session = None


class Numpy:
    """Our evaluation op by op, in float64 or in the model's own types.

    Without our ``own`` operators it is another evaluation: ONNX's definitions as its authors
    compute them, one float after the other. ``rounded`` to its own type after each operator, it is
    what a float32 engine gives whose operators are all exact.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        wide: bool,
        seconds: float,
        limit_s: float = TIME_LIMIT_S,
        own: bool = True,
        rounded: bool = False,
        summed: bool = False,
    ) -> None:
        """Prepare; ``seconds`` of CPU time are for all runs, however busy the machine is.

        One run may take ``limit_s`` of them.
        """
        named = "definitions" if rounded else "float64"
        self.name = named if wide else "onnx reference" if own else "onnx operators"
        self._left, self._limit_s = seconds, limit_s
        self._broken, self._is_fault = "", False
        try:
            self._evaluator = Evaluator(model, wide=wide, own=own, rounded=rounded, summed=summed)
        except Exception as e:
            self._broken, self._is_fault = f"it cannot read the model ({_first_line(e)})", True
        self._outputs = list(model.graph.outputs)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Evaluate once."""
        if self._broken:
            raise (Broke if self._is_fault else Abstains)(self._broken)
        start = time.thread_time()
        try:
            results = self._evaluator.run(feeds, seconds=min(self._left, self._limit_s))
        except CannotEvaluate as e:
            # What it cannot do once it cannot do for the next vector either.
            self._broken, self._is_fault = str(e), e.broke
            raise (Broke if e.broke else Abstains)(self._broken) from e
        finally:
            self._left -= time.thread_time() - start
        return {str(v.name): _as_declared(results[str(v.name)], v) for v in self._outputs}

    def close(self) -> None:
        """Nothing is held."""


class Tried:
    """Our evaluation in the model's own types, of inputs that the model may not take."""

    name = "trial"

    def __init__(self, model: ir.Model, time_limit_s: float = TIME_LIMIT_S) -> None:
        """Prepare; the limit is CPU time of one run."""
        self._limit_s = time_limit_s
        self._inputs, self._outputs = list(model.graph.inputs), list(model.graph.outputs)
        try:
            self._evaluator = Evaluator(model, wide=False)
        except Exception as e:
            raise Broke(f"it cannot read the model ({_first_line(e)})") from e

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Evaluate once."""
        for value in self._inputs:
            array = feeds.get(value.name or "")
            if array is not None and not _fits(array, value):
                raise Abstains(
                    f"input {value.name!r} is {array.dtype}{list(array.shape)}, the model declares "
                    f"{value.dtype}{value.shape}"
                )
        try:
            results = self._evaluator.run(feeds, seconds=self._limit_s)
        except TookTooLong as e:
            raise Unending(self._limit_s) from e
        except CannotEvaluate as e:
            raise (Broke if e.broke else Abstains)(str(e)) from e
        return {str(v.name): results[str(v.name)] for v in self._outputs}

    def close(self) -> None:
        """Nothing is held."""


class OpenVino:
    """OpenVINO, whose kernels and importer share nothing with the others."""

    name = "openvino"

    def __init__(self, path: Path, time_limit_s: float = TIME_LIMIT_S) -> None:
        """Open a model, if the engine is installed."""
        self._limit_s = time_limit_s
        try:
            openvino = import_openvino()
        except ImportError as e:
            raise Abstains("it is not installed") from e
        try:
            core = openvino.Core()
            options = {"INFERENCE_PRECISION_HINT": "f32"}
            self._model = core.compile_model(core.read_model(path), "CPU", options)
        except Exception as e:
            raise Abstains(f"it refuses the model ({_first_line(e)})") from e

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        try:
            with _timed("OpenVINO", self._limit_s):
                results = self._model(dict(feeds))
        except Exception as e:
            raise Broke(f"its run failed ({_first_line(e)})") from e
        return {o.any_name: np.array(results[o]) for o in self._model.outputs}

    def close(self) -> None:
        """Free the model."""
        self._model = None


class LiteRt:
    """LiteRT's reference kernels on the file that the model was read from; no delegate."""

    name = "litert"

    def __init__(
        self, original: Original, folder: Path, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """Open a file; one never seen before is first tried in a process of its own.

        Args:
            original: the file.
            folder: for a copy, where its kernels would not compute what the file means.
            time_limit_s: that a run may take.
        """
        self._original, path, self._limit_s = original, original.path, time_limit_s
        try:
            if original.hybrid:
                from edgeinfer.convert.sources.tflite.plain import write_plain

                path = folder / "plain.tflite"
                write_plain(original.path, path)
            self._engine: Any = self._open(path, folder)
        except (LoadError, RuntimeError, ValueError) as e:
            raise Abstains(f"it refuses the file ({_first_line(e)})") from e

    def _open(self, path: Path, folder: Path) -> Any:
        # Readers of TFLite files are for models that come from one.
        from edgeinfer.convert.verify.tflite_parts import open_reference

        return open_reference(path)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once, with the sizes of the inputs and without any state."""
        if self._engine is None:
            raise Abstains("it is closed")
        moved = self._original.moved
        inner = {n: a if n not in moved else _moved(a, moved[n]) for n, a in feeds.items()}
        with _timed("LiteRT", self._limit_s):
            results = self._run(inner)
        return {
            n: a if n not in moved else _moved(a, tuple(np.argsort(moved[n])))
            for n, a in results.items()
        }

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        engine, original = self._engine, self._original
        try:
            if original.graph:
                results = engine.get_signature_runner(original.signature)(**feeds)
                return {name: np.array(results[name]) for name, _ in original.outputs}
            for name, index in original.inputs:
                engine.resize_tensor_input(index, feeds[name].shape)
            engine.allocate_tensors()
            engine.reset_all_variables()
            for name, index in original.inputs:
                engine.set_tensor(index, feeds[name])
            engine.invoke()
            return {name: engine.get_tensor(index) for name, index in original.outputs}
        except (RuntimeError, ValueError) as e:
            raise Broke(f"its run failed ({_first_line(e)})") from e

    def close(self) -> None:
        """Free the interpreter."""
        self._engine = None


class LiteRtInPieces(LiteRt):
    """LiteRT's reference kernels and, for operators that it lacks, their definitions."""

    name = "litert and definitions"

    def _open(self, path: Path, folder: Path) -> Any:
        from edgeinfer.convert.verify.tflite_parts import GraphParts

        return GraphParts(path, self._original, folder)

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        try:
            results: dict[str, Array] = self._engine.run(feeds)
        except (RuntimeError, ValueError) as e:
            raise Broke(f"its run failed ({_first_line(e)})") from e
        return results


def _timed(engine: str, limit_s: float) -> AbstractContextManager[None]:
    """Limit what an engine may take that nothing can interrupt."""
    return deadline(limit_s, f"{engine}: no end after {limit_s:g} s")


def _moved(array: Array, perm: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(array.transpose(perm))


def _fits(array: Array, value: ir.Value) -> bool:
    """Whether an array has the type that an input declares, and its sizes as far as they are."""
    if value.dtype is not None and array.dtype != value.dtype.numpy():
        return False
    if value.shape is None:
        return True
    pairs = zip(array.shape, value.shape, strict=False)
    return array.ndim == len(value.shape) and all(
        not isinstance(declared, int) or declared in (size, -1) for size, declared in pairs
    )


def _as_declared(result: Any, value: ir.Value) -> Any:
    """Give a float64 result the type that the model declares for the output."""
    if not isinstance(result, np.ndarray) or result.dtype.kind != "f" or value.dtype is None:
        return result
    with np.errstate(over="ignore"):
        return result.astype(value.dtype.numpy())


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
