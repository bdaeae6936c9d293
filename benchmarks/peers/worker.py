"""One engine and one model in a process of its own; run by the interpreter of that engine.

    python worker.py CORES   (a JSON request a line on stdin, an answer a line on stdout)

It imports nothing of edgeinfer but where edgeinfer is what is opened, so any environment runs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

Call = Callable[[], list[Any]]
"""Runs the model once; returns its outputs in order."""

TURN_S, BEFORE_S = 12e-3, 3e-3
"""Seconds of a turn that count, in two calls at least, and of those before them that do not."""


def onnxruntime(file: Path, feeds: Mapping[str, Any], threads: int, spinning: bool) -> Call:
    """Open in ONNX Runtime with all its optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def openvino(file: Path, feeds: Mapping[str, Any], threads: int, precision: str = "") -> Call:
    """Open in OpenVINO for latency; without a precision it takes its own."""
    import openvino as ov

    options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision:
        options["INFERENCE_PRECISION_HINT"] = precision
    request = ov.Core().compile_model(str(file), "CPU", options).create_infer_request()
    named = {n: feeds[n] for n in feeds}
    return lambda: list(request.infer(named, share_inputs=True, share_outputs=True).values())


def litert(file: Path, feeds: Mapping[str, Any], threads: int) -> Call:
    """Open in LiteRT with XNNPACK, by the signature's names."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file), num_threads=threads)
    interpreter.allocate_tensors()
    # A runner of the signature would keep references that forbid to set tensors by index.
    signature = next(iter(interpreter._get_full_signature_list().values()))
    places = [(index, feeds[name]) for name, index in signature["inputs"].items()]
    results = list(signature["outputs"].values())

    def call() -> list[Any]:
        for index, value in places:
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in results]

    return call


def mnn(file: Path, feeds: Mapping[str, Any], threads: int) -> Call:
    """Open in MNN with all digits; its converter keeps the names."""
    import MNN.expr  # type: ignore[import-not-found]
    import MNN.nn  # type: ignore[import-not-found]
    import numpy as np

    runtime = MNN.nn.create_runtime_manager(
        ({"numThread": threads, "precision": "high", "backend": "CPU"},)
    )
    names = json.loads(file.with_suffix(".names.json").read_text(encoding="utf-8"))
    net = MNN.nn.load_module_from_file(
        str(file), names["inputs"], names["outputs"], runtime_manager=runtime
    )
    given = []
    for name in names["inputs"]:
        value = feeds[name]
        if value.dtype == np.int64:
            value = value.astype(np.int32)
        given.append(MNN.expr.const(value, list(value.shape), MNN.expr.NCHW, _mnn_type(value)))
    return lambda: [np.asarray(_planar(value).read()) for value in net.forward(given)]


def _mnn_type(value: Any) -> Any:
    import MNN.expr

    kinds = {"float32": MNN.expr.float, "int32": MNN.expr.int, "uint8": MNN.expr.uint8}
    return kinds[str(value.dtype)]


def _planar(value: Any) -> Any:
    import MNN.expr

    is_packed = value.data_format == MNN.expr.NC4HW4
    return MNN.expr.convert(value, MNN.expr.NCHW) if is_packed else value


def ncnn(file: Path, feeds: Mapping[str, Any], threads: int) -> Call:
    """Open in ncnn; inputs and outputs are numbered, the batch of one is left out inside."""
    import ncnn as engine  # type: ignore[import-not-found]
    import numpy as np

    net = engine.Net()
    net.opt.num_threads = threads
    if net.load_param(str(file)) or net.load_model(str(file.with_suffix(".bin"))):
        raise RuntimeError("ncnn cannot load what pnnx wrote")
    outputs = sum(1 for name in net.output_names() if name.startswith("out"))
    given = [engine.Mat(value, batch_index=0).clone() for value in feeds.values()]

    def call() -> list[Any]:
        with net.create_extractor() as run:
            for index, value in enumerate(given):
                run.input(f"in{index}", value)
            made = [run.extract(f"out{index}")[1] for index in range(outputs)]
            return [np.array(value.numpy(batch_index=0)) for value in made]

    return call


def torch(file: Path, feeds: Mapping[str, Any], threads: int, compiled: bool = False) -> Call:
    """Open an exported program in PyTorch, eager or compiled with frozen weights."""
    import torch as library

    library.set_num_threads(threads)
    net = library.export.load(str(file)).module()
    given = [library.from_numpy(value) for value in feeds.values()]
    if compiled:
        import torch._inductor.config as inductor

        inductor.freezing = True
        net = library.compile(net)

    def call() -> list[Any]:
        with library.inference_mode():
            made = net(*given)
        values = made if isinstance(made, (tuple, list)) else (made,)
        return [value.numpy() for value in values]

    if compiled:
        # Compiling under inference_mode stops freezing; the first call is made without it.
        with library.no_grad():
            net(*given)
    return call


def edgeinfer(file: Path, feeds: Mapping[str, Any], threads: int, **options: Any) -> Call:
    """Load a bundle, with its own choice of an engine."""
    import edgeinfer as library

    session = library.load(file, threads=threads, **options)
    _about["engine"] = lambda: session.report().backend
    return lambda: list(session.run(feeds).values())


_about: dict[str, Callable[[], str]] = {}
"""What an engine says of itself, asked when its load has been timed."""

OPENS: dict[str, Callable[..., Call]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "litert": litert,
    "mnn": mnn,
    "ncnn": ncnn,
    "torch": torch,
    "edgeinfer": edgeinfer,
}


def converted_mnn(source: Path, target: Path) -> None:
    """Convert by MNN's own command."""
    if importlib.util.find_spec("MNN") is None:
        raise ModuleNotFoundError("No module named 'MNN'")
    tool = "from MNN.tools.mnnconvert import main; main()"
    arguments = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target)]
    command = [sys.executable, "-c", tool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if not target.exists():
        raise RuntimeError((done.stdout + done.stderr).strip()[-300:])


def converted_ncnn(source: Path, target: Path) -> None:
    """Convert by pnnx, with all digits."""
    found = importlib.util.find_spec("pnnx")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'pnnx'")
    program = Path(found.origin).with_name("pnnx")
    program.chmod(0o755)
    folder = target.parent
    names = {
        f"{kind}{end}": str(folder / f"pnnx.{kind}.{end}")
        for kind in ("pnnx", "ncnn")
        for end in ("param", "bin")
    }
    names |= {"ncnnparam": str(target), "ncnnbin": str(target.with_suffix(".bin"))}
    names |= {"pnnxpy": str(folder / "pnnx.py"), "ncnnpy": str(folder / "ncnn.py")}
    names |= {"pnnxonnx": str(folder / "pnnx.onnx"), "fp16": "0"}
    done = subprocess.run(
        [str(program), str(source), *(f"{k}={v}" for k, v in names.items())],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=120,
    )
    if not target.exists():
        raise RuntimeError(f"pnnx exited with {done.returncode}: {done.stderr.strip()[-200:]}")


CONVERTS = {"mnn": converted_mnn, "ncnn": converted_ncnn}


class Worker:
    """The engine that was opened, and what is asked of it."""

    def __init__(self) -> None:
        self._call: Call | None = None

    def convert(self, kind: str, source: str, target: str) -> dict[str, Any]:
        """Write what an engine reads, of an ONNX file."""
        start = time.process_time()
        CONVERTS[kind](Path(source), Path(target))
        return {"cpu_s": time.process_time() - start}

    def open(
        self, opens: str, file: str, feeds: str, threads: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Import, open and run once; all of it is the time of loading."""
        import numpy as np

        with np.load(feeds) as stored:
            given = {name: stored[name] for name in stored.files}
        wall, cpu = time.perf_counter(), time.process_time()
        self._call = OPENS[opens](Path(file), given, threads, **options)
        self._call()
        figures = {
            "load_s": time.perf_counter() - wall,
            "load_cpu_s": time.process_time() - cpu,
            "memory_mb": _resident_mb(),
        }
        return {**figures, **{name: said() for name, said in _about.items()}}

    def outputs(self, target: str) -> dict[str, Any]:
        """Run, and store the outputs by their places."""
        import numpy as np

        np.savez(target, *(np.asarray(value) for value in self._running()()))
        return {}

    def turn(self) -> dict[str, Any]:
        """Run for a turn; the median of a call, in milliseconds."""
        call, times = self._running(), list[float]()
        end = time.perf_counter() + BEFORE_S
        while time.perf_counter() < end:
            call()
        end = time.perf_counter() + TURN_S
        while time.perf_counter() < end or len(times) < 2:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return {"ms": 1e3 * median(times)}

    def versions(self, packages: list[str]) -> dict[str, Any]:
        """Return the versions of packages."""
        return {name: importlib.metadata.version(name) for name in packages}

    def _running(self) -> Call:
        if self._call is None:
            raise RuntimeError("nothing was opened")
        return self._call


def _resident_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    lines = status.read_text(encoding="utf-8").splitlines()
    return int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    """Answer requests until the input ends; engines that print do so on stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    worker = Worker()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(worker, asked.pop("what"))(**asked)
        except Exception as e:
            missing = isinstance(e, ModuleNotFoundError | importlib.metadata.PackageNotFoundError)
            last = (str(e).strip().splitlines() or [type(e).__name__])[-1]
            answer = {"failed": f"{type(e).__name__}: {last[-200:]}", "missing": missing}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
