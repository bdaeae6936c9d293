"""The right answer: two independent evaluations of the source model, and a third to vote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.convert.lower.tabular import misread
from edgeinfer.convert.passes.fuse_mish import FuseSoftplus
from edgeinfer.convert.passes.interface import input_specs, output_specs
from edgeinfer.convert.sources.noise import draws
from edgeinfer.convert.sources.original import LITERT, Original
from edgeinfer.convert.verify.agreement import (
    HALF_STEP,
    HALF_ULP,
    STEPPED,
    agreement,
    as_real,
    distances,
    leaves_float32,
    may_widen,
    one_rounding,
    quantized_outputs,
    unlike,
)
from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.choosing import DRAW, chooses, shaken
from edgeinfer.convert.verify.decided import DRAWS, moved_by, nearly, undecided
from edgeinfer.convert.verify.locate import disputed_node, save_for_engines
from edgeinfer.convert.verify.silences import Role, Silences
from edgeinfer.convert.verify.witness import (
    TIME_LIMIT_S,
    Abstains,
    Broke,
    LiteRt,
    LiteRtInPieces,
    Numpy,
    OnnxRuntime,
    OpenVino,
    Tried,
    Unending,
    Witness,
)
from edgeinfer.errors import RunError, VerifyError
from edgeinfer.metrics import BUDGETS, OutputMetrics, check, compare, worst
from edgeinfer.types import Array, Feeds, TensorSpec

_ROUNDING = (
    "single and double precision part on some input although every node agrees: rounding grows in "
    "this model, and budgets are widened there"
)


_LACKING = ("not supported", "NumDimensions() == 4")
"""Words of kernels of ONNX Runtime for forms that they have not: dilations with automatic padding,
three axes of an LRN. Other failures may be the model's own, of which NumPy takes more."""


