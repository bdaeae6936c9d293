"""Running a Core ML program with NumPy.

A program is compiled once to a list of steps over numbered slots. Values of type float16 are held
as float32 arrays whose elements are float16 numbers: each operation computes in float32 and its
result is rounded to float16, as the program's types say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.checks import one_line
from edgeinfer.backends.coreml_reference import ops as _families
from edgeinfer.backends.coreml_reference.program import (
    Argument,
    Block,
    Constant,
    DictType,
    ListType,
    MilType,
    Operation,
    ProgramFunction,
    StateType,
    TensorType,
    Variable,
)
from edgeinfer.backends.coreml_reference.registry import OPS, Entry
from edgeinfer.errors import LoadError, RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_CONTROL = ("cond", "while_loop")
_MOST_STEPS = 1_000_000
"""Operations that the loops of a run may compute; each takes some microseconds or more."""
_LEFT = 0
"""Slot of how many are left."""


@dataclass(slots=True)
class StateCell:
    """One state: a tensor that lives between predictions."""

    value: Array


State = dict[str, StateCell]
Values = list[Any]
Hook = Callable[[Operation, tuple[Any, ...]], None]


@dataclass(slots=True)
class BoundOperation:
    """An operation bound to slots.

    Attributes:
        run: computes outputs from the values.
        operation: for messages and hooks.
        outputs: slots of its outputs.
        free: slots that nobody reads afterwards.
    """

    run: Callable[[Values], tuple[Any, ...]]
    operation: Operation
    outputs: tuple[int, ...]
    free: tuple[int, ...] = ()


class ProgramEvaluator:
    """A function of a Core ML program, ready to run; runs do not disturb each other."""

    def __init__(self, function: ProgramFunction, *, rounding: bool = True) -> None:
        """Compile a function.

        Args:
            function: the program.
            rounding: round float16 results after each operation; without it they stay float32.

        Raises:
            LoadError: it has operations that are not known; all are named.
        """
        if problems := unknown_operations(function.block):
            raise LoadError(f"function {function.name!r} of the program has {', '.join(problems)}")
        self.inputs = function.inputs
        compiler = _Compiler(rounding)
        scope: dict[str, int] = {}
        self._slots = {v.name: compiler.declare(v, scope) for v in function.inputs}
        self._steps = compiler.block(function.block, scope)
        self._results = {name: scope[name] for name in function.block.outputs}
        self.outputs = tuple(compiler.variables[slot] for slot in self._results.values())
        self._template = compiler.values
        self._rounding = rounding
        _mark_last_uses(self._steps, compiler.reads, set(self._results.values()))

    def make_state(self) -> State:
        """Return a new state: zeros for each tensor that the function keeps."""
        return {
            v.name: StateCell(np.zeros(_static(v), _working(v.type.tensor)))
            for v in self.inputs
            if isinstance(v.type, StateType)
        }

    def run(
        self, feeds: Mapping[str, Array], state: State | None = None, hook: Hook | None = None
    ) -> dict[str, Any]:
        """Compute all outputs.

        Args:
            feeds: an array for each input that is not a state.
            state: from ``make_state``; read and written. None starts from zeros.
            hook: called after each operation with its results.

        Raises:
            RunError: an input is missing or does not fit, or an operation fails.
        """
        values = self._template.copy()
        values[_LEFT] = _MOST_STEPS
        state = self.make_state() if state is None else state
        for variable in self.inputs:
            values[self._slots[variable.name]] = self._input(variable, feeds, state)
        with np.errstate(all="ignore"), forks.undivided():
            execute(self._steps, values, hook)
        found = zip(self._results.items(), self.outputs, strict=True)
        return {name: _public(values[slot], v.type) for (name, slot), v in found}

    def _input(self, variable: Variable, feeds: Mapping[str, Array], state: State) -> Any:
        name, kind = variable.name, variable.type
        if isinstance(kind, StateType):
            if name not in state:
                raise RunError(f"the state {name!r} is missing, received {sorted(state)}")
            return state[name]
        if name not in feeds:
            raise RunError(f"input {name!r} is missing, received {sorted(feeds)}")
        if not isinstance(kind, TensorType):
            raise RunError(f"input {name!r} is not a tensor")
        array = np.asarray(feeds[name])
        if not _shape_fits(kind, array.shape):
            raise RunError(f"input {name!r}: expected shape {kind.shape}, received {array.shape}")
        return settle(array, kind, rounding=self._rounding)


def unknown_operations(block: Block) -> list[str]:
    """Return what cannot be computed in a block and the blocks within, each thing once."""
    found: dict[str, None] = {}
    for operation in _all_operations(block):
        kind = operation.type
        if kind in ("const", *_CONTROL):
            continue
        if kind not in OPS:
            found[f"the operation {kind!r}, which is not known"] = None
            continue
        entry = OPS[kind]
        if strange := sorted(operation.inputs.keys() - entry.convert.keys()):
            found[f"inputs {strange} of {kind!r}, which are not known"] = None
        if missing := sorted(entry.required - operation.inputs.keys()):
            found[f"a {kind!r} without {missing}"] = None
    return list(found)


def _all_operations(block: Block) -> Iterable[Operation]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _all_operations(inner)


def execute(steps: list[BoundOperation], values: Values, hook: Hook | None) -> None:
    """Run steps in order."""
    for step in steps:
        try:
            results = step.run(values)
        except RunError:
            raise
        except MemoryError as error:
            raise RunError(f"{_label(step.operation)}: out of memory") from error
        except Exception as error:
            message = f"{type(error).__name__}: {one_line(error)}"
            raise RunError(f"{_label(step.operation)}: {message}") from error
        for slot, value in zip(step.outputs, results, strict=True):
            values[slot] = value
        if hook is not None:
            hook(step.operation, results)
        for slot in step.free:
            values[slot] = None


def settle(value: Any, kind: MilType, *, rounding: bool) -> Any:
    """Return a kernel's result as the declared type holds it."""
    if not isinstance(kind, TensorType):
        return value
    array = np.asarray(value)
    if not _shape_fits(kind, array.shape):
        raise ValueError(f"the result has shape {array.shape}, the program declares {kind.shape}")
    dtype = kind.dtype
    if dtype == "float16":
        if rounding and array.dtype != np.float16:
            array = array.astype(np.float16)
        return array.astype(np.float32, copy=False)
    if dtype == "string":
        return array
    return array.astype(kind.container, copy=False)


