"""The process that proposes orders of loops: MetaSchedule's design space, an evolution of its own.

MetaSchedule's evolution, its features and its database copy functions through TVM's JSON, which
ends the process with a segmentation fault where tvm-ffi is 0.1.15 (with TVM 0.27.0). Its rules that
write the space, its sampling and its last steps do not, and they are what is used here.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm.s_tir

from edgeinfer.records import dataclass


def _without_intrinsics() -> None:
    """Keep ``tvm.s_tir.tensor_intrin`` out: it takes half a minute, for rules not used here."""
    name = "tvm.s_tir.tensor_intrin"
    if name not in sys.modules:
        module = types.ModuleType(name)
        folder = os.path.join(os.path.dirname(tvm.s_tir.__file__), "tensor_intrin")
        module.__path__ = [folder]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        tvm.s_tir.tensor_intrin = module


_without_intrinsics()

from tvm.s_tir import Schedule  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.schedule import Trace  # noqa: E402

from edgeinfer.kernels.rules import cuda  # noqa: E402
from edgeinfer.kernels.tuning import traces, workload  # noqa: E402
from edgeinfer.kernels.tuning.worker import serve  # noqa: E402

ROUND, GPU_ROUND = 16, 32
"""Orders that are proposed at once; a GPU's compiler works on several at a time."""

_POOL, _PARENTS, _RANDOM = 72, 12, 0.25
_THREADS, _VIRTUAL, _INNER, _BLOCK = (32, 1024), 4, 16, 2048
"""Of a GPU's tiles: threads of a block, virtual threads at most, values of a thread and of a block
at most. Drawn without bounds, one order in a hundred of a depthwise convolution fits into a block's
memory, and none where it takes each second value."""

_DRAWS, _BOUNDED = 64, 0.8
_WIDE = 96
_TRIES = 3


@dataclass(eq=False, slots=True)
class BuiltSchedule:
    """An order that was built.

    Attributes:
        sketch: index of the sketch it fills in.
        trace: with all of MetaSchedule's last steps.
        plain: without them, to make others from.
        row: its decisions as numbers.
        json: as it is kept.
        seconds: measured; None if it failed.
    """

    sketch: int
    trace: Any
    plain: Any
    row: npt.NDArray[np.float64]
    json: Any
    seconds: float | None = None


