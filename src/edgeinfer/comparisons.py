"""One artifact held against another, whoever made them, down to the node where they part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import EdgeInferError, UsageError
from edgeinfer.media.samples import open_data
from edgeinfer.metrics import OutputMetrics, budget_for
from edgeinfer.records import dataclass
from edgeinfer.runtime.difference import Input, Side, adapted, coarser, difference, open_sides
from edgeinfer.types import Feeds, Progress


@dataclass(frozen=True, slots=True)
class ComparedArtifact:
    """One artifact compared with the one that is taken to be right.

    Attributes:
        name: Name of the file, or of the variant in its bundle.
        engine: what ran it.
        version: Version of the engine.
        budget: the precision whose budget decided.
        outputs: the worst over all inputs, by output name.
        breaches: what left the budget, one line each.
        node: the first node that leaves it, by its name; empty where none is named.
        op: its operator.
        why: which node it is and by how much, or why none is named; empty where all is the same.
        notes: how inputs and outputs were paired, where their names or layouts differ.
    """

    name: str
    engine: str
    version: str
    budget: str
    outputs: Mapping[str, OutputMetrics]
    breaches: tuple[str, ...]
    node: str
    op: str
    why: str
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every output stayed within the budget."""
        return not self.breaches


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare`` found.

    Attributes:
        right: Name of what was taken to be right.
        engine: what ran it.
        version: Version of the engine.
        inputs: how many both were run on.
        origin: where they are from.
        rows: one for each artifact that was compared.
        not_run: what cannot run here, with the reason, one line each.
        also: variants of other targets that are the same artifact, by name.
    """

    right: str
    engine: str
    version: str
    inputs: int
    origin: str
    rows: tuple[ComparedArtifact, ...]
    not_run: tuple[str, ...]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether every artifact stayed within its budget."""
        return all(row.same for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return what ``json.dumps`` takes; infinities and NaN are texts such as ``inf``."""
        return {
            "same": self.same,
            "right": {"name": self.right, "engine": self.engine, "version": self.version},
            "inputs": self.inputs,
            "origin": self.origin,
            "rows": [_plain(asdict(row) | {"same": row.same}) for row in self.rows],
            "not_run": list(self.not_run),
            "also": _plain(self.also),
        }

    def __repr__(self) -> str:
        off = [row for row in self.rows if not row.same]
        first = f", first {off[0].name} ({off[0].why[:60]})" if off else ""
        return f"<Comparison with {self.right}: {len(off)} of {len(self.rows)} differ{first}>"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def compare(
    a: str | Path,
    b: str | Path,
    data: str | Path | Sequence[Feeds] | None = None,
    *,
    precision: str | None = None,
    progress: Progress | None = None,
    **opening: Any,
) -> Comparison:
    """Run two artifacts on the same inputs, and hold what one gives against the other.

    >>> found = edgeinfer.compare("a.onnx", "b.tflite")               # doctest: +SKIP
    >>> found.same or found.rows[0].node                              # doctest: +SKIP
    'conv_17'

    Args:
        a: path of a bundle or of an artifact (``.onnx``, ``.tflite``, ``.xml``, ``.mlpackage``),
            also made by others. What it gives is taken to be right: of a bundle the most precise
            artifact that runs here.
        b: what is judged, likewise; every artifact of a bundle.
        data: inputs by the names of ``a``: an ``.npz``, a folder, or feeds. None takes a bundle's
            test vectors, or makes them up as ``export`` does.
        precision: whose budget decides; None is the coarser of the two.
        progress: Called with what is being done and what share of it is done, 0..1.
        **opening: how bundles are opened, as ``Bundle.open`` takes it.

    Raises:
        BundleError: a bundle is damaged.
        InputError: an artifact does not take these inputs.
        NotAvailableError: nothing of one side can run here.
        RunError: an engine failed.
        UsageError: the two do not go together, there are no inputs, or no engine opens a file.
    """
    with ExitStack() as stack:
        rights, _ = open_sides(Path(a), stack, **opening)
        others, not_run = open_sides(Path(b), stack, **opening)
        right = _most_precise(rights)
        if progress is not None:
            progress("gather inputs", None)
        inputs, origin = _inputs(right, others, data)
        rows = []
        for number, other in enumerate(others):
            if progress is not None:
                progress(f"compare {other.name}", number / len(others))
            name = precision or coarser(_precision(right), _precision(other))
            rows.append(_compared(right, other, inputs, name))
    return Comparison(
        *(right.name, right.backend, right.version, len(inputs), origin),
        rows=tuple(rows),
        not_run=tuple(not_run),
        also={side.name: side.also for side in (right, *others) if side.also},
    )


def _compared(
    right: Side, other: Side, inputs: Sequence[Input], precision: str
) -> ComparedArtifact:
    found = difference(right, other, inputs, precision)
    node, op, why = "", "", ""
    if not found.same:
        node, op, why = _node(right, other, inputs[found.first].feeds, precision)
    return ComparedArtifact(
        *(other.name, other.backend, other.version, precision),
        outputs=found.outputs,
        breaches=found.breaches,
        node=node,
        op=op,
        why=why,
        notes=found.notes,
    )


def _most_precise(sides: list[Side]) -> Side:
    if len(sides) == 1:
        return sides[0]
    return max(sides, key=lambda side: budget_for(_precision(side)).sqnr_db)


def _precision(side: Side) -> str:
    """Return what a bundle says, or what is found in a plain file."""
    if side.precision:
        return side.precision
    try:
        from edgeinfer.convert.late import late

        read = late("quantize.readback_apart").precision_of
    except ModuleNotFoundError as e:
        raise UsageError(
            f"{side.path}: what precision it has only the converter can tell: give --precision "
            "(precision=)"
        ) from e
    return str(read(side.path, side.format))


def _inputs(
    right: Side, others: list[Side], data: str | Path | Sequence[Feeds] | None
) -> tuple[list[Input], str]:
    """Return inputs by the names of the side that is right, and where they are from."""
    if data is not None:
        place = Path(data) if isinstance(data, str | Path) else data
        given = open_data(place, right.executable.inputs, called="comparison")
        found = [Input(feeds) for feeds in given.feeds()]
        if not found:
            raise UsageError(f"comparison data {data} holds no sample")
        return found, f"of {data}" if isinstance(place, Path) else "given"
    for side in (right, *others):
        if side.vectors:
            made = [replace(v, feeds=adapted(v.feeds, side, right, [])) for v in side.vectors]
            return made, f"of {side.name}"
    try:
        from edgeinfer.convert.late import late

        divergence, read_apart = late("verify.divergence"), late("pipeline.worker").read_apart
    except ModuleNotFoundError as e:
        raise UsageError(
            f"{right.path}: only the converter makes inputs up, and it is not installed here: give "
            "--data FILE.npz (data=)"
        ) from e
    for side in (right, *others):
        if side.path.suffix in divergence.READABLE and not is_in_memory(side.path):
            names = [spec.name for spec in side.executable.inputs]
            # A reader may take other names of a file than its engine, never another order.
            own = [
                feeds
                if feeds.keys() == set(names)
                else dict(zip(names, feeds.values(), strict=True))
                for feeds in read_apart("make inputs", list[Feeds], side.path, files=[side.path])
            ]
            taken = [Input(adapted(feeds, side, right, [])) for feeds in own]
            return taken, f"made up for {side.name}"
    raise UsageError(
        f"{right.path}: inputs are made up for .onnx and .tflite files that are not "
        "encrypted, and neither is one: give --data FILE.npz (data=)"
    )


def _node(right: Side, other: Side, feeds: Feeds, precision: str) -> tuple[str, str, str]:
    """Name the first diverging node and its operator, or say why there is none to name."""
    try:
        from edgeinfer.convert.late import late

        divergence, read_apart = late("verify.divergence"), late("pipeline.worker").read_apart
    except ModuleNotFoundError:
        return _none("the converter reads graphs, and it is not installed here")
    for side in (right, other):
        if side.path.suffix not in divergence.READABLE:
            return _none(f"{side.path.name} is no graph that is read here")
        if is_in_memory(side.path):
            return _none(f"{side.name} is encrypted, and naming one writes its weights to the disk")
    try:
        asked = right.path, other.path, feeds, budget_for(precision)
        files = [right.path, other.path]
        found = read_apart("compare graphs", divergence.Divergence, *asked, files=files)
    except EdgeInferError as e:
        return _none(str(e))
    if found.node:
        why = f"first diverging node {found.op} {found.node!r}: {'; '.join(found.breaches)}"
        return found.node, found.op, why
    if not found.compared:
        return _none("the two graphs have no value of the same name")
    return _none(
        f"all {found.compared} values that have one name in both are within the budget, computed "
        "without the engines' optimisation"
    )


def _none(reason: str) -> tuple[str, str, str]:
    return "", "", f"no node named: {reason}"
