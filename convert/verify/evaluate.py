"""An evaluation of a graph op by op in NumPy, in float64 or in the model's own types.

Weights are widened where they are used and every value is dropped after its last use, so the
memory is that of the widest spot of the graph, not of all activations at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from edgeinfer.convert.families import RECURRENT
from edgeinfer.convert.verify import contrib
from edgeinfer.convert.verify.beyond_half import beyond_half
from edgeinfer.convert.verify.operators import (
    MICROSOFT,
    OPERATORS,
    TABULAR,
    Operator,
    Unhandled,
)
from edgeinfer.convert.verify.operators.recurrent import NOISE
from edgeinfer.convert.verify.submodel import used_values
from edgeinfer.convert.verify.sums import ADDING, PRODUCTS, moved, of_states, rounded_again
from edgeinfer.types import Array, Feeds

Values = dict[ir.Value, Any]

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MAIN = ("", "ai.onnx")


def in_tf32(value: Any) -> Any:
    """Round float32 to the nearest number with 11 bits; anything else stays as it is."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    bits = np.ascontiguousarray(value).view(np.uint32)
    half = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    kept = ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(value), kept, value).reshape(value.shape)


class CannotEvaluate(Exception):  # noqa: N818 - an oracle that abstains, not an error of the model
    """The evaluator cannot follow the model, and why; or it would take too long."""

    def __init__(self, why: str, *, broke: bool = False) -> None:
        """Say whether an operator of ours failed, rather than is lacking."""
        super().__init__(why)
        self.broke = broke


class TookTooLong(CannotEvaluate):
    """The time that an evaluation had is up; another might end."""