class ScheduleSearch:
    """One workload at a time."""

    def setup(self, target: Mapping[str, Any], seed: int) -> None:
        """Store the machine."""
        self._target, self._seed = workload.target(target), seed
        self._is_gpu, self._arch = target["kind"] == "cuda", target.get("arch")

    def plans(self, text: str) -> list[Any]:
        """Return plans of a rule that fits, the most promising first; none if no rule fits."""
        if not self._is_gpu:
            return []
        shape = cuda.shape_of(workload.load(text))
        return [] if shape is None else [dict(p) for p in cuda.plans(shape, str(self._arch))]

    def open(self, text: str, parallel: bool, history: Sequence[tuple[Any, float | None]]) -> int:
        """Start on a workload; returns how many sketches its space has.

        Args:
            text: Text of the function.
            parallel: whether loops may run on several threads.
            history: orders that were measured before, with their seconds.
        """
        self._mod = tvm.IRModule({workload.NAME: workload.load(text)})
        self._rng = np.random.default_rng(self._seed)
        space = self._space(parallel)
        context = ms.TuneContext(
            mod=self._mod,
            target=self._target,
            space_generator=space,
            rand_state=self._seed,
            num_threads=1,
        )
        self._context, self._posts = context, list(context.space_generator.postprocs)
        self._sketches = [s.trace for s in context.generate_design_space()]
        self._measured: list[BuiltSchedule] = []
        self._seen: set[str] = set()
        self._waiting: list[BuiltSchedule] = []
        for trace, seconds in history:
            self._seen.add(workload.digest(trace))
            self._remember(trace, seconds)
        return len(self._sketches)

    def propose(self) -> list[Any]:
        """Return the next orders to measure; none when nothing new is found."""
        pool = self._pool()
        guesses = self._guesses(pool)
        ranked = [pool[i] for i in np.argsort(-guesses)]
        count = GPU_ROUND if self._is_gpu else ROUND
        some = int(count * _RANDOM)
        chosen, rest = ranked[: count - some], ranked[count - some :]
        self._rng.shuffle(rest)
        self._waiting = [*chosen, *rest[:some]]
        self._seen |= {workload.digest(c.json) for c in self._waiting}
        return [c.json for c in self._waiting]

    def tell(self, seconds: Sequence[float | None]) -> None:
        """Take the figures of what was proposed."""
        for candidate, figure in zip(self._waiting, seconds, strict=True):
            candidate.seconds = figure
        self._measured += self._waiting
        self._waiting = []

    def _space(self, parallel: bool) -> Any:
        space = ms.space_generator.PostOrderApply
        if self._is_gpu:
            return space(sch_rules="cuda", postprocs="cuda", mutator_probs={})
        rule = ms.schedule_rule
        jobs = 16 if parallel else -1
        inline = rule.AutoInline(
            into_producer=False,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=True,
            require_injective=True,
            require_ordered=True,
            disallow_op=["tirx.exp"],
        )
        tiling = rule.MultiLevelTiling(
            "SSRSRS",
            max_innermost_factor=64,
            reuse_write=rule.ReuseType(req="may", levels=[1, 2], scope="global"),
        )
        unroll = rule.ParallelizeVectorizeUnroll(
            max_jobs_per_core=jobs,
            max_vectorize_extent=64,
            unroll_max_steps=[0, 16, 64, 512],
            unroll_explicit=True,
        )
        split = rule.AddRFactor(max_jobs_per_core=16, max_innermost_factor=64)
        rules = [rule.InlineConstantScalars(), inline, *([split] if parallel else [])]
        return space(
            sch_rules=[*rules, tiling, unroll, rule.RandomComputeLocation()],
            postprocs="llvm",
            mutator_probs={},
        )

    def _pool(self) -> list[BuiltSchedule]:
        """New orders: some at random, the others changed from the fastest."""
        good = [c for c in self._measured if c.seconds is not None]
        parents = sorted(good, key=lambda c: c.seconds or 0.0)[:_PARENTS]
        found: list[BuiltSchedule] = []
        digests = set(self._seen)
        for turn in range(_POOL * _TRIES):
            if len(found) >= _POOL:
                break
            if parents and turn % 3:
                # The fastest most often.
                parent = parents[int(self._rng.beta(1, 2) * len(parents))]
                sketch, trace = parent.sketch, self._changed(parent.plain)
            else:
                sketch = int(self._rng.integers(len(self._sketches)))
                trace = self._drawn(self._sketches[sketch])
            made = self._made(sketch, trace)
            if made is None or (name := workload.digest(made.json)) in digests:
                continue
            digests.add(name)
            found.append(made)
        return found

    def _drawn(self, sketch: Any) -> Any:
        """Leave a sketch's decisions open, but for most of a GPU's tiles."""
        trace = _with(sketch, lambda inst: False)
        tiles = {i: d for i, d in sketch.decisions.items() if _is_spatial(d)}
        if not self._is_gpu or not tiles or self._rng.random() > _BOUNDED:
            return trace
        extents = [int(np.prod([int(part) for part in tile])) for tile in tiles.values()]
        for _ in range(_DRAWS):
            drawn = [_tile(extent, self._rng) for extent in extents]
            _, virtual, threads, outer, inner = np.prod(drawn, axis=0)
            values = outer * inner
            fits = virtual <= _VIRTUAL and values <= _INNER
            fits = fits and virtual * threads * values <= _BLOCK
            if fits and _THREADS[0] <= threads <= _THREADS[1]:
                names = [hash(inst) for inst in tiles]
                chosen = dict(zip(names, drawn, strict=True))
                short = sketch.simplified(remove_postproc=True)
                kept = {i: chosen[hash(i)] for i in short.decisions if hash(i) in chosen}
                return Trace(list(short.insts), kept)
        return trace

    def _changed(self, trace: Any) -> Any:
        """Leave some decisions open, which are then taken anew."""
        decided = [hash(inst) for inst in trace.decisions]
        count = 1 if self._rng.random() < 0.6 else 2
        lost = set(self._rng.permutation(len(decided))[:count].tolist())
        open_again = {decided[i] for i in lost}
        return _with(trace, lambda inst: hash(inst) not in open_again)

    def _made(self, sketch: int, trace: Any) -> BuiltSchedule | None:
        sch = Schedule(self._mod, seed=int(self._rng.integers(1, 1 << 30)))
        try:
            trace.apply_to_schedule(sch, remove_postproc=True)
            plain = sch.trace
            plain = Trace(list(plain.insts), dict(plain.decisions.items()))
            sch.enter_postproc()
            for post in self._posts:
                if not post.apply(sch):
                    return None
        except Exception:  # an order that does not fit; TVM raises whatever its C++ threw
            return None
        return BuiltSchedule(sketch, sch.trace, plain, _row(plain), _json(sch.trace))

    def _remember(self, trace: Any, seconds: float | None) -> None:
        sch = Schedule(self._mod)
        try:
            traces.check(trace)
            Trace.apply_json_to_schedule(trace, sch)
        except Exception:  # an order of another version of TVM: it is found again or not
            return
        plain = sch.trace.simplified(remove_postproc=True)
        names = [_names(plain), *(_names(s) for s in self._sketches)]
        sketch = names[1:].index(names[0]) if names[0] in names[1:] else -1
        if sketch >= 0:
            row = _row(plain)
            self._measured.append(BuiltSchedule(sketch, sch.trace, plain, row, trace, seconds))

    def _guesses(self, pool: Sequence[BuiltSchedule]) -> npt.NDArray[np.float64]:
        """Guess the speed of each, by ridge regression on decisions within its sketch."""
        guesses = self._rng.random(len(pool)) * 1e-3
        for sketch in {c.sketch for c in pool}:
            known = [c for c in self._measured if c.sketch == sketch]
            positions = [i for i, c in enumerate(pool) if c.sketch == sketch]
            rows = [c.row for c in known] + [pool[i].row for i in positions]
            if sum(c.seconds is not None for c in known) < 8 or len({len(r) for r in rows}) > 1:
                good = [-np.log(c.seconds) for c in known if c.seconds is not None]
                fallback = max(good, default=0.0)
                for i in positions:
                    guesses[i] += fallback
                continue
            for i, guess in zip(positions, _fitted(known, np.stack(rows)), strict=True):
                guesses[i] += guess
        return guesses