class Oracles:
    """The oracles of one source model; close them as soon as the answers are there.

    Oracle A is ONNX Runtime without graph optimisation, oracle B an evaluation in float64, op by
    op, by ONNX's definitions. Oracle B judges and oracle A confirms it: its kernels are an
    artifact's as well, and have faults of their own. Where they disagree at a node, that node's
    definition has to come out the same with one rounding after each operator; otherwise the same
    evaluation in the model's own types and OpenVINO vote.

    Models that round inside (integers that stand for real numbers) are answered by oracle A, which
    rounds where they say so. Where ONNX Runtime is not installed, ONNX's own operators are
    oracle A.

    Of a model that was read from another format, oracle A is that format's engine on the file
    itself. All others then share what the reader made of it, so none can outvote it. Operators that
    the engine lacks are computed by their definitions, next to it, and the notes say so.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        seconds: float = 20.0,
        original: Original | None = None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """Open them.

        Args:
            model: as read, before any pass; it is not modified.
            original: the file it was read from, where its own engine is to answer.
            time_limit_s: that one run of an oracle may take; longer ones end the conversion.
            seconds: CPU time oracle B may take for all vectors; those left have one oracle, and the
                notes say so.

        Raises:
            VerifyError: the model is random, so no answer is the right one.
        """
        if drawn := draws(model):
            raise VerifyError(
                f"the model draws random numbers ({', '.join(drawn)}): no two runs give the same, "
                "so it cannot be verified; say what takes their place: --random input|zero|SEED"
            )
        self._model = model
        self._original = original
        self._steps = quantized_outputs(model) if original else frozenset[str]()
        engine = "onnxruntime" if has_onnxruntime() else "onnx operators"
        self._first = engine if original is None else LiteRt.name
        if original is not None and original.custom:
            self._first = LiteRtInPieces.name
        # ONNX's own operators have faults that are known, and are slow: they only confirm.
        confirms = self._first == "onnx operators"
        self._trial = "trial" if confirms else self._first
        self._confirms = confirms
        self._budget = agreement(model, original)
        rounds = original is not None or self._budget in STEPPED
        self._taken = self._first if rounds and not confirms else "float64"
        self._is_half = self._budget == BUDGETS["fp16"]
        self._chooses = chooses(model)
        self._folder = Scratch()
        self._path = save_for_engines(model, self._folder.path)
        self._witnesses: dict[str, Witness | str] = {}
        self._silences = Silences()
        self._makers: dict[str, Callable[[], Witness]] = {
            "onnxruntime": lambda: _onnxruntime(model, self._path, time_limit_s),
            "onnx operators": lambda: Numpy(model, wide=False, own=False, seconds=seconds),
            "trial": lambda: Tried(model, time_limit_s),
            "shaken": lambda: self._shaken(self._folder.path / "shaken", time_limit_s),
            # What is right must not hang on the time there is.
            "float64": lambda: Numpy(
                FuseSoftplus()(model.clone()).model,
                wide=True,
                seconds=float("inf") if confirms else seconds,
                limit_s=time_limit_s,
            ),
            "definitions": lambda: Numpy(model, wide=True, rounded=True, seconds=seconds),
            "sums": lambda: Numpy(model, wide=True, rounded=True, summed=True, seconds=seconds),
            "onnx reference": lambda: Numpy(model, wide=False, seconds=seconds),
            "openvino": lambda: OpenVino(self._path, time_limit_s),
        }
        if original is not None:
            runs = LiteRtInPieces if original.custom else LiteRt
            self._makers[runs.name] = lambda: runs(original, self._folder.path, time_limit_s)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, without those that have an initializer."""
        return input_specs(self._model)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs."""
        return output_specs(self._model)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run oracle A, or oracle B where A does not take the model at all.

        Where ONNX Runtime is not installed, it is our evaluation in the model's own types.

        Raises:
            RunError: the model refuses these inputs.
            VerifyError: it does not end on them; nor may it on others, and each would take as long.
        """
        try:
            return self._ask(self._trial, feeds)
        except Unending as a:
            raise VerifyError(f"the model does not end: {a}") from a
        except Abstains as a:
            if self._trial == "trial":
                raise RunError(f"no oracle can run the model: {a}{self._hint}") from a
            if self._original is None and isinstance(self._witnesses.get(self._trial), str):
                try:
                    return self._ask("float64", feeds)
                except Abstains as b:
                    raise RunError(f"no oracle can run the model: {self._first}: {a}; {b}") from b
            raise RunError(str(a)) from a

    def pass_over(self, why: str) -> bool:
        """Let the definitions alone answer where ONNX Runtime says in a run what it lacks.

        Returns:
            Whether that is any change.
        """
        is_open = not isinstance(self._witnesses.get(self._first), str)
        lacks = any(words in why for words in _LACKING)
        if self._first != "onnxruntime" or not is_open or not lacks:
            return False
        self._dismiss(self._first)
        self._witnesses[self._first] = why
        return True

    def expected(self, vectors: Sequence[Vector]) -> Expected:
        """Run both oracles on each vector and let others vote where they disagree.

        Raises:
            VerifyError: no oracle can run a vector.
        """
        firsts = [self._try(self._first, v) for v in vectors]
        masks = [self._undecided(v, first) for v, first in zip(vectors, firsts, strict=True)]
        shaky = [self._shaky(v, first) for v, first in zip(vectors, firsts, strict=True)]
        self._dismiss("shaken")
        # Its copy of the weights need not lie next to what the evaluation takes.
        self._dismiss(self._first)
        answers = [self._answer(v, first) for v, first in zip(vectors, firsts, strict=True)]
        answers = [
            replace(self._rounded(a), undecided=m, shaky=s)
            for a, m, s in zip(answers, masks, shaky, strict=True)
        ]
        against = [self._contradiction(v, a) for v, a in zip(vectors, answers, strict=True)]
        notes = list(dict.fromkeys(a.note for a in answers if a.note))
        alone = [a for a in answers if len(a.agreed) < 2]
        if self._original is not None and self._original.custom:
            notes.insert(0, in_pieces(self._original.custom))
        if hanging := sum(bool(m) for m in masks):
            notes.append(
                f"on {hanging} of {len(answers)} vectors rounding alone decides some elements "
                "(scores that are equal but for their last bits); those are not judged"
            )
        if alone:
            notes.insert(0, f"{len(alone)} of {len(answers)} vectors have one oracle only")
        silences = self._silences
        return Expected(
            tuple(answers),
            (*notes, *silences.lines),
            tuple(silences.faults),
            tuple(c for c in against if c),
        )

    def is_decided(self, feeds: Feeds) -> bool:
        """Whether no element of the answer hangs on rounding alone."""
        if not self._chooses:
            return True
        vector = Vector(dict(feeds), "")
        return not self._undecided(vector, self._try(self._trial, vector, "near"), self._trial)

    def _undecided(
        self, vector: Vector, first: dict[str, Array] | str, name: str = ""
    ) -> dict[str, Array]:
        """Ask again with inputs that hardly differ, where the model chooses among scores."""
        if not self._chooses or isinstance(first, str):
            return {}
        near = (Vector(nearly(vector.feeds, seed), "") for seed in range(DRAWS))
        draws = [self._try(name or self._first, v, "near") for v in near]
        return undecided(first, [d for d in draws if not isinstance(d, str)])

    def _shaky(self, vector: Vector, first: dict[str, Array] | str) -> dict[str, Array]:
        """Ask with scores that hardly differ, where the model chooses among them."""
        if not self._chooses or isinstance(first, str):
            return {}
        draws = (Vector({**vector.feeds, DRAW: np.array(n, np.float32)}, "") for n in count())
        return moved_by(first, (self._try("shaken", v, "shaken") for v in draws))

    def _rounded(self, answer: Answer) -> Answer:
        """Let valid evaluations of a model that rounds be one of its roundings apart."""
        share = HALF_ULP if self._is_half else HALF_STEP if self._budget in STEPPED else 0.0
        if not share:
            return answer
        # What one oracle alone answers has no spread, and is rounded all the same.
        apart = {
            n: [*filter(None, [answer.spread.get(n)]), *one_rounding(output, share)]
            for n, output in answer.outputs.items()
        }
        return replace(answer, spread={n: worst(found) for n, found in apart.items() if found})

    def close(self) -> None:
        """Free sessions and temporary files; a second call does nothing."""
        for witness in self._witnesses.values():
            if not isinstance(witness, str):
                witness.close()
        self._witnesses.clear()
        self._makers.clear()
        self._folder.cleanup()

    def __enter__(self) -> Oracles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _engine(self) -> str:
        return (
            "LiteRT" if self._first == LiteRt.name else "LiteRT, with NumPy for custom operators,"
        )

    @property
    def _hint(self) -> str:
        """Where there may be another oracle."""
        more = "; ONNX Runtime may: pip install 'edgeinfer[convert]'"
        return more if self._confirms else ""

    def _ask(self, name: str, feeds: Feeds) -> dict[str, Array]:
        if name not in self._witnesses:
            if name not in self._makers:
                raise Abstains("the oracles are closed")
            try:
                self._witnesses[name] = self._makers[name]()
            except Abstains as e:
                self._witnesses[name] = str(e)
                raise
        witness = self._witnesses[name]
        if isinstance(witness, str):
            raise Abstains(witness)
        return witness.run(feeds)

    def _try(self, name: str, vector: Vector, role: Role = "answer") -> dict[str, Array] | str:
        """Return the outputs, or why there are none, which is counted."""
        try:
            return self._ask(name, vector.feeds)
        except Abstains as e:
            self._silences.add(role, name, str(e), broke=isinstance(e, Broke))
            return str(e)

    def _shaken(self, folder: Path, time_limit_s: float) -> Witness:
        moved = shaken(self._model)
        folder.mkdir(exist_ok=True)
        try:
            return _onnxruntime(moved, save_for_engines(moved, folder), time_limit_s)
        except Abstains as e:
            # What takes the model itself takes this one too, or a node of it is written wrongly.
            broke = has_onnxruntime() and not isinstance(self._witnesses.get(self._first), str)
            why = f"{e}; NumPy answers instead"
            self._silences.add("answer", "onnxruntime with moved scores", why, broke=broke)
            return Numpy(moved, wide=False, seconds=20.0, limit_s=time_limit_s)

    def _dismiss(self, name: str) -> None:
        """Free a witness; it is opened again when it is next asked."""
        witness = self._witnesses.get(name)
        if witness is not None and not isinstance(witness, str):
            witness.close()
            del self._witnesses[name]

    def _answer(self, vector: Vector, first: dict[str, Array] | str) -> Answer:
        if self._original is not None and isinstance(first, str):
            raise VerifyError(
                f"LiteRT cannot run the file itself, so nothing says what is right: {first}"
            )
        said: dict[str, dict[str, Array]] = {}
        silent: dict[str, str] = {}
        both = {self._first: first, "float64": self._try("float64", vector)}
        for name, result in both.items():
            if isinstance(result, str):
                silent[name] = result
            else:
                said[name] = result
        if not said:
            reasons = "; ".join(f"{name}: {why}" for name, why in silent.items())
            raise VerifyError(f"no oracle can run vector {vector.origin!r}: {reasons}{self._hint}")
        if silent:
            ((name, outputs),) = said.items()
            ((absent, why),) = silent.items()
            return Answer(outputs, name, (name,), {}, f"one oracle only: no {absent}: {why}")
        overflown = self._overflown(vector, said)
        answer = self._judged(vector, said)
        return replace(answer, overflown=overflown) if overflown else answer

    def _overflown(self, vector: Vector, said: dict[str, dict[str, Array]]) -> dict[str, Array]:
        """Return what float64 says where float32 overflows inside, and have it say so no more.

        The definitions rounded to float32 have to overflow there too: a kernel's own fault is none.
        """
        ours, wide = said[self._first], said["float64"]
        suspects = {n: leaves_float32(ours[n], wide[n]) for n in wide if n in ours}
        suspects = {n: m for n, m in suspects.items() if m is not None and m.any()}
        if not suspects:
            return {}
        single = self._try("definitions", vector, "overflow")
        if isinstance(single, str):
            return {}
        found = {}
        for name, mask in suspects.items():
            left = mask & ~np.isfinite(single[name])
            if left.any():
                found[name] = np.where(left, wide[name], np.nan)
                said["float64"] = wide = {**wide, name: np.where(left, ours[name], wide[name])}
        return found

    def _judged(self, vector: Vector, said: dict[str, dict[str, Array]]) -> Answer:
        spread = distances(said[self._first], said["float64"])
        if self._same(spread) or self._steps_agree(said):
            spread = self._by_rounding(vector, said, spread)
            return Answer(said[self._taken], self._taken, tuple(said), spread)
        if self._original is not None:
            return self._doubted(vector, said)
        return self._vote(vector, said)

    def _contradiction(self, vector: Vector, answer: Answer) -> str:
        """Say which output the user expects otherwise; empty when none is."""
        for name, value in vector.given.items():
            if breaches := check(compare(value, answer.outputs[name]), self._budget):
                return (
                    f"{vector.origin}: output {name!r} of the source model is another than "
                    f"expected: {breaches[0]}"
                )
        return ""

    def _same(self, distance: dict[str, OutputMetrics]) -> bool:
        return not any(check(m, self._budget) for m in distance.values())

    def _steps_agree(self, said: dict[str, dict[str, Array]]) -> bool:
        """Whether integers that stand for real numbers are as close as those would have to be."""
        if not self._steps:
            return False
        ours, theirs = (
            {n: as_real(n in self._steps, a) for n, a in s.items()} for s in said.values()
        )
        return self._same(distances(ours, theirs))

    def _doubted(self, vector: Vector, said: dict[str, dict[str, Array]]) -> Answer:
        """Tell rounding that grows from a reader that is wrong.

        Raises:
            VerifyError: the graph that was read computes something else than the file.
        """
        ours, theirs = said[self._first], said["float64"]
        apart = distances(ours, theirs)
        for name in ("sums", "onnxruntime", "onnx reference", "openvino"):
            third = self._try(name, vector, "vote")
            if isinstance(third, str):
                continue
            near = distances(ours, third)
            grown = distances(theirs, third)
            if self._same(near) or self._steps_agree({"": ours, name: third}):
                return _confirmed(ours, name, "", apart, near, self._first)
            if not any(check(m, self._budget.widened(grown[n])) for n, m in apart.items()):
                return Answer(ours, self._first, (self._first, "float64"), apart, _ROUNDING)
        worst = next(
            f"output {n!r}: {b[0]}" for n, m in apart.items() if (b := check(m, self._budget))
        )
        raise VerifyError(
            f"{vector.origin}: the graph that was read from the file does not compute what "
            f"{self._engine} computes from the file itself: {worst}; this is a fault of "
            "edgeinfer's reader"
        )

    def _vote(self, vector: Vector, said: dict[str, dict[str, Array]]) -> Answer:
        """Ask further witnesses until one sides with oracle A or against it.

        ONNX's own evaluation shares operators with ours, so its vote counts for ONNX Runtime
        only, and not for ONNX's own operators, which it shares as well; another engine's counts
        for either.
        """
        first = self._first
        ours, theirs, taken = said[first], said["float64"], said[self._taken]
        node = disputed_node(self._model, vector.feeds, self._budget)
        where = f" at {node}" if node else ""
        apart = distances(ours, theirs)
        judges = self._taken == "float64"
        if node == "":
            apart = self._by_rounding(vector, said, apart)
        if judges and node and (spread := self._defined(vector, theirs)) is not None:
            note = f"{first} alone disagrees{where}; its definition in float64 judges"
            return Answer(theirs, "float64", ("float64", "definitions"), spread, note)
        for name in ("onnx reference", "openvino")[self._confirms :]:
            third = self._try(name, vector, "vote")
            if isinstance(third, str):
                continue
            if self._same(distances(ours, third)):
                if judges and node == "" and not unlike(apart):
                    return Answer(theirs, "float64", (first, name), apart, _ROUNDING)
                return _confirmed(ours, name, node, apart, distances(ours, third), first)
            if name == "openvino" and self._same(distances(theirs, third)):
                note = f"{first} alone disagrees{where}; openvino sides with float64"
                # Where every node agrees it is rounding that has grown, near as one engine may be.
                spread = apart if node == "" else distances(theirs, third)
                return Answer(theirs, "float64", ("float64", "openvino"), spread, note)
        if node == "" and not unlike(apart):
            return Answer(taken, self._taken, (first, "float64"), apart, _ROUNDING)
        note = f"the oracles disagree{where} and nobody could settle it; {self._taken} is taken"
        return Answer(taken, self._taken, (self._taken,), {}, note)

    def _defined(self, vector: Vector, theirs: dict[str, Array]) -> dict[str, OutputMetrics] | None:
        """Return how far rounding moves what float64 says: after each operator, and in sums.

        None where the first moves it out of the budget, so that nothing is confirmed.
        """
        rounded = self._try("definitions", vector, "defined")
        if isinstance(rounded, str):
            return None
        spread = distances(theirs, rounded)
        if not self._same(spread):
            return None
        sums = self._try("sums", vector, "rounding")
        if isinstance(sums, str):
            return spread
        # The few roundings of a short output may cancel by chance; those of sums are all there.
        return {n: worst([m, spread[n]]) for n, m in distances(theirs, sums).items()}

    def _by_rounding(
        self, vector: Vector, said: dict[str, dict[str, Array]], apart: dict[str, OutputMetrics]
    ) -> dict[str, OutputMetrics]:
        """Return how far rounding moves what float64 says, where that may widen a budget.

        Of float32 sums in no engine's order: an engine's kernels are others on another processor,
        and the same model would be refused there. What a source rounds to halves is rounded then.
        """
        plain = self._budget
        if plain in STEPPED or unlike(apart):
            return apart
        if not any(may_widen(plain, each) for each in apart.values()):
            return apart
        sums = self._try("sums", vector, "rounding")
        return apart if isinstance(sums, str) else distances(said["float64"], sums)


