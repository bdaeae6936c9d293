"""Lower a graph, run it in LiteRT in a process of its own, compare with ONNX Runtime.

from tests.convert.lower.tflite.run import check, lower, outputs
check("<ir_version: 10, opset_import: ['' : 24]> g (float[2] x) => (float[2] y) {y = Relu(x)}",
      {"x": np.array([-1, 1], np.float32)})
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.convert.lower.tflite.together import Row

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
HEADER = '<ir_version: 10, opset_import: ["" : 24]>'


def model_of(model: Any) -> Any:
    """An ``ir.Model`` from text (a header is added where there is none), a proto or a path."""
    import onnx
    import onnx_ir as ir

    if isinstance(model, str):
        return ir.from_onnx_text(model if model.lstrip().startswith("<") else HEADER + model)
    if isinstance(model, Path):
        return ir.load(model)
    return ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model


def lower(model: Any, precision: str = "fp32", shapes: Any = None) -> bytes:
    """Normalise and lower; returns the file."""
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.lower.tflite.target import TfliteTarget
    from edgeinfer.convert.passes import normalise

    normal = normalise(model_of(model), input_shapes=shapes).model
    with tempfile.TemporaryDirectory() as folder:
        made = TfliteTarget().lower(normal, profile(), LowerOptions(precision), Path(folder))
        return made.files[0].read_bytes()


def profile() -> Any:
    """A profile that allows everything."""
    from edgeinfer.profiles.schema import PRECISIONS, Profile

    return Profile("any", "any", ("linux",), (), ("tflite",), ("litert",), tuple(PRECISIONS))


def outputs(
    data: bytes | Path, feeds: Feeds, *, xnnpack: bool = True, threads: int = 1
) -> dict[str, Array]:
    """Run a file in the child; inputs are resized to the feeds.

    Raises:
        RuntimeError: LiteRT refused the file, or ended the process.
    """
    content = data.read_bytes() if isinstance(data, Path) else data
    return _child().ask((content, dict(feeds), xnnpack, threads))


def expected(model: Any, feeds: Feeds) -> dict[str, Array]:
    """What ONNX Runtime computes, unoptimised."""
    import onnx_ir as ir
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = ir.to_proto(model_of(model)).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def check(
    model: Any,
    feeds: Feeds,
    *more: Feeds,
    rtol: float = 1e-5,
    want: Mapping[str, Array] | None = None,
    precision: str = "fp32",
) -> bytes:
    """Compare one lowering with ONNX Runtime (or ``want``), with and without XNNPACK.

    Args:
        model: text, proto, path or ``ir.Model``.
        feeds: by input name.
        *more: further feeds, of other sizes where the model is dynamic.
        rtol: of the largest magnitude of the expected output.
        want: values to expect instead, for ``feeds`` only.
        precision: recipe.

    Returns:
        The file, for a look at its operators; empty where many are checked together.
    """
    import onnx_ir as ir

    from tests.convert.lower.tflite.together import Row, collecting

    waiting = collecting()
    if waiting is not None:
        proto = ir.to_proto(model_of(model))
        waiting.append(Row(proto, (feeds, *more), rtol, want, precision, _described(proto, feeds)))
        return b""
    data = lower(model, precision)
    for one in (feeds, *more):
        right = want if want is not None and one is feeds else expected(model, one)
        for xnnpack in (True, False):
            got = outputs(data, one, xnnpack=xnnpack)
            assert list(got) == list(right)
            for name, value in right.items():
                assert_close(got[name], np.asarray(value), rtol, f"{name}, xnnpack={xnnpack}")
    return data


def check_rows(rows: Sequence[Row]) -> None:
    """Check models of one kind, as ``check`` does each, in one conversion."""
    from tests.convert.lower.tflite.together import joined, prefix

    model = joined([row.model for row in rows])
    data = lower(model, rows[0].precision)
    for turn in range(len(rows[0].feeds)):
        feeds = {prefix(i) + n: x for i, row in enumerate(rows) for n, x in row.feeds[turn].items()}
        given = turn == 0 and rows[0].want is not None
        computed = {} if given else expected(model, feeds)
        for xnnpack in (True, False):
            got = outputs(data, feeds, xnnpack=xnnpack)
            for i, row in enumerate(rows):
                names = [o.name for o in row.model.graph.output]
                right = row.want if given else {n: computed[prefix(i) + n] for n in names}
                assert right is not None
                assert list(right) == names
                for name, value in right.items():
                    where = f"{name} of {row.where}, xnnpack={xnnpack}"
                    assert_close(got[prefix(i) + name], np.asarray(value), row.rtol, where)


def _described(model: Any, feeds: Feeds) -> str:
    nodes = " ".join(str(node) for node in model.graph.node).split()
    values = ", ".join(f"{n}: {np.asarray(x).dtype}{list(x.shape)}" for n, x in feeds.items())
    return f"{' '.join(nodes)[:500]} ({values})"


def assert_close(got: Array, want: Array, rtol: float, where: str) -> None:
    """Equal type, shape, special values, and numbers within ``rtol`` of the largest one."""
    assert got.dtype == want.dtype, f"{where}: {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{where}: {got.shape} instead of {want.shape}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale, err_msg=where)


def ops(data: bytes) -> list[str]:
    """The operators of the main subgraph, in order."""
    return [name for name, _ in _operators(data)]


def _operators(data: bytes) -> Sequence[tuple[str, Any]]:
    from ai_edge_litert import schema_py_generated as s

    names = {v: k for k, v in vars(s.BuiltinOperator).items() if not k.startswith("_")}
    model = s.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    found = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    return [(names[model.OperatorCodes(o.OpcodeIndex()).BuiltinCode()], o) for o in found]


class _Child:
    """A worker process, started again when it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Any) -> dict[str, Array]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as e:
            raise RuntimeError(f"LiteRT ended its process, exit status {process.wait()}") from e
        if isinstance(answer, str):
            raise RuntimeError(answer)  # noqa: TRY004  (the message of an error in the child)
        result: dict[str, Array] = answer
        return result


