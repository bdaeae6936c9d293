"""Test vectors: from the user, from a calibration folder, or made up by kind of input."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.bundle.vectors import native
from edgeinfer.convert.verify.allowed import USUAL_MOST, Declared, Ranges
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.convert.verify.kinds import Kind, guess_kind
from edgeinfer.convert.verify.ladder import LADDER, rungs
from edgeinfer.convert.verify.places import TWICE, Places
from edgeinfer.convert.verify.signals import Style, digit_styles, signal
from edgeinfer.convert.verify.sizes import Axes, Found, Shapes, find_shapes
from edgeinfer.convert.verify.thresholds import at_thresholds
from edgeinfer.convert.verify.undefined import Undefined
from edgeinfer.convert.verify.unusual import free_integers, unusual
from edgeinfer.errors import InputError, RunError, SourceError, UsageError
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, InputRange, Preprocessing, TensorSpec, nbytes

if TYPE_CHECKING:
    from edgeinfer.convert.verify.oracles import Oracles

UserData = Path | Sequence[Feeds]
"""An ``.npz``, a folder of ``.npz`` files, or the feeds themselves."""

Drawn = tuple[Shapes, Style, int]
"""Sizes, style and seed of a made-up vector."""

_MOST_REAL = 16
"""Vectors taken from a user's folder; they are spread over all of it."""

_EXTREME = frozenset({"large", "negative"})

_MADE_EXTREME = _EXTREME | {"zeros"}
"""Styles that no data has, so that a net may do anything there."""

_ORDINARY = frozenset({"natural", "standard", "noise"})

_TRIES, _APART = 4, 1000
"""How often other numbers are drawn where rounding decides what comes out, and by which seeds."""

_LEAST_STEP = 2.0**-24
"""Half the last bit of a 24-bit recording of full scale: no sensor tells such inputs apart."""

_MEANING = frozenset({"mask", "positions", "sizes", "sample_rate", "state", "image", "audio"})
"""Kinds of inputs that are no ids, whatever their type could hold. What only arithmetic reads is no
token, which would be looked up in a table."""

_PICTURE = (640, 640)
"""Height and width of what comes with no picture of the model's own."""

_SLOW_S = 0.4
"""A model whose run takes longer is given fewer vectors: oracle B takes about ten times that."""

_PATIENCE_S = 60.0
"""Time for finding sizes and trying made-up vectors."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What every variant is checked on.

    Attributes:
        vectors: user data first.
        ranges: what float inputs lie between, by name, with who says so.
    """

    vectors: list[Vector]
    ranges: dict[str, InputRange]


def make_vectors(
    model: ir.Model, inputs: Sequence[TensorSpec], *, oracles: Oracles, **options: Any
) -> list[Vector]:
    """Gather or make inputs; options are those of ``gather_vectors``."""
    return gather_vectors(model, inputs, oracles=oracles, **options).vectors


