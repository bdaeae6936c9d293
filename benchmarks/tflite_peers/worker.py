"""What touches LiteRT, in a process of its own: it aborts on some files.

    python -m benchmarks.tflite_peers.worker   (a pickled request on stdin, the answer on stdout)

Asked by ``ask``; imports nothing of edgeinfer, so that every file is run in the same way.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from typing import Any

TIMEOUT_S = 300

REOPENED = 5


class FailedError(RuntimeError):
    """LiteRT refused a file, or ended the process."""


def ask(what: str, *arguments: Any) -> Any:
    """Call a function of this module in a child.

    Raises:
        FailedError: with the last line that was said.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.tflite_peers.worker"],
            input=pickle.dumps((what, arguments)),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise FailedError(f"not done after {TIMEOUT_S} s") from e
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
        ended = "aborted: " if done.returncode < 0 else ""
        raise FailedError(ended + lines[-1][-160:])
    return pickle.loads(done.stdout)


def inspect(path: str) -> dict[str, Any]:
    """Count the operators of all subgraphs; list custom ones and the main graph's inputs."""
    from ai_edge_litert import schema_py_generated as s

    with open(path, "rb") as file:
        model = s.ModelT.InitFromPackedBuf(file.read(), 0)
    names = {v: k for k, v in vars(s.BuiltinOperator).items() if not k.startswith("_")}
    codes = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    ops: Counter[str] = Counter()
    custom = []
    for graph in model.subgraphs:
        for op in graph.operators:
            code = names[codes[op.opcodeIndex]]
            ops[code] += 1
            if code == "CUSTOM" or code.startswith("FLEX"):
                custom.append(str(model.operatorCodes[op.opcodeIndex].customCode))
    return {"ops": dict(ops), "custom": custom, "bytes": os.path.getsize(path)}


def run(path: str, feeds: dict[str, Any], xnnpack: bool = True) -> dict[str, Any]:
    """Run once; returns outputs by name, as floats where they are quantized."""
    interpreter = _opened(path, feeds, xnnpack)
    interpreter.invoke()
    return _outputs(interpreter)


def race(paths: list[str], feeds: list[dict[str, Any]], seconds: float) -> list[list[float]]:
    """Time files against each other in turns; returns CPU seconds a call, a list a file.

    A turn is one sample of each file, in alternating order, each of as many calls as 10 ms hold.
    Every file is opened anew a few times, in alternating order too: where its memory lies matters.
    """
    samples: list[list[float]] = [[] for _ in paths]
    order = list(range(len(paths)))
    for _ in range(REOPENED):
        order.reverse()
        runners = {index: _opened(paths[index], feeds[index]) for index in order}
        counts = {index: _calls(runner) for index, runner in runners.items()}
        end, turns = time.monotonic() + seconds / REOPENED, 0
        while time.monotonic() < end or turns < 2:
            order.reverse()
            turns += 1
            for index in order:
                runner, count = runners[index], counts[index]
                start = time.thread_time()
                for _ in range(count):
                    runner.invoke()
                samples[index].append((time.thread_time() - start) / count)
    return samples


def _calls(runner: Any) -> int:
    """Warm up; how many calls take 10 ms."""
    for _ in range(3):
        runner.invoke()
    start = time.thread_time()
    runner.invoke()
    return max(1, round(0.01 / max(time.thread_time() - start, 1e-6)))


def _opened(path: str, feeds: dict[str, Any], xnnpack: bool = True) -> Any:
    """Open a file and set inputs by name, else by order; permuted and quantized as it asks."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain, usual = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO
    interpreter = Interpreter(
        model_path=path,
        num_threads=1,
        experimental_op_resolver_type=usual if xnnpack else plain,
    )
    details = interpreter.get_input_details()
    matched = _matched(interpreter, details, feeds)
    for detail, value in zip(details, matched, strict=True):
        if sorted(detail["shape"]) != sorted(value.shape):
            interpreter.resize_tensor_input(detail["index"], value.shape)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), matched, strict=True):
        interpreter.set_tensor(
            detail["index"], _stored(arranged(value, tuple(detail["shape"])), detail)
        )
    return interpreter


def _matched(interpreter: Any, details: list[Any], feeds: dict[str, Any]) -> list[Any]:
    names: dict[int, str] = {}
    for signature in interpreter._get_full_signature_list().values():
        names.update({index: name for name, index in signature["inputs"].items()})
    plain = {n.split(":")[0]: n for n in feeds}
    found = []
    rest = list(feeds)
    for detail in details:
        own = names.get(detail["index"], ""), detail["name"]
        wanted = [n for n in own if n in feeds] + [plain[n] for n in own if n in plain]
        name = wanted[0] if wanted else None
        found.append(name)
        if name in rest:
            rest.remove(name)
    return [feeds[n if n is not None else rest.pop(0)] for n in found]


def arranged(value: Any, shape: tuple[int, ...]) -> Any:
    """Move the channels to where the shape has them."""
    import numpy as np

    if value.shape == shape:
        return value
    for source, target in ((1, -1), (-1, 1)):
        if value.ndim > 2 and np.moveaxis(value, source, target).shape == shape:
            return np.ascontiguousarray(np.moveaxis(value, source, target))
    if value.size == int(np.prod(shape)):
        return value.reshape(shape)
    raise ValueError(f"the file wants {shape}, the model has {value.shape}")


def _stored(value: Any, detail: Any) -> Any:
    import numpy as np

    kind = np.dtype(detail["dtype"])
    scale, zero = detail["quantization"]
    if kind.kind in "iu" and value.dtype.kind == "f":
        if not scale:
            raise ValueError(f"input of {kind} without a scale")
        limits = np.iinfo(kind)
        return np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(kind)
    return value.astype(kind)


def _outputs(interpreter: Any) -> dict[str, Any]:
    names: dict[int, str] = {}
    for signature in interpreter._get_full_signature_list().values():
        names.update({index: name for name, index in signature["outputs"].items()})
    made = {}
    for detail in interpreter.get_output_details():
        value = interpreter.get_tensor(detail["index"])
        scale, zero = detail["quantization"]
        if value.dtype.kind in "iu" and scale:
            value = (value.astype("f4") - zero) * scale
        made[names.get(detail["index"], detail["name"])] = value
    return made


if __name__ == "__main__":
    what, arguments = pickle.load(sys.stdin.buffer)
    known: dict[str, Any] = {"inspect": inspect, "run": run, "race": race}
    answer = known[what](*arguments)
    sys.stdout.buffer.write(pickle.dumps(answer))
