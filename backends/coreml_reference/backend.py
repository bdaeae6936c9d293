"""The backend ``coreml-reference``: a Core ML package evaluated in NumPy, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import ClassVar

from edgeinfer.backends.base import Artifact, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    array_type,
    check_device,
    check_feeds,
    check_package,
    one_line,
    thread_count,
)
from edgeinfer.backends.copying import Copying
from edgeinfer.backends.coreml_reference.evaluate import ProgramEvaluator, State, StateCell
from edgeinfer.backends.coreml_reference.memory import Memories
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.signature import DTYPES, FORMAT, FeaturePort, ports
from edgeinfer.backends.engines import import_coreml_spec
from edgeinfer.errors import ClosedError, LoadError, RunError
from edgeinfer.installed import install
from edgeinfer.machine.cpu import usual_name
from edgeinfer.types import Array, Feeds

NAME = "coreml-reference"
LABEL = "evaluated, not run on Apple hardware"


class CoreMLReferenceBackend:
    """Evaluates ML Programs; what it shows is what the program says, not what a device does."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for coremltools, which brings the format's protobuf modules."""
        try:
            import_coreml_spec()
            version = metadata.version("coremltools")
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"coremltools {reason}; {install('coreml')}")
        unit = f"{usual_name()} ({LABEL})"
        return Probe(NAME, version, (Device("cpu", unit),))

    def capabilities(self) -> Capabilities:
        """Packages with flexible shapes; bound buffers are copied."""
        return Capabilities(
            *(frozenset({FORMAT}), frozenset(DTYPES)),
            zero_copy=False,
            # A program decides how large its values are.
            fragile=True,
            keeps_time=False,
            forks=True,
        )

    def load(self, artifact: Artifact, options: LoadOptions) -> CoreMLReferenceExecutable:
        """Open a package; ``extra`` may name its ``function``, or set ``rounding`` to ``off``.

        Raises:
            NotAvailableError: coremltools or the device is not here.
            LoadError: not a package with an ML Program, or one with unknown operations.
        """
        check_device(self.probe(), options.device, "it runs on the CPU only")
        thread_count(NAME, options)
        rounding, function = _extra(options.extra)
        package = open_package(check_package(NAME, artifact, FORMAT))
        memories = Memories.of(package.facts(function), artifact)
        try:
            evaluator = ProgramEvaluator(package.function(function), rounding=rounding)
        except LoadError as error:
            raise LoadError(f"backend {NAME!r}: {artifact.path}: {one_line(error)}") from error
        description = package.description(function)
        return CoreMLReferenceExecutable(
            evaluator,
            ports(NAME, "input", memories.inputs, description, package.facts(function)),
            ports(NAME, "output", memories.outputs, description, package.facts(function)),
            memories,
            artifact,
        )


def _extra(extra: Mapping[str, str]) -> tuple[bool, str]:
    if strange := sorted(extra.keys() - {"function", "rounding"}):
        raise LoadError(f"backend {NAME!r} has the options function and rounding, not {strange}")
    rounding = extra.get("rounding", "on")
    if rounding not in ("on", "off"):
        raise LoadError(f"backend {NAME!r}: rounding is on or off, not {rounding!r}")
    return rounding == "on", extra.get("function", "")


class CoreMLReferenceExecutable(Copying):
    """A function of a package in the evaluator; it may run in several threads at once.

    Attributes:
        kept: inputs of the model that the package keeps as states.
    """

    def __init__(
        self,
        evaluator: ProgramEvaluator,
        inputs: tuple[FeaturePort, ...],
        outputs: tuple[FeaturePort, ...],
        memories: Memories,
        artifact: Artifact,
    ) -> None:
        self.inputs = artifact.inputs or tuple(port.spec for port in inputs)
        self.outputs = artifact.outputs or tuple(port.spec for port in outputs)
        self.kept = tuple(m.input.name for m in memories.every)
        self._memories = memories
        self._evaluator: ProgramEvaluator | None = evaluator
        self._inputs = inputs
        self._outputs = outputs
        self._dtypes = {s.name: array_type(s.dtype) for s in (*self.inputs, *self.outputs)}

    def make_state(self) -> State:
        """Return a new state, as ``MLModel.make_state`` does: zeros for all that is kept."""
        return self._opened().make_state()

    def load_state(self, state: State, feeds: Feeds) -> dict[str, Array]:
        """Replace the states that are fed; return the other feeds.

        Raises:
            RunError: one has another shape.
        """

        def write(name: str, value: Array) -> None:
            held = state[name].value
            if value.shape != held.shape:
                raise RunError(
                    f"backend {NAME!r}: state {name!r}: expected shape {held.shape}, received "
                    f"{value.shape}"
                )
            state[name] = StateCell(value.astype(held.dtype))

        return self._memories.write(feeds, write)

    def run(self, feeds: Feeds, state: State | None = None) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Args:
            feeds: an array for each input, with the states that the model has as inputs; without
                them where a ``state`` is given.
            state: from ``make_state``, read and written; None starts from what is fed, or zeros.

        Raises:
            RunError: an operation failed, or an input does not fit.
            ClosedError: after ``close``.
        """
        evaluator = self._opened()
        try:
            if state is not None or not self._memories.every:
                return self._computed(evaluator, feeds, state)
            return self._remembered(evaluator, feeds)
        except RunError as error:
            raise RunError(f"backend {NAME!r}: {one_line(error)}") from error

    def _computed(
        self, evaluator: ProgramEvaluator, feeds: Feeds, state: State | None
    ) -> dict[str, Array]:
        results = evaluator.run(self._given(feeds), state)
        return {p.spec.name: p.to_model(results[p.feature.name]) for p in self._outputs}

    def _remembered(self, evaluator: ProgramEvaluator, feeds: Feeds) -> dict[str, Array]:
        """Run from the states that are fed, and give out what has become of them."""
        check_feeds(self.inputs, self._dtypes, feeds)
        state = evaluator.make_state()
        rest = self.load_state(state, feeds)
        results = self._computed(evaluator, rest, state)
        results |= self._memories.read(lambda name: state[name].value)
        return {spec.name: results[spec.name] for spec in self.outputs}

    def close(self) -> None:
        """Free the program; runs under way hold it until they end."""
        self._evaluator = None

    def _opened(self) -> ProgramEvaluator:
        if self._evaluator is None:
            raise ClosedError(f"backend {NAME!r}: used after close()")
        return self._evaluator

    def _given(self, feeds: Feeds) -> dict[str, Array]:
        check_feeds([port.spec for port in self._inputs], self._dtypes, feeds)
        return {p.feature.name: p.to_package(feeds[p.spec.name]) for p in self._inputs}