class Evaluator:
    """Evaluates one model, on any number of inputs."""

    def __init__(
        self,
        model: ir.Model,
        *,
        wide: bool,
        halved: str = "",
        own: bool = True,
        rounded: bool = False,
        tf32: bool = False,
        summed: bool = False,
    ) -> None:
        """Prepare.

        Args:
            model: it is not modified.
            wide: compute every float in float64; otherwise in the types of the model.
            halved: round every float32, weights and inputs too, to this type, ``float16`` or
                ``bfloat16``.
            own: use our operators; otherwise only those that ONNX itself defines.
            rounded: what is computed in float64 is rounded to float32 after each operator.
            tf32: operands of products, where they are float32, keep 11 bits, as in TF32.
            summed: what products add up is off by as much as a sum of float32 is.
        """
        model = model.clone()
        if model.functions:
            model = InlinePass()(model).model
        self._rounded = frozenset((*_NARROW, *([ir.DataType.FLOAT] if rounded else [])))
        self._round = wide and (rounded or _has_narrow(model))
        if self._round:
            model = ShapeInferencePass(data_prop=False)(model).model
        self.graph = model.graph
        graphs = model.graphs() if self._round else ()
        self._single = {node for graph in graphs for node in beyond_half(graph)}
        self._opsets = {("" if d in _MAIN else d): v for d, v in model.opset_imports.items()}
        self._wide, self._own = wide, own
        self._halved = np.dtype(halved) if halved else None
        self._tf32, self._summed = tf32, summed
        self._kernels: dict[ir.Node, Callable[..., tuple[Any, ...]]] = {}
        self._until = float("inf")

    def run(
        self, feeds: Feeds, *, seconds: float = float("inf"), wanted: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Evaluate.

        Args:
            feeds: by input name.
            seconds: give up after so much CPU time of this thread.
            wanted: names of values instead of the outputs.

        Raises:
            CannotEvaluate: an operator is unknown or failed, or time is up.
        """
        self._until = time.thread_time() + seconds
        values: Values = {}
        for value in self.graph.inputs:
            name = str(value.name)
            if name in feeds:
                values[value] = self._widen(feeds[name])
        if wanted is None:
            keep = list(self.graph.outputs)
        else:
            names = set(wanted)
            keep = [v for v in _all_values(self.graph) if v.name in names]
        with np.errstate(all="ignore"):
            self._run_graph(self.graph, values, keep)
            found = {str(v.name): self._get(values, v) for v in keep}
        if nothing := [name for name, value in found.items() if value is None]:
            raise CannotEvaluate(f"nothing is given for {nothing[0]!r} by its operator")
        return found

    def run_node(self, node_index: int, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Evaluate one node of the main graph on given inputs, by value name."""
        node = self.graph[node_index]
        values: Values = {}
        for value in used_values(node):
            name = str(value.name)
            if name in inputs:
                values[value] = self._widen(inputs[name])
        with np.errstate(all="ignore"):
            self._run_node(node, values)
        return {str(v.name): values[v] for v in node.outputs if v in values and v.name}

    def _run_graph(self, graph: ir.Graph, values: Values, keep: Sequence[ir.Value]) -> None:
        last: dict[ir.Value, ir.Node] = {}
        for node in graph:
            for value in used_values(node):
                last[value] = node
        kept = set(keep)
        ends: dict[ir.Node, list[ir.Value]] = {}
        for value, node in last.items():
            if value not in kept and value.graph is graph:
                ends.setdefault(node, []).append(value)
        for node in graph:
            if time.thread_time() > self._until:
                raise TookTooLong(f"took too long (stopped before {node.op_type} {node.name!r})")
            self._run_node(node, values)
            for value in ends.get(node, ()):
                values.pop(value, None)

    def _run_node(self, node: ir.Node, values: Values) -> None:
        try:
            results = self._compute(node, values)
        except CannotEvaluate:
            raise
        except Exception as e:
            raise _failed(node, e) from e
        for value, result in zip(node.outputs, results, strict=False):
            result = self._widen(result)
            if self._summed:
                result = rounded_again(node, value.dtype, result)
            if node not in self._single:
                values[value] = self._to(value.dtype, result)
            else:
                values[value] = _in_range(self._to(ir.DataType.FLOAT, result))

    def _compute(self, node: ir.Node, values: Values) -> Sequence[Any]:
        if node.domain in _MAIN and node.op_type in ("If", "Loop", "Scan"):
            return self._control(node, values)
        if node.domain in _MAIN and node.op_type == "Constant" and "value" in node.attributes:
            return (node.attributes["value"].as_tensor().numpy(),)
        inputs = [None if v is None else self._operand(values, v, node) for v in node.inputs]
        if self._tf32 and node.domain in _MAIN and (count := PRODUCTS.get(node.op_type)):
            inputs[:count] = [in_tf32(x) for x in inputs[:count]]
        kernel = self._kernels.get(node)
        if kernel is None:
            kernel = self._kernels[node] = self._load(node)
        results = kernel(*inputs)
        if self._summed and node.domain in _MAIN and node.op_type in ADDING:
            results = (moved(node, inputs, results[0], kernel), *results[1:])
        return results

    def _operand(self, values: Values, value: ir.Value, node: ir.Node) -> Any:
        inside = node in self._single and value.graph is node.graph
        return values[value] if inside and value in values else self._get(values, value)

    def _to(self, kind: ir.DataType | None, result: Any) -> Any:
        """Round to a type, where results are rounded."""
        if not self._round or kind not in self._rounded or not isinstance(result, np.ndarray):
            return result
        return result.astype(kind.numpy()).astype(np.float64)

    def _get(self, values: Values, value: ir.Value) -> Any:
        if value in values:
            # What a formula of large numbers makes is rounded where others read it.
            is_wide = value.producer() in self._single
            return self._to(value.dtype, values[value]) if is_wide else values[value]
        if value.const_value is None:
            raise CannotEvaluate(f"value {value.name!r} has no source")
        return self._weight(value.const_value)

    def _weight(self, tensor: ir.TensorProtocol) -> Any:
        array = tensor.numpy()
        wide = self._widen(array)
        if isinstance(tensor, ir.ExternalTensor) and not np.may_share_memory(array, wide):
            # A copy is all that is needed; pages of the file would stay in memory next to it.
            del array
            # Refused while somebody else looks at the pages; then they stay, which is no harm.
            with contextlib.suppress(BufferError):
                tensor.release()
        return wide

    def _widen(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._widen(v) for v in value]
        if isinstance(value, np.ndarray | np.generic):
            if self._halved is not None and value.dtype == np.float32:
                with np.errstate(over="ignore"):
                    return np.asarray(value).astype(self._halved).astype(np.float32)
            narrow = value.dtype.name in ("float16", "float32", "bfloat16")
            return np.asarray(value, np.float64) if self._wide and narrow else np.asarray(value)
        return value

    def _load(self, node: ir.Node) -> Callable[..., tuple[Any, ...]]:
        domain = "" if node.domain in _MAIN else node.domain
        version = node.version or self._opsets.get(domain, 1)
        reference: list[Callable[..., tuple[Any, ...]]] = []

        def fall_back(*inputs: Any) -> tuple[Any, ...]:
            if not reference:
                reference.append(_reference(node, domain, version, self._opsets))
            return reference[0](*inputs)

        if domain == contrib.DOMAIN and (known := contrib.KNOWN.get(node.op_type)):
            standard, fit = self._load(known.standard(node, self._opsets.get("", 1))), known.fit
            return lambda *inputs: standard(*fit(inputs))
        known_here = _BY_DOMAIN.get(domain, {})
        own = known_here.get(node.op_type) if self._own else None
        if own is None:
            return fall_back
        attrs: dict[str, Any] = {k: a.value for k, a in node.attributes.items()}
        attrs["#outputs"] = len(node.outputs)
        if self._summed and node.op_type in RECURRENT:
            attrs[NOISE] = of_states(node)

        def run(*inputs: Any) -> tuple[Any, ...]:
            try:
                return _in_single(own, attrs, version, inputs)
            except Unhandled:
                return fall_back(*inputs)
            except Exception as e:
                raise _failed(node, e, broke=True) from e

        return run

    def _control(self, node: ir.Node, values: Values) -> list[Any]:
        if node.op_type == "If":
            condition = self._get(values, _must(node.inputs[0]))
            taken = "then_branch" if bool(np.asarray(condition).reshape(-1)[0]) else "else_branch"
            return self._run_body(node.attributes[taken].as_graph(), values, [])
        if node.op_type == "Loop":
            return self._loop(node, values)
        if self._opsets.get("", 1) < 9:
            raise CannotEvaluate(f"{_title(node)}: Scan of opset 8 has a batch axis")
        return self._scan(node, values)

    def _run_body(self, body: ir.Graph, values: Values, inputs: Sequence[Any]) -> list[Any]:
        inner = dict(values)
        inner.update(zip(body.inputs, inputs, strict=False))
        self._run_graph(body, inner, list(body.outputs))
        return [self._get(inner, v) for v in body.outputs]

    def _loop(self, node: ir.Node, values: Values) -> list[Any]:
        body = node.attributes["body"].as_graph()
        given = [None if v is None else self._get(values, v) for v in node.inputs]
        limit = None if given[0] is None else int(np.asarray(given[0]).reshape(-1)[0])
        going = True if given[1] is None else bool(np.asarray(given[1]).reshape(-1)[0])
        state = given[2:]
        stacks: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
        turn = 0
        while going and (limit is None or turn < limit):
            if time.thread_time() > self._until:
                raise TookTooLong(f"took too long (stopped in turn {turn} of {_title(node)})")
            inputs = [np.asarray(turn, np.int64), np.asarray(True), *state]
            going_now, *rest = self._run_body(body, values, inputs)
            going = bool(np.asarray(going_now).reshape(-1)[0])
            state = rest[: len(state)]
            for stack, item in zip(stacks, rest[len(state) :], strict=True):
                stack.append(item)
            turn += 1
        if any(not stack for stack in stacks):
            raise CannotEvaluate(
                f"{_title(node)}: no turn was taken, so a scan output has no shape"
            )
        return [*state, *(np.stack(stack) for stack in stacks)]

    def _scan(self, node: ir.Node, values: Values) -> list[Any]:
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        given = [self._get(values, _must(v)) for v in node.inputs]
        state, scanned = given[: len(given) - count], given[len(given) - count :]
        outs = len(body.outputs) - len(state)

        def option(name: str, length: int) -> list[int]:
            attr = node.attributes.get(name)
            return list(attr.as_ints()) if attr is not None else [0] * length

        axes, back = option("scan_input_axes", count), option("scan_input_directions", count)
        out_axes = option("scan_output_axes", outs)
        out_back = option("scan_output_directions", outs)
        rows = [np.moveaxis(x, a, 0) for x, a in zip(scanned, axes, strict=True)]
        rows = [r[::-1] if b else r for r, b in zip(rows, back, strict=True)]
        stacks: list[list[Any]] = [[] for _ in range(outs)]
        for turn in range(len(rows[0])):
            results = self._run_body(body, values, [*state, *(r[turn] for r in rows)])
            state = results[: len(state)]
            for stack, item in zip(stacks, results[len(state) :], strict=True):
                stack.append(item)
        stacked = []
        for stack, axis, reverse in zip(stacks, out_axes, out_back, strict=True):
            array = np.stack(stack[::-1] if reverse else stack)
            stacked.append(np.moveaxis(array, 0, axis % array.ndim))
        return [*state, *stacked]


def _in_range(result: Any) -> Any:
    """Give float64 the range of single precision, in which the formula is to be computed."""
    if not isinstance(result, np.ndarray) or result.dtype != np.float64:
        return result
    single = result.astype(np.float32)
    return np.where(np.isfinite(single) & ((single != 0) | (result == 0)), result, single)


def _in_single(
    operator: Operator, attrs: Mapping[str, Any], version: int, inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Run an operator; halves are summed in single precision, as every engine does."""
    halves = {x.dtype for x in inputs if x is not None and x.dtype.name in _HALVES}
    if not halves or "to" in attrs:
        return operator(attrs, version, list(inputs))
    (half,) = halves
    wide = [x.astype(np.float32) if x is not None and x.dtype == half else x for x in inputs]
    return tuple(y.astype(half) for y in operator(attrs, version, wide))


_HALVES = ("float16", "bfloat16")

_BY_DOMAIN = {"": OPERATORS, "ai.onnx.ml": TABULAR, contrib.DOMAIN: MICROSOFT}

_NEWER = {"Scatter": "ScatterElements"}
"""Operators that only changed their name."""

_LATER = {"Scatter": 11, "QuantizeLinear": 19, "DequantizeLinear": 19}
"""The reference starts at these versions, which mean the same for what older nodes can say."""

_RENAMED = {"GridSample": {"bilinear": "linear", "bicubic": "cubic"}}
"""Attribute values that a later version renamed and the reference knows by the new name only."""


def _reference(
    node: ir.Node, domain: str, version: int, opsets: Mapping[str, int]
) -> Callable[..., tuple[Any, ...]]:
    """Return ONNX's own implementation of one node."""
    proto = ir.serde.serialize_node(node)
    proto.domain = domain
    proto.op_type = _NEWER.get(node.op_type, node.op_type)
    del proto.input[:]
    proto.input.extend("" if v is None else f"x{i}" for i, v in enumerate(node.inputs))
    for i, name in enumerate(proto.output):
        proto.output[i] = name and f"y{i}"
    for attr in proto.attribute:
        new = _RENAMED.get(node.op_type, {}).get(attr.s.decode("utf-8", "replace"))
        if new:
            attr.s = new.encode()
    versions = {**opsets, domain: max(version, _LATER.get(node.op_type, 1))}
    imports = [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]
    evaluators: dict[tuple[tuple[str, int], ...], Any] = {}

    def run(*inputs: Any) -> tuple[Any, ...]:
        feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
        key = tuple((a.dtype.name, a.ndim) for a in feeds.values() if isinstance(a, np.ndarray))
        if key not in evaluators:
            evaluators[key] = _one_node(proto, feeds, imports)
        results = iter(evaluators[key].run(None, feeds))
        return tuple(next(results) if name else None for name in proto.output)

    return run


def _one_node(proto: onnx.NodeProto, feeds: Feeds, imports: list[onnx.OperatorSetIdProto]) -> Any:
    """Return a reference evaluator of a model with this node alone, its types taken from feeds."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import RuntimeContextError

    inputs = []
    for name, value in feeds.items():
        info = onnx.ValueInfoProto(name=name)
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            info = onnx.helper.make_tensor_value_info(name, kind, value.shape)
        inputs.append(info)
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "once", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=imports)
    try:
        try:
            return ReferenceEvaluator(model)
        except RuntimeContextError:
            # Some operators are there only as a function of their input types. Not done for all:
            # inference (onnx 1.23) crashes on inputs without a type, such as sequences.
            return ReferenceEvaluator(onnx.shape_inference.infer_shapes(model))
    except Exception as e:
        domain = f"{proto.domain}::" if proto.domain else ""
        raise CannotEvaluate(f"the ONNX reference has no {domain}{proto.op_type}") from e


def _all_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs)]


def _has_narrow(model: ir.Model) -> bool:
    graph = model.graph
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    casts = (n.attributes.get("to") for n in graph.all_nodes() if n.op_type == "Cast")
    return any(v.dtype in _NARROW for v in values) or any(
        a is not None and a.as_int() in _NARROW for a in casts
    )


def _failed(node: ir.Node, error: Exception, *, broke: bool = False) -> CannotEvaluate:
    text = str(error).strip().splitlines()
    why = f"{type(error).__name__}: {text[0][:200] if text else ''}"
    return CannotEvaluate(f"{_title(node)} failed ({why})", broke=broke)


def _title(node: ir.Node) -> str:
    domain = "" if node.domain in _MAIN else f"{node.domain}::"
    return f"{domain}{node.op_type} {node.name!r}"


def _must(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise CannotEvaluate("an input that cannot be left out is missing")
    return value
