"""One ONNX graph becoming one function of an ML Program, with the graphs inside it on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml import ops as _families  # noqa: F401  (fills the registry)
from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.emitter import OVERFLOW
from edgeinfer.convert.lower.coreml.images import check_picture, normalised
from edgeinfer.convert.lower.coreml.integers import (
    CANDIDATES,
    Proofs,
    WiderError,
    declared_inputs,
    summed,
)
from edgeinfer.convert.lower.coreml.options import LARGEST, CoreMLOptions
from edgeinfer.convert.lower.coreml.ports import Port, PortNames, PortSymbols, port_of, sized
from edgeinfer.convert.lower.coreml.registry import OPS
from edgeinfer.convert.lower.coreml.tensor import WHOLE, Shape, Span, Tensor, limits
from edgeinfer.convert.lower.registry import Driver, Refusal
from edgeinfer.errors import Problem, UnsupportedError, UsageError


class Scope(Builder):
    """A builder that knows the ONNX graph it is made of.

    Args:
        model: normalised.
        options: Options of the package.
        proofs: what integers lie between where no operator says it.

    Attributes:
        integers: what a run's integer inputs are held to, by name.
        inputs: in the model's order, without the states.
        outputs: likewise.
        states: what Core ML keeps between runs, by the output that gives the next value.
        program: coremltools' program, complete after ``lower``.
    """

    def __init__(self, model: ir.Model, options: CoreMLOptions, proofs: Proofs) -> None:
        super().__init__(options.deployment)
        self.model, self.options, self.proofs = model, options, proofs
        self.driver: Driver[Tensor] = Driver(OPS, self)
        names = PortNames()
        every = self._ports(model.graph.inputs, names)
        self.states = self._states(every)
        kept = {p.source for p in self.states.values()}
        self.inputs = [p for p in every if p.source not in kept]
        self.options = sized(self.inputs, options)
        self.integers = declared_inputs(self.inputs, proofs)
        given = [v for v in model.graph.outputs if v.name not in self.states]
        self.outputs = self._ports(given, names)
        self.program: Any = None
        self._function: Any = None

    def _ports(self, values: Sequence[ir.Value], names: PortNames) -> list[Port]:
        ports, problems = [], []
        for value in values:
            if value.is_graph_input() and value.const_value is not None:
                continue
            try:
                ports.append(port_of(value, names, self.deployment))
            except Refusal as e:
                side = "model input" if value.is_graph_input() else "model output"
                problems.append(Problem(value.name or "", side, e.reason, e.detail, e.hint))
        if problems:
            raise UnsupportedError(OPS.target, problems)
        return ports

    def _states(self, inputs: Sequence[Port]) -> dict[str, Port]:
        """The inputs that become states, by the output that feeds each."""
        if not self.options.states:
            return {}
        try:
            self.require("read_state")
        except Refusal as e:
            source = next(iter(self.options.states))
            problem = Problem(source, "state", e.reason, e.detail, e.hint)
            raise UnsupportedError(OPS.target, [problem]) from e
        by_name = {p.source: p for p in inputs}
        outputs = {v.name for v in self.model.graph.outputs}
        found = {}
        for source, output in self.options.states.items():
            port = by_name.get(source)
            if port is None or output not in outputs:
                raise UsageError(f"state {source!r} from {output!r}: no such input or output")
            if not all(isinstance(d, int) for d in port.shape) or port.kind == "int32":
                raise UsageError(f"state {source!r}: expected floats of fixed sizes")
            found[output] = port
        return found

    def lower(self) -> None:
        """Lower the main graph.

        Raises:
            UnsupportedError: with every node that has no lowering.
        """
        from coremltools.converters.mil.mil import Builder as mb  # noqa: N813
        from coremltools.converters.mil.mil import Function, Program, types

        symbols = PortSymbols()
        self.largest = self._bounds(symbols)
        kinds = {"fp32": types.fp32, "fp16": types.fp16, "int32": types.int32}
        holders = {
            p.name: mb.placeholder(shape=symbols.shape(p.shape), dtype=kinds[p.kind])
            for p in self.inputs
        }
        for port in self.states.values():
            # Core ML keeps states in half precision only.
            holders[port.name] = mb.state_tensor_placeholder(port.shape, dtype=types.fp16)
        for port in (*self.inputs, *self.states.values(), *self.outputs):
            self.name(port.name)
        self.program = Program()
        version = _target(self.deployment.specification)
        with Function(holders, opset_version=version) as function:
            self._function = function
            self.driver.run(self.model)
            function.set_outputs(self._finish(function))
        self.program.add_function("main", function)

    def _bounds(self, symbols: PortSymbols) -> dict[Any, int]:
        """The largest that open sizes of inputs can be, as the package says of them."""
        if self.options.shapes:
            return {}
        found: dict[Any, int] = {}
        for port in self.inputs:
            for axis, dim in enumerate(port.shape):
                if isinstance(dim, str):
                    given = self.options.ranges
                    own = given.get(dim) or given.get(f"{port.source}:{axis}") or (1, LARGEST)
                    (symbol,) = symbols.shape([dim])
                    found[symbol] = max(found.get(symbol, 0), own[1])
        return found

    def input(self, value: ir.Value) -> Tensor:
        """Take an input of the model in the type and shape that ONNX gives it."""
        port = next(p for p in (*self.inputs, *self.states.values()) if p.source == value.name)
        self.base = port.name
        if port in self.states.values():
            read = self.mb.read_state(input=self._function.inputs[port.name])
            tensor = self.cast(self.wrap(read, np.dtype(np.float16)), port.dtype)
            return tensor if port.dims else self.reshape(tensor, [])
        found = self._function.inputs[port.name]
        if port.kind == "int32":
            return self._integer_input(port, found)
        tensor = self.wrap(found, np.dtype(np.float16 if port.kind == "fp16" else np.float32))
        if port.source in self.options.images:
            image = self.options.images[port.source]
            check_picture(port, image)
            tensor = normalised(self, tensor, image)
        tensor = self.cast(tensor, port.dtype)
        return tensor if port.dims else self.reshape(tensor, [])

    def _integer_input(self, port: Port, found: Any) -> Tensor:
        if port.dtype == np.bool_:
            tensor = self.binary("not_equal", self.wrap(found, np.dtype(np.int32)), 0)
        else:
            tensor = self.wrap(found, port.dtype, self.proofs.span_of(port))
        return tensor if port.dims else self.reshape(tensor, [])

    def wants(self, output: int) -> bool:
        """Whether anyone reads an output of the node that is being lowered."""
        node = self.driver.node
        if node is None or output >= len(node.outputs):
            return False
        value = node.outputs[output]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def given(self, output: int) -> Shape | None:
        """The shape that ONNX's inference gives an output, where it is known in full."""
        node = self.driver.node
        shape = node.outputs[output].shape if node is not None else None
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return tuple(d for d in shape if isinstance(d, int))

    def named_size(self, size: ir.SymbolicDim | int | None) -> Extent | None:
        """Return a size that is known, or that an axis of an input has by the same name."""
        if isinstance(size, int) or size is None or size.value is None:
            return size if isinstance(size, int) else None
        for value in self.model.graph.inputs:
            for axis, own in enumerate(value.shape or ()):
                if own == size and value in self.driver.values:
                    return self.extent(self.driver.values[value], axis)
        return None

    def keeps(self, axis: int) -> bool:
        """Whether an axis has one size, or one name, before the node and after it."""
        node = self.driver.node
        ends = [] if node is None else [node.inputs[0], node.outputs[0]]
        sizes = [v.shape[axis] for v in ends if v is not None and v.shape is not None]
        named = all(isinstance(s, int) or s.value is not None for s in sizes)
        return len(sizes) == 2 and named and sizes[0] == sizes[1]

    def constant(self, value: ir.Value) -> Tensor:
        """Make a constant of an initializer; its values are not copied."""
        return constant_of(value)

    def emit(self, op: str, dtype: Any = None, **operands: Any) -> Tensor:
        """Add an operator, named after the value that its node makes."""
        self._rename()
        return super().emit(op, dtype, **operands)

    def emit_all(self, op: str, dtypes: Sequence[Any], **operands: Any) -> list[Tensor]:
        """Add an operator with several results, named likewise."""
        self._rename()
        return super().emit_all(op, dtypes, **operands)

    def _rename(self) -> None:
        node = self.driver.node
        if node is not None:
            self.base = next((v.name for v in node.outputs if v.name), node.op_type)

    def tensor_of(self, value: ir.Value) -> Tensor:
        """Return what a value, or a constant around it, has become."""
        values = self.driver.values
        if value not in values:
            if value.const_value is None:
                raise Refusal(f"{value.name!r} is not known where it is used")
            values[value] = self.constant(value)
        return values[value]

    def _finish(self, function: Any) -> list[Any]:
        """Make each output a variable of its own, with its name and a type that Core ML gives."""
        made: list[Any] = []
        problems = []
        values = {v.name: v for v in self.model.graph.outputs}
        for output, port in self.states.items():
            self.driver.node = None
            new = self.cast(self.tensor_of(values[output]), np.float16)
            new = self.reshape(new, [int(d) for d in port.shape])
            state = self._function.inputs[port.name]
            self.mb.coreml_update_state(state=state, value=self.var(new))
        for port in self.outputs:
            value = values[port.source]
            try:
                made.append(self._output(port, self.tensor_of(value), made))
            except Refusal as e:
                problems.append(Problem(port.source, "model output", e.reason, e.detail, e.hint))
        if problems:
            raise UnsupportedError(OPS.target, problems)
        return made

    def _output(self, port: Port, tensor: Tensor, taken: Sequence[Any]) -> Any:
        self.driver.node = None
        self.base = port.name
        if port.kind == "int32" and tensor.dtype == np.bool_:
            tensor = self.cast(tensor, np.int32)
        if port.kind == "fp32" and tensor.dtype == np.float16:
            tensor = self.cast(tensor, np.float32)
        variable = self.var(tensor)
        maker = variable.op
        own = maker is not None and maker.op_type != "const" and len(maker.outputs) == 1
        if not own or any(variable is v for v in taken):
            return self.mb.identity(x=variable, name=port.name)
        variable.set_name(port.name)
        maker.name = port.name
        return variable

    def lower_body(self, body: ir.Graph, given: Mapping[ir.Value, Tensor]) -> list[Tensor]:
        """Lower the nodes of a body into the current block.

        Raises:
            Refusal: an inner node could not be lowered.
        """
        before = len(self.driver.problems)
        node = self.driver.node
        self.driver.values.update(given)
        try:
            self.driver.lower_nodes(body)
            if len(self.driver.problems) > before:
                raise Refusal("its body has operators that cannot be expressed", "unsupported_op")
            return [self.tensor_of(v) for v in body.outputs]
        finally:
            self.driver.node = node


