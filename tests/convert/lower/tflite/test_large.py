"""A model beyond what a flatbuffer holds: written as a stream, and right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

WIDTH, LAYERS = 8192, 9
WEIGHTS = 4 * LAYERS * WIDTH**2

# Peaks are of memory that belongs to nobody else: pages of mapped files are the system's to drop.
LOWER = """
import json, sys, threading, time
from pathlib import Path
from edgeinfer.convert import sources
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.passes import normalise
from edgeinfer.profiles import load

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(l.split()[1]) for l in lines if l.startswith(("RssAnon", "RssShmem")))

peak = own()
def watch():
    global peak
    while True:
        peak = max(peak, own())
        time.sleep(0.01)

threading.Thread(target=watch, daemon=True).start()
model = normalise(sources.read(sys.argv[1]).model).model
start = time.perf_counter()
TfliteTarget().lower(model, load("rpi5"), LowerOptions(), Path(sys.argv[2]))
print(json.dumps({"peak": peak, "seconds": time.perf_counter() - start}))
"""


def write_source(path: Path) -> None:
    """A chain of MatMul and Relu; each weight is another one, with its data in a file next to."""
    weights, nodes, value = [], [], "x"
    with path.with_suffix(".data").open("wb") as data:
        for layer in range(LAYERS):
            rng = np.random.default_rng(layer)
            weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT)
            weight.dims.extend([WIDTH, WIDTH])
            weight.data_location = TensorProto.EXTERNAL
            where = {"location": path.with_suffix(".data").name, "offset": str(data.tell())}
            for key, text in {**where, "length": str(4 * WIDTH**2)}.items():
                entry = weight.external_data.add()
                entry.key, entry.value = key, text
            weights.append(weight)
            for _ in range(8):
                block = rng.standard_normal((WIDTH // 8, WIDTH), np.float32)
                block *= np.float32(np.sqrt(2 / WIDTH))
                data.write(block.data)
            nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
            value = f"r{layer}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, WIDTH]) for name in ("x", value)
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    source = tmp_path / "large.onnx"
    write_source(source)
    command = [sys.executable, "-c", LOWER, str(source), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    written = tmp_path / "model.tflite"
    assert WEIGHTS > 2.1 * 2**30
    assert WEIGHTS <= written.stat().st_size < WEIGHTS + 2**20
    # Two weights at a time: one is transposed for FULLY_CONNECTED while it is written.
    assert found["peak"] < 0.4 * WEIGHTS, f"{found['peak'] / WEIGHTS:.2f} x the weights"

    x = np.random.default_rng(99).standard_normal((2, WIDTH), np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    (want,) = plain.run(None, {"x": x})
    del plain
    engine = Interpreter(model_path=str(written), num_threads=1)
    engine.allocate_tensors()
    engine.set_tensor(engine.get_input_details()[0]["index"], x)
    engine.invoke()
    got = engine.get_tensor(engine.get_output_details()[0]["index"])
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