def gather_vectors(
    model: ir.Model,
    inputs: Sequence[TensorSpec],
    *,
    oracles: Oracles,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    user_data: UserData | None = None,
    calibration: Path | None = None,
    shape_sets: Sequence[Mapping[str, tuple[int, ...]]] = (),
    ranges: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    declared: Declared | None = None,
    limit_bytes: int = 32 << 20,
    calibration_data: Sequence[Feeds] = (),
    reach: bool = False,
) -> Gathered:
    """Gather or make the inputs that every variant is checked on, and say what they lie between.

    User data comes first, then the calibration folder, then what is made up from the kind of each
    input. Every dynamic axis is given two sizes at least; sizes are found by trial on oracle A.

    Args:
        model: the source model as read.
        inputs: its inputs, without those that have an initializer.
        oracles: opened on the same model.
        preprocessing: how an image or a recording becomes an input, by input name.
        user_data: feeds to use as they are; arrays named as outputs are what is expected.
        calibration: folder of images or recordings; needs ``preprocessing``.
        shape_sets: the only sizes that count, instead of those found by trial.
        ranges: bounds of sizes by input name and axis; vectors stay within and go to both ends.
        declared: lowest and highest value by input name, as the user says.
        limit_bytes: stop adding made-up vectors when inputs and outputs hold this much.
        calibration_data: samples of a calibration set that is no plain folder.
        reach: also make inputs of the least and the greatest magnitude that nobody ruled out.

    Raises:
        InputError: user data does not fit the model.
        UsageError: the data cannot be used, or no input sizes could be found that the model runs
            with (the message asks for ``--input-shape`` or data).
        SourceError: the model leaves no size open and does not run.
    """
    records = dict(preprocessing or {})
    real: list[Vector] = []
    if user_data is not None:
        real += _from_user(user_data, inputs, [o.name for o in oracles.outputs])
    kinds = {s.name: guess_kind(s, records.get(s.name)) for s in inputs}
    held = Ranges(model, inputs, kinds, declared)
    maker = _Maker(
        model, inputs, oracles, kinds, held, records, limit_bytes, ranges or {}, declared or {}
    )
    if calibration is not None:
        real += maker.from_folder(calibration)
    samples = _from_user(calibration_data, inputs, []) if calibration_data else []
    real += [Vector(v.feeds, v.origin.replace("user", "calibration", 1)) for v in samples]
    held.see([v.feeds for v in real])
    made = maker.made_up(real, shape_sets)
    vectors = [*real, *made]
    base = next((v.feeds for v in vectors if not v.edge), vectors[0].feeds if vectors else {})
    recorded = held.recorded({s.name: np.asarray(base[s.name]).shape for s in inputs if base})
    if reach and base:
        vectors += maker.at_the_ends(base, recorded)
    if made and (note := maker.note):
        vectors[len(real)] = replace(made[0], note=note)
    return Gathered(vectors, recorded)


