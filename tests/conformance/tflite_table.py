"""Which node cases count, and the tables of docs/tflite-ops.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

import onnx

from tests.conformance.node_cases import Case

Results = dict[str, str]

OUTCOMES = ("right", "refused", "wrong", "error", "unrunnable", "crash")
RANDOM = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    }
)
HELD = frozenset(
    {
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64"),
        *("UINT8", "UINT16", "UINT32", "UINT64"),
    }
)
"""Element types of arrays that LiteRT's interpreter takes and hands out."""

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

_DRAWN = ("test_training_dropout",)
_NOT_DRAWN = ("test_training_dropout_zero_ratio",)


def why_not(case: Case) -> str:
    """Why a case does not count; empty where it does."""
    name, model = case[:2]
    nodes = model.graph.node
    if len(nodes) != 1:
        return "several operators (most are the definition of one)"
    node = nodes[0]
    if node.domain:
        return f"an operator of `{node.domain}`"
    kinds = {kind_of(v) for v in interface(model)}
    if "" in kinds:
        return "sequences, optional values"
    if kinds & {"STRING", "COMPLEX64", "COMPLEX128"}:
        return "strings, complex numbers"
    training = any(a.name == "training_mode" and a.i for a in node.attribute)
    drawn = name.startswith(_DRAWN) and not name.startswith(_NOT_DRAWN)
    if node.op_type in RANDOM or training or drawn:
        return "random numbers, training"
    if node.op_type == "ImageDecoder":
        return "ImageDecoder, which reads files"
    if not kinds <= HELD:
        return "inputs or outputs of float8, float4 or integers of 2 and 4 bits"
    return ""


def is_eligible(case: Case) -> bool:
    """Whether a case is one standard operator on tensors that LiteRT takes and hands out."""
    return not why_not(case)


def is_single(case: Case) -> bool:
    """Whether a case is one standard operator on tensors of numbers, of whatever type."""
    return why_not(case) in ("", *_NARROW)


_NARROW = (
    "inputs or outputs of float8, float4 or integers of 2 and 4 bits",
    "ImageDecoder, which reads files",
)


def is_core(case: Case) -> bool:
    """Whether it is an operator of ``MOBILE`` on the usual element types."""
    kinds = {kind_of(v) for v in interface(case[1])}
    return is_eligible(case) and kinds <= CORE_TYPES and case[1].graph.node[0].op_type in MOBILE


def few(cases: Iterable[Case]) -> list[str]:
    """Up to four cases of each operator, those of common element types first."""
    chosen: dict[str, list[str]] = {}
    counted = sorted((c for c in cases if is_single(c)), key=lambda c: (_rarity(c), c[0]))
    for case in counted:
        chosen.setdefault(case[1].graph.node[0].op_type, []).append(case[0])
    return [name for names in chosen.values() for name in names[:4]]


def _rarity(case: Case) -> int:
    common = ("FLOAT", "INT64", "INT32", "BOOL", "INT8", "UINT8", "FLOAT16")
    kinds = [kind_of(v) for v in interface(case[1])]
    return max(common.index(k) if k in common else len(common) for k in kinds)


def interface(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs and outputs."""
    return [*model.graph.input, *model.graph.output]


def kind_of(value: onnx.ValueInfoProto) -> str:
    """The element type's name; empty for what is no tensor."""
    if not value.type.HasField("tensor_type"):
        return ""
    return str(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type))


def groups(cases: list[Case]) -> dict[str, list[str]]:
    """The names of the cases of each row of the first table."""
    return {
        "mobile operators, float32, int32, int64, bool": [c[0] for c in cases if is_core(c)],
        "up to four a single operator, common types first": few(cases),
        "eligible": [c[0] for c in cases if is_eligible(c)],
        "single operators on tensors of any type": [c[0] for c in cases if is_single(c)],
        "all cases": [c[0] for c in cases],
    }


def share(results: Results, names: Iterable[str]) -> float:
    """The part that is right."""
    found = [results[n] for n in names]
    return sum(f == "right" for f in found) / len(found)


def totals(results: Results, cases: list[Case]) -> list[str]:
    """Lines of the first table."""
    lines = [f"| cases | number | {' | '.join(OUTCOMES)} |"]
    lines.append("|---" * (len(OUTCOMES) + 2) + "|")
    for title, names in groups(cases).items():
        counts = Counter(results[n].split(":")[0] for n in names)
        right = f"{counts['right']} ({100 * share(results, names):.1f} %)"
        rest = " | ".join(str(counts[o]) for o in OUTCOMES[1:])
        lines.append(f"| {title} | {len(names)} | {right} | {rest} |")
    return lines


def excluded(results: Results, cases: list[Case]) -> list[str]:
    """Lines of the table of cases that are not eligible."""
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for case in cases:
        reason = why_not(case)
        counts[reason] += bool(reason)
        right[reason] += results[case[0]] == "right"
    rows = [(n, reason) for reason, n in counts.items() if n]
    lines = ["| not eligible | cases | right all the same |", "|---|---|---|"]
    return lines + [f"| {r} | {n} | {right[r]} |" for n, r in sorted(rows, reverse=True)]


def by_operator(results: Results, cases: Iterable[Case], families: Mapping[str, str]) -> list[str]:
    """Lines of the table of operators, family by family."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        op = case[1].graph.node[0].op_type
        found.setdefault((families.get(op, "none"), op), []).append(results[case[0]])
    lines: list[str] = []
    family = ""
    for key in sorted(found):
        if key[0] != family:
            family = key[0]
            rows = [r for k, v in found.items() if k[0] == family for r in v]
            right = sum(r == "right" for r in rows)
            title = f"`ops/{family}.py`" if family != "none" else "No lowering"
            lines += ["", f"### {title}: {right} of {len(rows)}", ""]
            lines += ["| operator | cases | right | refused, and why |", "|---|---|---|---|"]
        right = sum(r == "right" for r in found[key])
        lines.append(f"| {key[1]} | {len(found[key])} | {right} | {_reasons(found[key])} |")
    return lines[1:]


def _reasons(outcomes: list[str]) -> str:
    counts = Counter(o.split(": ")[1] for o in outcomes if o.startswith("refused"))
    return ", ".join(f"{n} {reason}" for reason, n in counts.most_common())


@cache
def _families() -> dict[str, str]:
    from edgeinfer.convert.lower.tflite import ops as _  # noqa: F401
    from edgeinfer.convert.lower.tflite.registry import OPS

    known = {e.op: e.function.__module__.rpartition(".")[2] for e in OPS}
    # Their definition, or the parts that a pass takes them apart into.
    other = {"QLinearConv": "quant", "QLinearMatMul": "quant", "ConvInteger": "quant"}
    return {**defined(), **other, **known}


def defined() -> dict[str, str]:
    """Operators that the standard defines by others."""
    schemas = onnx.defs.get_all_schemas()
    bodies = [
        s for s in schemas if not s.domain and (s.has_function or s.has_context_dependent_function)
    ]
    return {s.name: "definition" for s in bodies}


def document(results: Results, cases: list[Case]) -> str:
    """The generated part of docs/tflite-ops.md."""
    return "\n".join(
        [
            "## Totals",
            "",
            *totals(results, cases),
            "",
            *excluded(results, cases),
            "",
            "## Operator by operator",
            "",
            *by_operator(results, filter(is_single, cases), _families()),
            "",
        ]
    )
