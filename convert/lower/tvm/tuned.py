"""Kernels that were tuned: which are used, and what there is to tune in a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tvm import te, tirx

from edgeinfer.convert.lower.tvm.builder import Step, Tensor, at
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.kernels.defs.gemm import PARALLEL_ABOVE
from edgeinfer.kernels.tuning import processor, records, workload
from edgeinfer.kernels.tuning.database import Record
from edgeinfer.kernels.tuning.records import Known
from edgeinfer.kernels.tuning.task import Task

MARK = "edgeinfer.tuned"
"""Attribute of functions whose loops are in order already."""


class Tuning:
    """Looks kernels up among records, and notes what a model consists of.

    Args:
        known: what there is for the machine.
        collect: note every workload.
    """

    def __init__(self, known: Known | None = None, *, collect: bool = False) -> None:
        known = known or Known()
        self._known, self._foreign, self._collect = known.records, known.foreign, collect
        self._named, self._notes = known.named, known.notes
        self._met: set[str] = set()
        self._left: list[Record] = []
        self.tasks: dict[str, Task] = {}
        self.used: list[Record] = []
        self.unfit: list[str] = []
        self.open: list[str] = []

    @property
    def is_active(self) -> bool:
        """Whether there is anything to look up or to note."""
        return bool(self._known or self._foreign) or self._collect

    def choose(
        self, function: tirx.PrimFunc, own: Callable[[], Any], title: str, node: str, calls: int = 1
    ) -> tirx.PrimFunc | None:
        """Return the tuned form of a workload; None if the converter's own kernel is to be taken.

        Args:
            function: the workload as it is written.
            own: gives what is taken otherwise.
            title: Title of the workload, for people.
            node: Node of the model.
            calls: how often the model calls it.
        """
        if not self.is_active:
            return None
        key = workload.key_of(function)
        self._met.add(key)
        if self._collect:
            self._note(key, function, own, title, node, calls)
        record = self._known.get(key)
        if record is None and key in self._foreign:
            self._left += [self._foreign[key]] * calls
        if record is None or not record.won:
            return None
        try:
            made = workload.order(function, record.trace)
        except ValueError as error:
            self.unfit.append(f"{title}: {error}")
            return None
        self.used += [record] * calls
        made = made.without_attr("global_symbol")
        return made.with_attrs({MARK: True, "tirx.is_scheduled": True, "op_pattern": 8})

    def leave(self, name: str, calls: int) -> None:
        """Note a kernel of open sizes, whose orders nothing can measure."""
        self.open += [name] * calls

    def _note(
        self,
        key: str,
        function: tirx.PrimFunc,
        own: Callable[[], Any],
        title: str,
        node: str,
        calls: int,
    ) -> None:
        known = self.tasks.get(key)
        if known is not None:
            known.nodes.append(node)
            known.calls += calls
            return
        size = workload.iterations(function)
        self.tasks[key] = Task(
            key=key,
            title=title,
            text=workload.dump(function),
            own=workload.dump(own()),
            parallel=size >= PARALLEL_ABOVE,
            nodes=[node],
            calls=calls,
        )

    def lines(self) -> list[str]:
        """Say what was used, for the report."""
        found = list(self._notes)
        found += [
            f"{path}: none of its {len(keys)} tuned kernels is one of this model's"
            for path, keys in self._named.items()
            if not keys & self._met
        ]
        if self.used:
            cpus = ", ".join(sorted({r.cpu for r in self.used}))
            names = ", ".join(
                f"{r.title} ({r.gain:.2f} times as fast, three rounds in four of {r.n} at least "
                f"{r.sure:.2f})"
                for r in sorted({r.key: r for r in self.used}.values(), key=lambda r: r.title)
            )
            found.append(f"{len(self.used)} kernels as they were tuned on {cpus}: {names}")
        if self._left:
            cpus = ", ".join(sorted({r.cpu for r in self._left}))
            found.append(
                f"{len(self._left)} kernels have records of another processor only, which were not "
                f"used: {cpus}"
            )
        found += [f"a record was not used: {line}" for line in self.unfit]
        return found


def for_machine(machine: Machine, files: Sequence[str]) -> Tuning:
    """Return the tuning of a machine: what edgeinfer ships, and the user's own files before it.

    A level of x86-64 has processors of many designs: what was measured on one of them is used where
    code is made on such a one. Machines named by a core, and GPUs, are of one design.
    """
    cpu = processor.name() if machine.arch == "x86_64" and not machine.cuda else ""
    known = records.known(machine.name, [Path(f) for f in files], cpu)
    return Tuning(known)


Product = Callable[..., Any]
"""Tensors of the product's operands to the tensor of its result."""


def product_function(
    shape: Sequence[int],
    inputs: Sequence[Sequence[int]],
    product: Product,
    steps: Sequence[Step],
    view: Callable[[Tensor], Sequence[int]] | None = None,
) -> tirx.PrimFunc:
    """Write a product with the steps that follow it as loops that can be ordered in any way.

    Args:
        shape: Shape of the result.
        inputs: shapes of the product's operands.
        product: computes it.
        steps: what follows.
        view: gives the shape in which a step's operand is read; its own if that is None.
    """
    view = view or (lambda t: t.shape)
    tensors = [te.placeholder(tuple(s), "float32", f"p{i}") for i, s in enumerate(inputs)]
    operands: list[Tensor] = [t for step in steps for t in step.operands]
    extra = [te.placeholder(tuple(view(t)), t.dtype, f"e{i}") for i, t in enumerate(operands)]
    value = product(*tensors)
    result = value
    if steps:

        def element(*index: Any) -> Any:
            found, rest = value(*index), iter(extra)
            for step in steps:
                given = [at(next(rest), index) for _ in step.operands]
                given.insert(step.position, found)
                found = step.function(*given)
            return found

        result = te.compute(tuple(shape), element, name="steps")
    # Of the name it comes with a module can have one only.
    return te.create_prim_func([*tensors, *extra, result]).without_attr("global_symbol")


def title_of(kind: str, sizes: Sequence[Any]) -> str:
    """Name a workload for people: ``conv 1x3x224x224 32x3x3x3 /2``."""
    text = " ".join("x".join(map(str, s)) if not isinstance(s, str) else s for s in sizes if s)
    return f"{kind} {text}"


def sizes_of(function: tirx.PrimFunc) -> str:
    """The sizes of a function's largest operand and of its result."""
    shapes = [tuple(int(s) for s in p.shape) for p in function.params]
    largest = max(shapes[:-1], key=prod, default=())
    return f"{'x'.join(map(str, largest))} to {'x'.join(map(str, shapes[-1]))}"
