"""Run a ``.tflite`` file of floats in MediaPipe's own graph, with MediaPipe's own operators.

python run_mediapipe.py MODEL INPUTS.npz RESULTS.npz OUTPUTS

Needs mediapipe 0.10.14 and nothing of this project. No delegate: TFLite's kernels and MediaPipe's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

_EXTENSIONS = ("core.split_vector", "tensor.inference", "tensor.tensor_converter")
"""Calculators whose options the text of a graph holds."""


def _node(calculator: str, ends: Sequence[str], options: str = "") -> str:
    lines = " ".join(ends)
    return f'node {{ calculator: "{calculator}" {lines} {options} }}\n'


def _options(kind: str, text: str) -> str:
    return f"options {{ [mediapipe.{kind}.ext] {{ {text} }} }}"


def _graph(path: str, inputs: int, outputs: int) -> str:
    text = "".join(f'input_stream: "m{i}"\n' for i in range(inputs))
    text += "".join(f'output_stream: "f{i}"\n' for i in range(outputs))
    for i in range(inputs):
        ends = [f'input_stream: "MATRIX:m{i}"', f'output_stream: "TENSORS:t{i}"']
        plain = "row_major_matrix: true zero_center: false"
        text += _node(
            "TensorConverterCalculator", ends, _options("TensorConverterCalculatorOptions", plain)
        )
    given = [f'input_stream: "t{i}"' for i in range(inputs)]
    text += _node("ConcatenateTensorVectorCalculator", [*given, 'output_stream: "given"'])
    kernels = 'side_packet: "OP_RESOLVER:kernels"'
    text += _node("TfLiteCustomOpResolverCalculator", [f"output_{kernels}"])
    text += _node(
        "InferenceCalculator",
        [f"input_{kernels}", 'input_stream: "TENSORS:given"', 'output_stream: "TENSORS:made"'],
        _options("InferenceCalculatorOptions", f'model_path: "{path}" delegate {{ tflite {{}} }}'),
    )
    ends = [f'output_stream: "o{i}"' for i in range(outputs)]
    ranges = " ".join(f"ranges {{ begin: {i} end: {i + 1} }}" for i in range(outputs))
    text += _node(
        "SplitTensorVectorCalculator",
        ['input_stream: "made"', *ends],
        _options("SplitVectorCalculatorOptions", ranges),
    )
    for i in range(outputs):
        text += _node(
            "TensorsToFloatsCalculator",
            [f'input_stream: "TENSORS:o{i}"', f'output_stream: "FLOATS:f{i}"'],
        )
    return text


def run(path: str, feeds: Sequence[Any], outputs: int) -> list[Any]:
    """Return the outputs, each as a vector."""
    for name in _EXTENSIONS:
        import_module(f"mediapipe.calculators.{name}_calculator_pb2")
    creator = import_module("mediapipe.python.packet_creator")
    getter = import_module("mediapipe.python.packet_getter")
    graph = import_module("mediapipe").CalculatorGraph(
        graph_config=_graph(path, len(feeds), outputs)
    )
    found: dict[str, Any] = {}

    def keep(name: str, packet: Any) -> None:
        found[name] = np.array(getter.get_float_list(packet), np.float32)

    for i in range(outputs):
        graph.observe_output_stream(f"f{i}", keep)
    graph.start_run()
    for i, array in enumerate(feeds):
        # A tensor is copied as it lies in memory, whatever the shape of the matrix it came in.
        matrix = np.ascontiguousarray(array, np.float32).reshape(-1, array.shape[-1])
        graph.add_packet_to_input_stream(f"m{i}", creator.create_matrix(matrix).at(1))
    graph.close_all_packet_sources()
    graph.wait_until_done()
    return [found[f"f{i}"] for i in range(outputs)]


def main(path: str, given: str, results: str, outputs: str) -> None:
    """Read the inputs, run, write the outputs."""
    with np.load(given) as read:
        feeds = [read[f"arr_{i}"] for i in range(len(read.files))]
    np.savez(results, *run(path, feeds, int(outputs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
