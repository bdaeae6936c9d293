"""The package on disk: the same bytes for the same model, and what Core ML shows about it."""

from __future__ import annotations

import importlib
import json
import logging
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgeinfer._version import __version__
from edgeinfer.convert.lower.coreml.classes import SCORES, config, scored
from edgeinfer.convert.lower.coreml.classes import metadata as classes
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.convert.lower.coreml.ports import Port, input_type
from edgeinfer.convert.lower.coreml.scope import Scope
from edgeinfer.convert.lower.coreml.transposes import only_where_any
from edgeinfer.convert.lower.coreml.weights import add_packing
from edgeinfer.convert.passes.cancellation import is_taken_away
from edgeinfer.convert.passes.infra import all_nodes
from edgeinfer.convert.quantize.recipe import Packing
from edgeinfer.errors import Problem, UnsupportedError

NAMES = "edgeinfer.names"
"""Metadata key: JSON with the model's names of ``inputs`` and ``outputs`` by the package's."""

TYPES = "edgeinfer.types"
"""Metadata key: JSON with the model's element types of ``inputs`` and ``outputs``, likewise."""

STATES = "edgeinfer.states"
"""Metadata key: JSON with ``input``, ``output`` and ``dtype`` of the model by the state's name."""

CHECKED = "edgeinfer.checked"
CHECKED_TEXT = "by the reference evaluator, not by Core ML"
SPEC = Path("Data/com.apple.CoreML/model.mlmodel")
MANIFEST = "Manifest.json"

_LOCK = threading.Lock()
"""coremltools numbers its names in counters of the process."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep coremltools' progress bars and warnings to itself, and its counters at zero."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813

    tqdm: Any = importlib.import_module("tqdm").tqdm
    logger = logging.getLogger("coremltools")
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level, before, init = logger.level, dict(mb.name_count), tqdm.__init__
        logger.setLevel(logging.ERROR)
        mb.name_count.clear()
        tqdm.__init__ = _silent(init)
        try:
            yield
        finally:
            logger.setLevel(level)
            mb.name_count.clear()
            mb.name_count.update(before)
            tqdm.__init__ = init


def _silent(init: Any) -> Any:
    def without_bar(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "disable": True})

    return without_bar


def write(scope: Scope, path: Path, options: CoreMLOptions, metadata: Mapping[str, str]) -> None:
    """Let coremltools optimise the program and write the package; then make it deterministic.

    Raises:
        UnsupportedError: one of coremltools' passes does not take the program.
    """
    import coremltools as ct

    scores = scored(scope.outputs, options.labels)
    inputs = [input_type(port, scope.options) for port in scope.inputs]
    classifier = config(scores, options.labels)
    try:
        with _validated_and_written_once(scope.program, packed=_is_packed(scope, options)):
            ct.convert(
                scope.program,
                source="milinternal",
                convert_to="mlprogram",
                minimum_deployment_target=ct.target(scope.deployment.specification),
                compute_precision=ct.precision.FLOAT32,
                inputs=inputs,
                classifier_config=classifier,
                pass_pipeline=_pipeline(options, scope),
                skip_model_load=True,
                package_dir=str(path),
            )
    except _FAILURES as e:
        words = (
            f"coremltools {ct.__version__}: {type(e).__name__}: {' '.join(str(e).split())[:300]}"
        )
        problem = Problem("", "the whole program", "unsupported_op", words)
        raise UnsupportedError("mlprogram", [problem]) from e
    described = {
        **metadata,
        NAMES: _by_name(scope, scores, lambda port: port.source),
        TYPES: _by_name(scope, scores, lambda port: port.dtype.name),
        **classes(scores, options.labels),
        CHECKED: CHECKED_TEXT,
        **_states(scope),
    }
    settle(path, described)


@contextmanager
def _validated_and_written_once(program: Any, *, packed: bool) -> Iterator[None]:
    """Validate a program when all passes are through, and write it as a package alone.

    coremltools validates it after each of its hundred passes, which takes longer than the passes,
    and writes it as text six times, for messages that nobody requested. After each it also follows
    which values come of packed weights, of which there are none in most programs: half of the rest.
    """
    kind = type(program)
    program.validate = lambda **_: None
    program.__class__ = type(kind.__name__, (kind,), {"__str__": object.__repr__})
    functions = [] if packed else list(program.functions.values())
    for function in functions:
        setattr(function, _FOLLOW, lambda: None)
    try:
        yield
    finally:
        program.__class__ = kind
        del program.validate
        for function in functions:
            delattr(function, _FOLLOW)
    program.validate(check_essential_scope=True)


def _states(scope: Scope) -> dict[str, str]:
    """Say which inputs and outputs of the model each state stands for."""
    if not scope.states:
        return {}
    kept = {
        port.name: {"input": port.source, "output": output, "dtype": port.dtype.name}
        for output, port in scope.states.items()
    }
    return {STATES: json.dumps(kept)}


def _by_name(scope: Scope, scores: Port | None, fact: Callable[[Port], str]) -> str:
    def of(ports: list[Port]) -> dict[str, str]:
        return {SCORES if p is scores else p.name: fact(p) for p in ports}

    return json.dumps({"inputs": of(scope.inputs), "outputs": of(scope.outputs)})


_FAILURES = (
    *(ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError),
    *(IndexError, KeyError, AttributeError),
)
"""What coremltools' passes raise for programs that they do not foresee."""