def _onnxruntime(model: ir.Model, path: Path, time_limit_s: float) -> Witness:
    """ONNX Runtime, where none of its kernels is known to be wrong about the model."""
    for node in model.graph.all_nodes():
        if fault := misread(node):
            raise Abstains(f"its kernel of {node.op_type} is wrong: {fault}")
    return OnnxRuntime(path, time_limit_s)


def in_pieces(names: Sequence[str]) -> str:
    """Say why LiteRT does not run a file as it is, and what was done.

    Args:
        names: the custom operators that are computed next to it.
    """
    kept = [n for n in names if n not in LITERT]
    own = [n for n in names if n in LITERT]
    why = []
    if kept:
        why.append(f"LiteRT has no kernels for {', '.join(kept)}, so it cannot run the file")
    if own:
        why.append(f"LiteRT's kernel of {own[0]} may leave old memory behind its last box")
    return (
        f"{'; '.join(why)}; it ran the other operators, and the named were computed in NumPy by "
        "their definitions"
    )


def _confirmed(
    ours: dict[str, Array],
    witness: str,
    node: str | None,
    apart: dict[str, OutputMetrics],
    spread: dict[str, OutputMetrics],
    first: str,
) -> Answer:
    """Return oracle A's answer, confirmed by a third witness against float64."""
    both = (first, witness)
    if node != "":
        where = f" at {node}" if node else ""
        note = f"float64 alone disagrees{where}; {witness} sides with {first}"
        return Answer(ours, first, both, spread, note)
    # Every node agrees on equal inputs, so what lies between is rounding that has grown; another
    # order of sums is off by as much, and only this distance says how much that is.
    return Answer(ours, first, both, apart, _ROUNDING)