def _working(kind: TensorType) -> np.dtype[Any]:
    return np.dtype(np.float32) if kind.dtype == "float16" else kind.container


def _public(value: Any, kind: MilType) -> Any:
    """Return a result that belongs to the caller."""
    if isinstance(kind, TensorType) and kind.dtype != "string":
        return np.array(value, kind.container, order="C")
    return value


def _shape_fits(kind: TensorType, shape: tuple[int, ...]) -> bool:
    wanted = kind.shape
    if wanted is None:
        return True
    return len(wanted) == len(shape) and all(
        w is None or w == s for w, s in zip(wanted, shape, strict=True)
    )


def _static(variable: Variable) -> tuple[int, ...]:
    kind = variable.type
    if not isinstance(kind, StateType) or kind.tensor.shape is None or None in kind.tensor.shape:
        raise RunError(f"the state {variable.name!r} has no fixed shape")
    return tuple(d for d in kind.tensor.shape if d is not None)


def _label(operation: Operation) -> str:
    return f"operation {operation.type!r} ({operation.name})"


_NOTHING = Variable("", DictType())
"""Stands where no value of the program is."""


@dataclass(slots=True)
class _Compiler:
    """Turns operations into steps, and names into slots."""

    rounding: bool
    values: Values = field(default_factory=lambda: [_MOST_STEPS])
    variables: list[Variable] = field(default_factory=lambda: [_NOTHING])
    static: set[int] = field(default_factory=set)
    reads: dict[int, set[int]] = field(default_factory=dict)

    def declare(self, variable: Variable, scope: dict[str, int]) -> int:
        """Give a variable a slot of its own."""
        slot = len(self.values)
        self.values.append(None)
        self.variables.append(variable)
        scope[variable.name] = slot
        return slot

    def block(self, block: Block, scope: dict[str, int]) -> list[BoundOperation]:
        """Compile a block; ``scope`` gains its names."""
        steps = []
        for operation in block.operations:
            if operation.type == "const":
                self._constant(operation, scope)
                continue
            step = self._control(operation, scope) or self._plain(operation, scope)
            if step is not None:
                steps.append(step)
        if missing := [name for name in block.outputs if name not in scope]:
            raise LoadError(f"the program gives {missing}, which nothing computes")
        return steps

    def _constant(self, operation: Operation, scope: dict[str, int]) -> None:
        variable = operation.outputs[0]
        if "val" not in operation.inputs:
            raise LoadError(f"the constant {operation.name!r} has no value")
        value = operation.inputs["val"][0]
        slot = self.declare(variable, scope)
        if isinstance(value, str):
            raise LoadError(f"the constant {operation.name!r} has no value")
        self.values[slot] = self._literal(value, variable.type)
        self.static.add(slot)

    def _literal(self, constant: Constant, kind: MilType | None = None) -> Any:
        if isinstance(constant.value, list):
            return constant.value
        kind = kind if isinstance(kind, TensorType) else TensorType(constant.dtype, None)
        try:
            return settle(constant.value, kind, rounding=True)
        except ValueError as error:
            raise LoadError(f"a constant: {one_line(error)}") from error

    def _plain(self, operation: Operation, scope: dict[str, int]) -> BoundOperation | None:
        entry = OPS[operation.type]
        fixed: dict[str, Any] = {}
        moving: list[tuple[str, Callable[[Any], Any], Any]] = []
        used: set[int] = set()
        for name, argument in operation.inputs.items():
            place = self._place(operation, argument, scope)
            if callable(place):
                fixed[name] = _handed(operation, name, entry, place())
                continue
            used.update([place] if isinstance(place, int) else [p for p in place if p >= 0])
            moving.append((name, entry.convert[name], place))
        if entry.wants_outputs:
            fixed["out"] = tuple(v.type for v in operation.outputs)
        kinds = tuple(v.type for v in operation.outputs)
        run = _runner(entry.call, fixed, moving, kinds, rounding=self.rounding)
        folded = operation.type.startswith("constexpr_")
        slots = tuple(self.declare(v, scope) for v in operation.outputs)
        step = BoundOperation(run, operation, slots)
        if folded and not moving:
            with np.errstate(all="ignore"):
                _fold(step, self.values)
            self.static.update(slots)
            return None
        self.reads[id(step)] = used
        return step

    def _place(self, operation: Operation, argument: Argument, scope: dict[str, int]) -> Any:
        """Return a slot, a list of slots, or a function that gives a value known now."""
        slots = []
        for item in argument:
            if isinstance(item, Constant):
                slots.append(self._hold(item))
            elif item in scope:
                slots.append(scope[item])
            else:
                raise LoadError(f"{_label(operation)} takes {item!r}, which nothing computes")
        several = len(slots) != 1 or _is_list(operation, argument)
        place = slots if several else slots[0]
        if all(slot in self.static for slot in slots):
            known = [self.values[slot] for slot in slots]
            return lambda: known if several else known[0]
        return place

    def _hold(self, constant: Constant) -> int:
        slot = self.declare(Variable("", TensorType(constant.dtype, None)), {})
        self.values[slot] = self._literal(constant)
        self.static.add(slot)
        return slot

    def _control(self, operation: Operation, scope: dict[str, int]) -> BoundOperation | None:
        if operation.type not in _CONTROL:
            return None
        wanted = ("pred",) if operation.type == "cond" else ("loop_vars",)
        if set(operation.inputs) != set(wanted) or len(operation.blocks) != 2:
            raise LoadError(f"{_label(operation)} is not of the known form")
        argument = operation.inputs[wanted[0]]
        sources = [self._hold(a) if isinstance(a, Constant) else scope[a] for a in argument]
        bodies = []
        used = set(sources)
        for block in operation.blocks:
            inner = dict(scope)
            entries = [self.declare(v, inner) for v in block.inputs]
            steps = self.block(block, inner)
            exits = [inner[name] for name in block.outputs]
            bodies.append((entries, steps, exits))
            used.update(exits, *(self.reads[id(s)] for s in steps))
        run = _branch(sources[0], bodies) if operation.type == "cond" else _loop(sources, bodies)
        slots = tuple(self.declare(v, scope) for v in operation.outputs)
        step = BoundOperation(run, operation, slots)
        self.reads[id(step)] = used
        return step