_BROKEN = frozenset({"common::fuse_pad_conv", "common::merge_consecutive_paddings"})
"""Passes of coremltools 9.0 that fail on programs that are right: the one for a padding and a
transpose before a convolution, where it would have to pad the batch; the other for two paddings of
which the first is an output, too."""

_INEXACT = frozenset({"common::fuse_elementwise_to_batchnorm"})
"""Passes of coremltools 9.0 that change numbers: this one makes a batch norm of a product and a
sum, with its default epsilon of 1e-5 with a variance of 1."""


_DONE = frozenset({"common::guard_negative_gather_indices"})
"""Passes of coremltools 9.0 whose work a lowering has done: this one makes three operations of each
gather for positions below zero, also where there are none (``ops/index.py``)."""


_NEEDS = {
    "common::fuse_gelu_tanh_approximation": frozenset({"tanh"}),
    "common::fuse_prelu": frozenset({"relu", "mul"}),
}
"""Operations without which a pass of coremltools 9.0 finds nothing, for those passes that make
symbols to describe what they look for: the first one loads SymPy, a quarter of a second."""


_BIASES = frozenset({
    *("common::fuse_conv_bias", "common::fuse_linear_bias", "common::fuse_matmul_weight_bias"),
})  # fmt: skip
"""Passes that start a product's sum with a constant, which may be one that is taken away again."""


def _pipeline(options: CoreMLOptions, scope: Scope) -> Any:
    import coremltools as ct

    pipeline = ct.PassPipeline.DEFAULT
    here = _kinds(scope)
    idle = {name for name, needed in _NEEDS.items() if not needed <= here}
    biases = _BIASES if any(is_taken_away(node) for node in all_nodes(scope.model)) else set()
    pipeline.remove_passes(_INEXACT | _BROKEN | _DONE | idle | biases)
    only_where_any(pipeline)
    if options.packing is not None or options.halves:
        add_packing(pipeline, options.packing or Packing(), halves=options.halves)
    return pipeline


_FOLLOW = "_propagate_nonreplaceable_vars"


def _is_packed(scope: Scope, options: CoreMLOptions) -> bool:
    """Whether weights are packed, or become so by a pass."""
    asked = options.packing is not None or options.halves
    return asked or any("quantize" in k or k.startswith("constexpr_") for k in _kinds(scope))


def _kinds(scope: Scope) -> frozenset[str]:
    blocks = (b for f in scope.program.functions.values() for b in _blocks(f))
    return frozenset(operation.op_type for block in blocks for operation in block.operations)


def _blocks(block: Any) -> Iterator[Any]:
    yield block
    for operation in block.operations:
        for inner in operation.blocks:
            yield from _blocks(inner)


def settle(path: Path, metadata: Mapping[str, str]) -> None:
    """Write the specification with its maps in order, and a manifest without random numbers."""
    from coremltools.proto import Model_pb2

    file = path / SPEC
    spec = Model_pb2.Model()
    spec.ParseFromString(file.read_bytes())
    own = spec.description.metadata
    own.userDefined.update(metadata)
    own.versionString = own.versionString or __version__
    file.write_bytes(spec.SerializeToString(deterministic=True))
    manifest = path / MANIFEST
    found = json.loads(manifest.read_text("utf-8"))
    # A bundle holds files: a folder of weights without any would be missed after the journey.
    entries = found["itemInfoEntries"]
    for key in [k for k, entry in entries.items() if _is_empty(path / "Data" / entry["path"])]:
        (path / "Data" / entries.pop(key)["path"]).rmdir()
    names = {
        old: str(uuid.uuid5(uuid.NAMESPACE_URL, entry["path"])).upper()
        for old, entry in found["itemInfoEntries"].items()
    }
    found["itemInfoEntries"] = {
        names[old]: entry
        for old, entry in sorted(found["itemInfoEntries"].items(), key=lambda e: e[1]["path"])
    }
    found["rootModelIdentifier"] = names[found["rootModelIdentifier"]]
    manifest.write_text(json.dumps(found, indent=4) + "\n", "utf-8")


def _is_empty(place: Path) -> bool:
    return place.is_dir() and not any(place.iterdir())


def files_of(path: Path) -> tuple[Path, ...]:
    """Every file of a package; its manifest, which stands for the package, first."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    manifest = path / MANIFEST
    return (manifest, *(f for f in files if f != manifest))