def _with(trace: Any, keeps: Any) -> Any:
    """Return a trace with some of its decisions only, and without the last steps."""
    short = trace.simplified(remove_postproc=True)
    return Trace(list(short.insts), {i: d for i, d in short.decisions.items() if keeps(i)})


def _is_spatial(decision: Any) -> bool:
    """Whether a decision is a tile of blocks, virtual threads, threads, and two loops inside."""
    return hasattr(decision, "__len__") and len(decision) == 5


def _tile(extent: int, rng: np.random.Generator) -> list[int]:
    """Split an axis, threads and blocks taking most of it."""
    inner = [_divisor(extent, 4, rng)]
    left = extent // inner[0]
    for most in (4, 2, 256):
        inner.append(_divisor(left, most, rng))
        left //= inner[-1]
    last, outer, virtual, threads = inner
    return [left, virtual, threads, outer, last]


def _divisor(number: int, most: int, rng: np.random.Generator) -> int:
    return int(rng.choice([d for d in range(1, min(number, most) + 1) if number % d == 0]))


def _names(trace: Any) -> list[str]:
    return [str(inst.kind.name) for inst in trace.insts]


def _row(trace: Any) -> npt.NDArray[np.float64]:
    """Decisions as numbers: sizes of tiles by their logarithm, choices as they are."""
    numbers: list[float] = []
    decisions = {hash(i): d for i, d in trace.decisions.items()}
    for inst in trace.insts:
        decision = decisions.get(hash(inst))
        if decision is None:
            continue
        if hasattr(decision, "__len__"):
            numbers += [float(np.log2(max(1, int(d)))) for d in decision]
        else:
            numbers.append(float(int(decision)))
    return np.array(numbers)


def _fitted(
    known: Sequence[BuiltSchedule], rows: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Learn from what is known, which the first rows are of, and guess the others."""
    speeds = np.array([np.nan if c.seconds is None else -np.log(c.seconds) for c in known])
    good = np.isfinite(speeds)
    # What failed counts as slower than all that ran.
    wanted = np.where(good, speeds, speeds[good].min() - 0.5)
    scaled = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    wide = np.random.default_rng(1).standard_normal((rows.shape[1], _WIDE))
    lifted = np.concatenate(
        [scaled, scaled**2, np.maximum(scaled @ wide / np.sqrt(rows.shape[1]), 0)], axis=1
    )
    first = lifted[: len(known)]
    square = first.T @ first + 2.0 * np.eye(first.shape[1])
    weights = np.linalg.solve(square, first.T @ (wanted - wanted.mean()))
    found: npt.NDArray[np.float64] = lifted[len(known) :] @ weights + wanted.mean()
    return found


def _json(trace: Any) -> Any:
    return _plain(trace.as_json())


def _plain(value: Any) -> Any:
    """Return what TVM gives as JSON in Python's own types."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "value"):
        return value.value
    return [_plain(v) for v in value]


if __name__ == "__main__":
    serve(ScheduleSearch())