_ADOPTED = 1 << 24
"""Bounds of integer inputs that are taken without being declared: no counter, index or length of an
edge model comes near them, and a run that does is refused. Those of what is summed over open axes
may be lower."""


def proven(model: ir.Model, options: CoreMLOptions) -> Scope:
    """Lower a normalised model, again where a loop's integers turn out to spread further.

    Raises:
        UnsupportedError: with every node that has no lowering; where integers may leave int32, with
            the bounds of the inputs that would do.
    """
    try:
        return _attempts(model, options, Proofs(options.integers))
    except UnsupportedError as e:
        if not any(p.detail.startswith(OVERFLOW) for p in e.problems):
            raise
        found = _narrower(model, options)
        if found is None:
            if all(v.shape is None or v.shape.is_static() for v in model.graph.inputs):
                raise
            hint = "sizes are open: fix or bound them, e.g. --input-shape NAME=1,3,1..640,1..640"
            raise UnsupportedError(OPS.target, _hinted(e.problems, hint)) from e
        if found[1] >= _ADOPTED:
            # A package says what its integers may hold, and runs are held to it.
            for only_wide in (True, False):
                adopted = Proofs(options.integers, found, only_wide=only_wide)
                with suppress(UnsupportedError):
                    return _attempts(model, options, adopted)
        elif (scope := _of_sums(model, options, found)) is not None:
            return scope
        least = min((limits(dtype)[0] for dtype in _integers(model, options)), default=found[0])
        low = max(found[0], least)
        hint = f"declare what integer inputs hold: {low} to {found[1]} would do"
        raise UnsupportedError(OPS.target, _hinted(e.problems, hint)) from e


