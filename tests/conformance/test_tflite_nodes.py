"""Every ONNX node case through passes, TFLite lowering and LiteRT: right value or listed refusal.

``python -m tests.conformance.test_tflite_nodes`` prints the table of docs/tflite.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from tests.conformance.node_worker import Case, suite

WORKER = Path(__file__).parent / "tflite_worker.py"
ROOT = Path(__file__).parents[2]
SHARDS = 4
SAMPLE = 10
OUTCOMES = ("right", "refused", "wrong", "error", "unrunnable", "aborted")

Results = dict[str, str]

RANDOM = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    }
)
CORE_TYPES = frozenset({"FLOAT", "INT32", "INT64", "BOOL"})
_NAMES = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
CastLike Ceil Celu Clip Concat ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace
Div Dropout Elu Equal Erf Exp Expand Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm
GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish
Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mish Mod Mul Neg Not
OneHot Or PRelu Pad Pow RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign
SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
MOBILE = frozenset(_NAMES.split())
"""Operators that models on phones are made of."""


_CLAMPED = (
    "without XNNPACK, LiteRT 2.3.0 adds and multiplies to the largest finite number where the "
    "result is infinite"
)
EXCEPTIONS = {
    "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded": _CLAMPED,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal_expanded": _CLAMPED,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal_expanded": _CLAMPED,
    "test_attention_causal_boolmask_nan_robustness_expanded": _CLAMPED,
}
"""Cases that are right with XNNPACK, which engines use unless told otherwise, and wrong without."""


def run_cases(first: int, step: int) -> Results:
    """Run a share of the cases in child processes; an abort costs one case."""
    results: Results = {}
    done = 0
    while True:
        command = [sys.executable, str(WORKER), *map(str, (first, step, done))]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        child = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        current = ""
        for line in _json_lines(child.stdout):
            if "start" in line:
                current = line["start"]
                done += 1
            else:
                results[line["name"]] = line["ours"]
                current = ""
        if child.returncode == 0:
            return results
        if not current:
            raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
        results[current] = f"aborted: exit {child.returncode}"


def _json_lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def faults(results: Results) -> list[str]:
    """Return a line for every case that is neither right nor refused."""
    return [
        f"{name}: {found}"
        for name, found in sorted(results.items())
        if found.split(":")[0] not in ("right", "refused") and not _is_excepted(name, found)
    ]


def _is_excepted(name: str, found: str) -> bool:
    return name in EXCEPTIONS and found.startswith("wrong: xnnpack=False")


def is_eligible(case: Case) -> bool:
    """Whether a case is one standard operator on tensors of numbers, with a value to expect."""
    model = case[1]
    nodes = model.graph.node
    if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type in RANDOM:
        return False
    training = any(a.name == "training_mode" and a.i for a in nodes[0].attribute)
    return not training and all(_kind(v) not in ("", "STRING") for v in _interface(model))


def is_core(case: Case) -> bool:
    """Whether it is an operator of ``MOBILE`` on the usual element types."""
    kinds = {_kind(v) for v in _interface(case[1])}
    return is_eligible(case) and kinds <= CORE_TYPES and case[1].graph.node[0].op_type in MOBILE


def _few(cases: dict[str, Case]) -> list[str]:
    chosen: dict[str, list[str]] = {}
    for name in sorted(
        (n for n in cases if is_eligible(cases[n])), key=lambda n: _rarity(cases[n])
    ):
        chosen.setdefault(cases[name][1].graph.node[0].op_type, []).append(name)
    return [name for names in chosen.values() for name in names[:4]]


def _rarity(case: Case) -> int:
    common = ("FLOAT", "INT64", "INT32", "BOOL", "INT8", "UINT8", "FLOAT16")
    kinds = [_kind(v) for v in _interface(case[1])]
    return max(common.index(k) if k in common else len(common) for k in kinds)


def _interface(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*model.graph.input, *model.graph.output]


def _kind(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return ""
    name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    return "" if name.startswith("COMPLEX") else name


def table(results: Results) -> str:
    """Return the Markdown table of the outcomes, and why cases are refused."""
    cases = {c[0]: c for c in suite()}
    groups = {
        "mobile operators, float32, int32, int64, bool": [n for n in cases if is_core(cases[n])],
        "up to four a single operator, common types first": _few(cases),
        "single operators on tensors": [n for n in cases if is_eligible(cases[n])],
        "all cases": list(cases),
    }
    lines = [f"| cases | number | right | {' | '.join(OUTCOMES[1:])} |"]
    lines.append("|---" * (len(OUTCOMES) + 2) + "|")
    for title, names in groups.items():
        counts = Counter(results[n].split(":")[0] for n in names if n in results)
        total = sum(counts.values())
        share = f"{counts['right']} ({100 * counts['right'] / max(total, 1):.1f} %)"
        rest = " | ".join(str(counts[o]) for o in OUTCOMES[1:])
        lines.append(f"| {title} | {total} | {share} | {rest} |")
    refused = Counter(
        found.split(": ")[1]
        for name, found in results.items()
        if found.startswith("refused") and is_eligible(cases[name])
    )
    lines += ["", "| why a single operator is refused | cases |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in refused.most_common()]
    return "\n".join(lines)


def whole(threads: int = 2) -> Results:
    """Run everything."""
    with ThreadPoolExecutor(threads) as pool:
        shards = pool.map(lambda first: run_cases(first, SHARDS), range(SHARDS))
        return {name: found for shard in shards for name, found in shard.items()}


def _needs_litert() -> None:
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("ai_edge_litert is not installed")


def _share(results: Results, chosen: set[str]) -> float:
    found = [results[n] for n in chosen if n in results]
    return sum(f == "right" for f in found) / len(found)


def test_sample_of_the_node_suite() -> None:
    _needs_litert()
    results = run_cases(0, SAMPLE)
    assert len(results) > 150
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_node_suite() -> None:
    _needs_litert()
    results = whole()
    assert len(results) > 1600
    assert faults(results) == []
    cases = suite()
    assert _share(results, {c[0] for c in cases if is_core(c)}) >= 0.95
    assert _share(results, set(_few({c[0]: c for c in cases}))) >= 0.80


if __name__ == "__main__":
    found = whole()
    print(table(found))  # noqa: T201
    print("\n".join(faults(found)), file=sys.stderr)  # noqa: T201
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1, sort_keys=True), "utf-8")