@cache
def _child() -> _Child:
    return _Child()


def run_here(content: bytes, feeds: Feeds, xnnpack: bool, threads: int) -> dict[str, Array]:
    """Run a file in this process, which LiteRT may end."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interp = Interpreter(
        model_content=content, num_threads=threads, experimental_op_resolver_type=kind
    )
    signature = interp.get_signature_list()["serving_default"]
    runner = interp._get_full_signature_list()["serving_default"]
    for name, value in feeds.items():
        index = runner["inputs"][name]
        if list(interp._get_tensor_details(index, 0)["shape"]) != list(value.shape):
            interp.resize_tensor_input(index, value.shape, strict=False)
    interp.allocate_tensors()
    # Twice: what an operator keeps from one run to the next must not show.
    for _ in range(2):
        interp.reset_all_variables()
        for name, value in feeds.items():
            interp.set_tensor(runner["inputs"][name], value)
        interp.invoke()
    order = {i: n for n, i in runner["outputs"].items()}
    found = [d["index"] for d in interp.get_output_details()]
    if sorted(order.values()) != sorted(signature["outputs"]):
        raise RuntimeError(f"signature {signature['outputs']} names {order}")
    return {order[i]: _tensor(interp, i) for i in found}


def _tensor(interp: Any, index: int) -> Array:
    details = interp._get_tensor_details(index, 0)
    if 0 in details["shape"]:
        # The wrapper finds no memory behind a computed tensor without elements.
        return np.empty(details["shape"], details["dtype"])
    result: Array = interp.get_tensor(index)
    return result


def _serve() -> None:
    # LiteRT writes to stdout now and then; the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = run_here(*job)
        except (RuntimeError, ValueError, KeyError) as e:
            answer = f"{type(e).__name__}: {e}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