def _integers(model: ir.Model, options: CoreMLOptions) -> list[np.dtype[Any]]:
    """Types of integer inputs of which nobody has said what they hold."""
    inputs = [v for v in model.graph.inputs if v.dtype is not None and v.dtype.is_integer()]
    return [v.dtype.numpy() for v in inputs if v.dtype and v.name not in options.integers]


def _of_sums(model: ir.Model, options: CoreMLOptions, narrow: Span) -> Scope | None:
    """Lower with low bounds of what is summed over open axes, and no such bounds of the rest."""
    inputs = {
        name: (max(narrow[0], limits(dtype)[0]), narrow[1])
        for name, dtype in summed(model).items()
        if name not in options.integers
    }
    for others in (WHOLE, *(c for c in CANDIDATES if c[1] >= _ADOPTED)) if inputs else ():
        with suppress(UnsupportedError):
            return _attempts(model, options, Proofs({**inputs, **options.integers}, others))
    return None


def _hinted(problems: Sequence[Problem], hint: str) -> list[Problem]:
    return [replace(p, hint=hint) if p.detail.startswith(OVERFLOW) else p for p in problems]


def _attempts(model: ir.Model, options: CoreMLOptions, proofs: Proofs) -> Scope:
    while True:
        scope = Scope(model, options, proofs)
        try:
            scope.lower()
        except WiderError as e:
            proofs.widen(e)
            continue
        return scope


def _narrower(model: ir.Model, options: CoreMLOptions) -> Span | None:
    """The widest bounds of integer inputs with which every integer stays in int32."""
    for span in CANDIDATES:
        try:
            _attempts(model, options, Proofs(options.integers, span))
        except UnsupportedError as e:
            if not any(p.detail.startswith(OVERFLOW) for p in e.problems):
                return None
            continue
        return span
    return None


def constant_of(value: ir.Value) -> Tensor:
    """Make a constant of an initializer."""
    if value.const_value is None:
        raise Refusal(f"{value.name!r} is not constant", "requires_constant")
    array = value.const_value.numpy()
    return Tensor(np.dtype(array.dtype), array.shape, data=array)


def _target(specification: int) -> Any:
    import coremltools as ct

    return ct.target(specification)