class _Maker:
    """Makes vectors up and completes those that lack an input."""

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[TensorSpec],
        oracles: Oracles,
        kinds: dict[str, Kind],
        held: Ranges,
        records: dict[str, Preprocessing],
        limit_bytes: int,
        ranges: Mapping[tuple[str, int], tuple[int, int]],
        declared: Declared,
    ) -> None:
        self._inputs, self._oracles, self._records = inputs, oracles, records
        self._model = model
        self._places = Places(model)
        self._undefined = Undefined(model)
        self._kinds, self._held = kinds, held
        self._computed = free_integers(model)
        self._digit_styles = digit_styles(model)
        self._most = USUAL_MOST
        self._axes = Axes(inputs, self._kinds, ranges)
        # As the file says it, whatever sizes were requested.
        self._open = any(
            v.shape is None or not v.shape.is_static()
            for v in model.graph.inputs
            if v.name in self._kinds
        )
        # A blank or scrambled image is nothing a net was trained on; a plain vector may be.
        media = any(k.name in ("image", "audio") for k in self._kinds.values())
        self._extreme = _EXTREME | ({"noise", "zeros"} if media else set())
        floats = [s.name for s in inputs if s.dtype.startswith(("float", "bfloat"))]
        if declared and all(n in declared for n in floats):
            # Somebody said that inputs reach so far: it is no extreme.
            self._extreme = frozenset()
        self._left = limit_bytes
        self._slow = False
        self._until = time.monotonic() + _PATIENCE_S
        self._failure = ""
        self._remarks: list[str] = []
        self._refused: dict[str, list[str]] = {}

    def from_folder(self, folder: Path) -> list[Vector]:
        """Read images or recordings; other inputs are made up next to them."""
        from edgeinfer.media import calls_for

        if not folder.is_dir():
            raise UsageError(f"calibration folder {folder}: no such folder")
        files = sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
        if not files:
            raise UsageError(f"calibration folder {folder} is empty")
        arrays = [p for p in files if p.suffix.lower() == ".npz"]
        vectors = [v for p in _spread(arrays) for v in _from_user(p, self._inputs, [])]
        vectors = [Vector(v.feeds, v.origin.replace("user", "calibration", 1)) for v in vectors]
        signature = _Signature(tuple(self._inputs), self._records)
        for path in _spread([p for p in files if p not in arrays]):
            for feeds in calls_for(path, signature, 1):
                vectors.append(Vector(self._complete(feeds), f"calibration:{path.name}"))
                break
        return vectors

    def made_up(
        self, real: Sequence[Vector], sets: Sequence[Mapping[str, tuple[int, ...]]] = ()
    ) -> list[Vector]:
        """Make vectors: a full set without real data, else only those that vary the sizes."""
        known = self._axes.sizes_of(real[0].feeds) if real else None
        if any(s.shape is None for s in self._inputs) and not real:
            names = ", ".join(repr(s.name) for s in self._inputs if s.shape is None)
            raise UsageError(f"the rank of input {names} is unknown; give --data or --input-shape")
        found = self._found(known, sets, [v.feeds for v in real])
        if not found.shapes and self._failure == TWICE:
            self._places.is_free = True
            found = self._found(known, sets, [v.feeds for v in real])
        failure = self._failure
        if not found.shapes and self._oracles.pass_over(failure):
            found = self._found(known, sets, [v.feeds for v in real])
            self._failure = failure
        if not found.shapes:
            specs = "; ".join(str(s) for s in self._inputs)
            if not self._open:
                own = f"the model does not run with its own sizes ({specs})"
                raise SourceError(f"{own}: {self._failure}{self._hint()}")
            raise UsageError(
                f"found no input sizes that the model runs with ({specs}); give --data or "
                f"--input-shape; the last try failed with: {self._failure}{self._hint()}"
            )
        base, *others = (*found.shapes, *self._ends(found.shapes))
        plans: list[tuple[Shapes, Style, int]] = [(s, "natural", 0) for s in others]
        if not real:
            plans = [(base, "natural", 0), *plans, (base, "standard", 1), (base, "noise", 0)]
            plans += [(base, "zeros", 0), (base, "large", 0), (base, "negative", 0)]
        vectors = [v for i, p in enumerate(plans) if (v := self._make(*p, must=i <= len(others)))]
        if not real:
            vectors += self._other_rates(found.shapes)
            vectors += self._without_scales(base)
            vectors += self._digits(base)
            vectors += self._unusual(base)
            vectors += self._at_thresholds(base)
        self._remarks[:0] = filter(None, [found.note])
        return vectors

    @property
    def note(self) -> str:
        """What is to be said of the vectors that were made, and of those that were not."""
        refused = (f"left out {', '.join(styles)}: {why}" for why, styles in self._refused.items())
        unknown = filter(None, [self._undefined.note])
        return "; ".join([*self._remarks, *dict.fromkeys(self._held.notes), *unknown, *refused])

    def _ran(self, feeds: Feeds, style: str) -> dict[str, Array] | None:
        """Run inputs next to the ordinary ones; None where nothing is right for them, with why."""
        try:
            outputs, why = self._oracles.run(feeds), self._undefined.why(feeds)
        except (RunError, InputError) as e:
            outputs, why = {}, f"the source does not run with it: {e}"
        if why:
            self._refused.setdefault(why, []).append(style)
            return None
        self._left -= nbytes(feeds) + sum(np.asarray(o).nbytes for o in outputs.values())
        return outputs

    def _digits(self, shapes: Shapes) -> Iterator[Vector]:
        """Yield offsets, ties and magnitudes, where a float input has no unit and no known range.

        One on which a change of inputs by half a last bit moves the answer says nothing.
        """
        held = self._held.at(shapes)
        free = {
            s.name
            for s in self._inputs
            if s.dtype in ("float32", "float64")
            and self._kinds[s.name].name == "plain"
            and s.name not in held
            and math.prod(shapes[s.name]) > 1
        }
        for style in self._digit_styles if free else ():
            if self._slow or self._left <= 0 or time.monotonic() > self._until:
                return
            feeds = self._signals(shapes, "natural", 0)
            moved = self._signals(shapes, style, 0)
            feeds |= {name: moved[name] for name in free}
            outputs = self._ran(feeds, style)
            tiny = style in ("tiny", "faint")
            least = 0.0 if tiny else 1.0
            if outputs is None or self._hangs_on_rounding(feeds, outputs, least=least):
                continue
            yield Vector(feeds, f"synthetic:{style}", edge=True, tiny=tiny)

    def _unusual(self, shapes: Shapes) -> Iterator[Vector]:
        """Yield ids, time stamps and ends of types, where the model only computes with integers."""
        bounded = self._held.at(shapes).keys()
        free = frozenset(
            n
            for n in self._computed
            if n not in bounded and self._kinds[n].name not in _MEANING and not self._kinds[n].vocab
        )
        for style, feeds in unusual(self._signals(shapes, "natural", 0), free):
            if self._slow or self._left <= 0 or time.monotonic() > self._until:
                return
            if self._ran(feeds, style) is not None:
                yield Vector(feeds, f"synthetic:{style}", edge=True)

    def _at_thresholds(self, shapes: Shapes) -> Iterator[Vector]:
        """Yield rows that meet the thresholds of trees, if there are any."""
        rows = at_thresholds(self._model, {n: tuple(s) for n, s in shapes.items()})
        alone = len(self._inputs) == 1
        if not rows or not (alone or all(len(r) == shapes[n][0] for n, r in rows.items())):
            return
        feeds = {**self._signals(shapes, "natural", 0), **rows}
        if self._ran(feeds, "thresholds") is not None:
            yield Vector(feeds, "synthetic:thresholds")

    def _found(
        self,
        known: Mapping[str, int] | None,
        sets: Sequence[Mapping[str, tuple[int, ...]]],
        data: Sequence[Feeds],
    ) -> Found:
        """Find sizes; integers that nothing bounds are made smaller until the model runs."""
        if data and sets:
            # What there is data for runs with it, whatever would be made up.
            given = [{n: a.shape for n, a in feeds.items()} for feeds in data]
            sets = [s for s in sets if not any(s.items() <= g.items() for g in given)]
            return Found((given[0], *self._of(sets).shapes))
        for self._most in (USUAL_MOST, 1, 0):
            found = self._of(sets) if sets else find_shapes(self._axes, self._runs, known)
            if found.shapes or not self._has_free_integers():
                break
        if found.shapes and self._most != USUAL_MOST:
            self._remarks.append(
                f"integers that no operator bounds are {self._most} at most: the model does not "
                "run with larger ones; --data or --input-range NAME=LO:HI says what they hold"
            )
        return found

    def _has_free_integers(self) -> bool:
        return any(s.dtype.startswith(("int", "uint")) for s in self._inputs)

    def _hint(self) -> str:
        if not self._has_free_integers():
            return ""
        return "; integers were made up: --data or --input-range NAME=LO:HI says what they hold"

    def at_the_ends(self, base: Feeds, ranges: Mapping[str, InputRange]) -> Iterator[Vector]:
        """Yield the least and the greatest magnitude that nobody ruled out, where they run."""
        steps = rungs(base, ranges)
        for feeds, step in ((steps[0], LADDER[0]), (steps[-1], LADDER[-1])) if steps else ():
            if self._ran(feeds, f"reach {step:g}") is not None:
                yield Vector(feeds, f"synthetic:reach {step:g}", edge=True, reach=True)

    def _ends(self, known: Sequence[Shapes]) -> Iterator[Shapes]:
        """Yield the least and the greatest sizes that are allowed, where there are bounds."""
        for ends in self._axes.ends() if known else ():
            feeds = {name: np.empty(shape, np.bool_) for name, shape in known[0].items()}
            shapes = self._axes.shapes({**self._axes.sizes_of(feeds), **ends})
            if shapes not in known and self._runs(shapes):
                yield shapes

    def _of(self, sets: Sequence[Mapping[str, tuple[int, ...]]]) -> Found:
        """The sets as they are; sizes of other inputs follow by their names."""
        shapes = []
        for one in sets:
            feeds = {name: np.empty(shape, np.bool_) for name, shape in one.items()}
            known = self._axes.sizes_of(feeds)
            sizes = {k: known.get(k, self._axes.candidates(k)[0]) for k in self._axes.roles}
            shapes.append({**self._axes.shapes(sizes), **one})
        return Found(tuple(s for s in shapes if self._runs(s)))

    def _make(self, shapes: Shapes, style: Style, seed: int, *, must: bool) -> Vector | None:
        """Make one if it runs and there is room; what ``must`` be there ignores the room."""
        if not must and (self._slow or self._left <= 0 or time.monotonic() > self._until):
            return None
        feeds = self._signals(shapes, style, seed)
        if style in _ORDINARY:
            feeds = self._decided(feeds, (shapes, style, seed))
        if self._places.clash(feeds):
            self._failure = TWICE
            return None
        # Processor time, so that a busy machine makes the same vectors as an idle one.
        start = time.process_time()
        try:
            outputs = self._oracles.run(feeds)
        except (RunError, InputError) as e:
            self._failure = str(e)
            return None
        if style in _EXTREME and (why := self._undefined.why(feeds)):
            self._refused.setdefault(why, []).append(style)
            return None
        self._slow = self._slow or time.process_time() - start > _SLOW_S
        self._left -= nbytes(feeds) + sum(np.asarray(o).nbytes for o in outputs.values())
        sizes = ", ".join("x".join(map(str, s)) or "scalar" for s in shapes.values())
        if style in _MADE_EXTREME and (moved := self._hangs_on_rounding(feeds, outputs)):
            self._remarks.append(
                f"no vector of style {style} {sizes}: a change of {_LEAST_STEP:.0e} moves {moved}, "
                "so that every engine may give another answer"
            )
            return None
        return Vector(feeds, f"synthetic:{style} {sizes}", style in self._extreme)

    def _decided(self, feeds: dict[str, Array], drawn: Drawn) -> dict[str, Array]:
        """Take others where rounding alone decides what comes out; the first if all are so."""
        made = feeds
        for again in range(_TRIES):
            try:
                if self._oracles.is_decided(made) or time.monotonic() > self._until:
                    return made
            except (RunError, InputError):
                # It is run once more where that is reported.
                return feeds
            shapes, style, seed = drawn
            made = self._signals(shapes, style, seed + _APART * (again + 1))
        return feeds

    def _hangs_on_rounding(
        self, feeds: Feeds, outputs: Mapping[str, Array], least: float = 1.0
    ) -> str:
        """Say which output leaves the budget when the inputs change less than they can be known.

        Exact zeros, for one, may be scaled by their own range, which is rounding alone.

        Args:
            feeds: the inputs.
            outputs: what they give.
            least: Minimum of what is smaller, the step is as large as of this.
        """
        rng = np.random.default_rng(0)

        def moved(a: Array) -> Array:
            step = _LEAST_STEP * np.maximum(least, np.abs(a)) * rng.uniform(-1, 1, a.shape)
            return np.asarray((a + step).astype(a.dtype))

        near = {name: moved(a) if a.dtype.kind == "f" else a for name, a in feeds.items()}
        try:
            others = self._oracles.run(near)
        except (RunError, InputError):
            return ""
        budget = budget_for("fp32")
        for name, value in outputs.items():
            breaches = (
                check(compare(value, others[name]), budget) if value.dtype.kind == "f" else []
            )
            if breaches:
                return f"output {name!r}: {breaches[0]}"
        return ""

    def _other_rates(self, shapes: Sequence[Shapes]) -> Iterator[Vector]:
        """Yield the rarer sample rate, which takes another branch in models that have both."""
        rates = [s for s in self._inputs if self._kinds[s.name].name == "sample_rate"]
        for shape in shapes if rates else ():
            feeds = self._signals(shape, "natural", 2)
            feeds |= {s.name: np.full_like(feeds[s.name], 8000) for s in rates}
            if self._ran(feeds, "8000 Hz") is not None:
                yield Vector(feeds, "synthetic:natural at 8000 Hz")
                return

    def _without_scales(self, shapes: Shapes) -> Iterator[Vector]:
        """Yield ordinary inputs with lone floats at zero: a scale of noise that is switched off."""
        lone = [
            s
            for s in self._inputs
            if s.dtype.startswith("float")
            and not math.prod(shapes[s.name]) > 1
            and self._kinds[s.name].name != "factor"
        ]
        if not lone or len(lone) == len(self._inputs) or self._left <= 0:
            return
        feeds = self._signals(shapes, "natural", 3)
        allowed = self._held.at(shapes)
        for spec in lone:
            held = allowed.get(spec.name)
            zero = np.zeros_like(feeds[spec.name])
            if held is None or held.span.least <= 0 <= held.span.most:
                feeds[spec.name] = zero
        if all(np.any(feeds[s.name]) for s in lone):
            return
        if self._ran(feeds, "scales of 0") is not None:
            yield Vector(feeds, "synthetic:natural with scales of 0")

    def _signals(self, shapes: Shapes, style: Style, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        feeds, allowed = {}, self._held.at(shapes)
        pictures = (
            [n for axis, n in enumerate(shapes[name]) if axis not in (0, kind.channel_axis)]
            for name, kind in self._kinds.items()
            if kind.name == "image" and len(shapes[name]) == 4
        )
        picture: Sequence[int] = next(pictures, _PICTURE)
        for spec in self._inputs:
            name, kind = spec.name, self._kinds[spec.name]
            # The second natural vector is one in the middle of a stream: its state is not zero.
            moving = kind.name == "state" and seed % _APART
            chosen: Style = "noise" if moving else style
            held = allowed.get(name)
            feeds[name] = signal(spec, kind, shapes[name], chosen, rng, held, self._most, picture)
        return self._places.apart(feeds, seed)

    def _runs(self, shapes: Shapes) -> bool:
        if time.monotonic() > self._until:
            return False
        feeds = self._signals(shapes, "natural", 0)
        try:
            self._oracles.run(feeds)
        except (RunError, InputError) as e:
            self._failure = str(e)
            return False
        if self._places.clash(feeds):
            self._failure = TWICE
            return False
        return True

    def _complete(self, feeds: Feeds) -> dict[str, Array]:
        known = self._axes.sizes_of(feeds)
        sizes = {k: known.get(k, self._axes.candidates(k)[0]) for k in self._axes.roles}
        return {**self._signals(self._axes.shapes(sizes), "natural", 0), **feeds}


@dataclass(frozen=True, slots=True)
class _Signature:
    inputs: tuple[TensorSpec, ...]
    preprocessing: dict[str, Preprocessing]


def _from_user(data: UserData, inputs: Sequence[TensorSpec], outputs: list[str]) -> list[Vector]:
    return [
        Vector(
            {s.name: _fitting(arrays, s, origin) for s in inputs},
            f"user:{origin}",
            given={n: native(np.asarray(arrays[n])) for n in outputs if n in arrays},
        )
        for origin, arrays in _user_arrays(data)
        if _known_names(arrays, inputs, outputs, origin)
    ]


def _user_arrays(data: UserData) -> Iterator[tuple[str, Feeds]]:
    from edgeinfer.media import read_arrays

    if not isinstance(data, Path):
        yield from ((f"#{i}", feeds) for i, feeds in enumerate(data))
        return
    files = sorted(data.glob("*.npz")) if data.is_dir() else [data]
    if not files:
        raise UsageError(f"data folder {data} has no .npz file")
    for path in _spread(files):
        yield path.name, read_arrays(path)


def _known_names(
    arrays: Feeds, inputs: Sequence[TensorSpec], outputs: Sequence[str], origin: str
) -> bool:
    names = [s.name for s in inputs]
    for name in arrays:
        if name not in names and name not in outputs:
            known = ", ".join(map(repr, names))
            raise InputError(name, f"one of the model's inputs {known}", f"this name in {origin}")
    return True


def _fitting(arrays: Feeds, spec: TensorSpec, origin: str) -> Array:
    if spec.name not in arrays:
        from edgeinfer.media.arrays import lacking

        raise InputError(spec.name, str(spec), lacking(arrays, origin))
    array = native(np.asarray(arrays[spec.name]))
    dtype = "string" if array.dtype.kind in "OSUT" else array.dtype.name
    shape = spec.shape
    fits = shape is None or (
        len(shape) == array.ndim
        and all(not isinstance(d, int) or d == n for d, n in zip(shape, array.shape, strict=True))
    )
    if dtype != spec.dtype or not fits:
        raise InputError(spec.name, str(spec), f"{dtype}{list(array.shape)} in {origin}")
    return array


def _spread(paths: Sequence[Path]) -> list[Path]:
    """Pick some, evenly, when there are many."""
    if len(paths) <= _MOST_REAL:
        return list(paths)
    return [paths[i * len(paths) // _MOST_REAL] for i in range(_MOST_REAL)]