_Body = tuple[list[int], list[BoundOperation], list[int]]


def _branch(pred: int, bodies: list[_Body]) -> Callable[[Values], tuple[Any, ...]]:
    def run(values: Values) -> tuple[Any, ...]:
        _, steps, exits = bodies[0 if bool(values[pred]) else 1]
        execute(steps, values, None)
        return tuple(values[slot] for slot in exits)

    return run


def _loop(sources: list[int], bodies: list[_Body]) -> Callable[[Values], tuple[Any, ...]]:
    (test_in, test, test_out), (body_in, body, body_out) = bodies

    def run(values: Values) -> tuple[Any, ...]:
        current = [values[slot] for slot in sources]
        while True:
            values[_LEFT] -= 1 + len(test) + len(body)
            if values[_LEFT] < 0:
                raise RunError(f"the loops of a run compute more than {_MOST_STEPS} operations")
            for slot, value in zip(test_in, current, strict=True):
                values[slot] = value
            execute(test, values, None)
            if not bool(values[test_out[0]]):
                return tuple(current)
            for slot, value in zip(body_in, current, strict=True):
                values[slot] = value
            execute(body, values, None)
            current = [values[slot] for slot in body_out]

    return run


def _runner(
    call: Callable[..., Any],
    fixed: dict[str, Any],
    moving: list[tuple[str, Callable[[Any], Any], Any]],
    kinds: tuple[MilType, ...],
    *,
    rounding: bool,
) -> Callable[[Values], tuple[Any, ...]]:
    def run(values: Values) -> tuple[Any, ...]:
        arguments = dict(fixed)
        for name, convert, place in moving:
            found = values[place] if isinstance(place, int) else [values[p] for p in place]
            arguments[name] = convert(found)
        results = call(**arguments)
        if not isinstance(results, tuple):
            results = (results,) if kinds else ()
        if len(results) < len(kinds):
            raise ValueError(f"{len(results)} results for {len(kinds)} outputs")
        return tuple(settle(r, k, rounding=rounding) for r, k in zip(results, kinds, strict=False))

    return run


def _handed(operation: Operation, name: str, entry: Entry, value: Any) -> Any:
    try:
        return entry.convert[name](value)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{_label(operation)}: input {name!r}: {one_line(error)}") from error


def _fold(step: BoundOperation, values: Values) -> None:
    try:
        execute([step], values, None)
    except RunError as error:
        raise LoadError(str(error)) from error


def _is_list(operation: Operation, argument: Argument) -> bool:
    """Whether an input is a list of tensors even if it has one element."""
    return any(operation.inputs.get(name) is argument for name in _families.LISTS)


def _mark_last_uses(
    steps: list[BoundOperation], reads: dict[int, set[int]], kept: set[int]
) -> None:
    """Let each step free what it is the last to read."""
    seen = set(kept)
    for step in reversed(steps):
        last = (reads[id(step)] | set(step.outputs)) - seen
        seen |= last
        step.free = tuple(sorted(last))


__all__ = ["DictType", "ListType", "ProgramEvaluator", "State", "StateCell", "unknown_operations"]
