from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.llm.backend import INPUT, LlmBackend, signature
from edgeinfer.backends.tvm.library import cpu_features
from edgeinfer.convert.llm import oracle
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.lower.tvm.machines import MACHINES, machine
from edgeinfer.errors import ClosedError, InputError, LoadError, UsageError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.step import StepBatch
from edgeinfer.types import Array
from tests.backends.llm.small import CONFIG, batch, opened, stored, weights

KINDS = {"": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q4_1", "token_embd": "Q8_0"}
BEST = ("x86-64-v4-vnni", "x86-64-v3-vnni", "x86-64-v3")
IDS = [int(i) for i in np.random.default_rng(1).integers(0, CONFIG.vocab, 80)]


def read(folder: Path, cache: str = "float16") -> Array:
    """Logits of all tokens, read at once."""
    executor, table = opened(folder, CONFIG, cache=cache)
    logits: Array = executor.step(batch(table, [(0, IDS, 0, len(IDS))])).copy()
    executor.close()
    return logits


@pytest.mark.parametrize("cache", ["float16", "uint8"])
def test_logits_are_near_those_in_float32(folder: Path, cache: str) -> None:
    right = Oracle(CONFIG, stored(CONFIG, KINDS)).logits([np.array(IDS)])[0]
    found = read(folder, cache)
    error = np.linalg.norm(found - right) / np.linalg.norm(right)
    # Vectors have 8 bits: a rounding each of about 0.4 %, ten of them on the way.
    assert error < (0.05 if cache == "float16" else 0.07)
    assert (found.argmax(-1) == right.argmax(-1)).mean() > 0.85


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Path:
    """The same decoder with weights of float32, which nothing is rounded for."""
    pytest.importorskip("tvm")
    from edgeinfer.convert.llm import variant
    from edgeinfer.convert.llm.reading import Reading

    place = tmp_path_factory.mktemp("exact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_CACHE", str(kernels))
        reading, kinds = Reading((1, 2), (1, 1), (0, 0)), ("float32", "uint8", "uint4")
        where = machine(next(n for n in BEST if set(MACHINES[n].features) <= cpu_features()))
        variant.write(CONFIG, weights(CONFIG), where, place, reading=reading, caches=kinds)
    return place


def in_cache(x: Array, levels: int) -> Array:
    """What is left of keys or values (tokens, heads, size) in a cache of few levels."""
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    scale = ((high - low) / np.float32(levels))[..., None]
    zero = np.rint(-low[..., None] / scale)
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, levels) - zero) * scale)


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "levels"), [("float32", 0), ("uint8", 255), ("uint4", 15)])
def test_nothing_but_the_cache_is_rounded(
    exact: Path, cache: str, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = oracle.attended

    def attended(q: Array, k: Array, v: Array, config: LlmConfig, window: int) -> Array:
        if levels:
            k, v = in_cache(k, levels), in_cache(v, levels)
        return whole(q, k, v, config, window)

    monkeypatch.setattr(oracle, "attended", attended)
    right = Oracle(CONFIG, weights(CONFIG)).logits([np.array(IDS)])[0]
    found = read(exact, cache)
    error = np.linalg.norm(found - right, axis=-1) / np.linalg.norm(right, axis=-1)
    # Where a number lies between two levels the last bit decides: a few rows may be off by more.
    assert np.median(error) < (5e-3 if levels else 1e-5)


def test_states_are_what_the_head_takes(folder: Path) -> None:
    tensors = stored(CONFIG, KINDS)
    model = Oracle(CONFIG, tensors)
    (state,) = model.states([np.array(IDS)])
    scale = np.sqrt(np.square(state).mean(-1, keepdims=True) + np.float32(CONFIG.norm_epsilon))
    right = state / scale * tensors["output_norm"].float32()
    executor, table = opened(folder, CONFIG)
    found = executor.states(batch(table, [(0, IDS, 0, len(IDS))])).copy()
    assert np.linalg.norm(found - right) / np.linalg.norm(right) < 0.05
    parts = [executor.states(batch(table, [(1, [t], i, 1)])).copy() for i, t in enumerate(IDS)]
    assert np.array_equal(np.concatenate(parts), found)
    executor.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cache", ["float16", "uint8", "uint4"])
def test_bits_depend_on_a_sequence_alone(folder: Path, cache: str, threads: int) -> None:
    """Random schedules: chunks, company, pages and threads change nothing."""
    whole = read(folder, cache)
    rng = np.random.default_rng(7)
    for _ in range(12):
        executor, table = opened(folder, CONFIG, cache=cache, threads=threads)
        done = dict.fromkeys(range(int(rng.integers(1, 8))), 0)
        while done:
            parts = []
            for sequence in list(done):
                if rng.random() < 0.6:
                    count = min(int(rng.integers(1, 9)), len(IDS) - done[sequence])
                    start = done[sequence]
                    parts.append((sequence, IDS[start : start + count], start, count))
            if not parts:
                continue
            logits = executor.step(batch(table, parts))
            at = 0
            for sequence, ids, start, count in parts:
                assert np.array_equal(logits[at : at + count], whole[start : start + count])
                at += len(ids)
                done[sequence] += count
                if done[sequence] == len(IDS):
                    del done[sequence]
        executor.close()


@pytest.mark.parametrize("counts", [[80], [1], [7], [3, 1, 6, 2, 5]])
def test_each_token_is_in_one_tile_of_attention(folder: Path, counts: list[int]) -> None:
    executor, _ = opened(folder, CONFIG)
    owner = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    found = executor._tiles(owner)
    sizes = sorted(found, reverse=True)
    if counts == [80]:
        assert found[sizes[0]] == 80 // sizes[0]
    else:
        assert not any(found[size] for size in sizes if size > 2), "threads would lack items"
    covered = []
    for size, number in found.items():
        tokens = executor._shared[f"tiles{size}"][:number, None] + np.arange(size)
        assert (owner[tokens] == owner[tokens[:, :1]]).all()
        assert (np.diff(tokens[:, 0]) < 0).all(), "those that see the most come first"
        covered += tokens.reshape(-1).tolist()
    assert sorted(covered) == list(range(len(owner)))
    executor.close()


def test_what_lies_behind_a_sequence_does_not_matter(folder: Path) -> None:
    """A cache full of NaN and a rejected draft leave no trace."""
    whole = read(folder)
    executor, table = opened(folder, CONFIG)
    nothing = np.full(executor.page_bytes, 0xFF, np.uint8)
    for page in range(executor.pages):
        executor.write_page(page, nothing)
    executor.step(batch(table, [(0, IDS[:10], 0, 0)]))
    executor.step(batch(table, [(0, [5] * 9, 10, 0)]))
    found = executor.step(batch(table, [(0, IDS[10:], 10, len(IDS) - 10)]))
    assert np.array_equal(found, whole[10:])
    executor.close()


def test_a_copied_page_goes_on_like_its_source(folder: Path) -> None:
    whole = read(folder)
    executor, table = opened(folder, CONFIG)
    executor.step(batch(table, [(0, IDS[:20], 0, 0)]))
    fork = table.copy()
    fork[1, 0] = table[0, 0]
    executor.copy_page(int(table[0, 1]), int(table[1, 1]))
    kept = np.zeros(executor.page_bytes, np.uint8)
    executor.read_page(int(table[0, 1]), kept)
    parts = [(0, [1, 2, 3], 20, 0), (1, IDS[20:], 20, 60)]
    assert np.array_equal(executor.step(batch(fork, parts)), whole[20:])
    # The first sequence's page as it was, at another place.
    executor.write_page(int(table[2, 1]), kept)
    fork[2, 0] = table[0, 0]
    assert np.array_equal(executor.step(batch(fork, [(2, IDS[20:], 20, 60)])), whole[20:])
    executor.close()


def test_given_embeddings_take_the_place_of_tokens(folder: Path) -> None:
    whole = read(folder)
    embedding = stored(CONFIG, KINDS)["token_embd"].float32()
    executor, table = opened(folder, CONFIG)
    plain = batch(table, [(0, IDS, 0, len(IDS))])
    places = np.array([3, 4, 30], np.int32)
    tokens = plain.tokens.copy()
    tokens[places] = 0
    given = embedding[[IDS[i] for i in places]]
    mixed = StepBatch(
        *(tokens, plain.positions, plain.owner, plain.table, plain.rows),
        embedded=places,
        embeddings=given,
    )
    assert np.array_equal(executor.step(mixed), whole)
    executor.close()


def test_what_is_outside_is_refused_and_listed(folder: Path) -> None:
    executor, table = opened(folder, CONFIG)
    good = batch(table, [(0, [1, 2], 0, 1)])
    wrong = StepBatch(
        tokens=np.array([1, CONFIG.vocab], np.int32),
        positions=np.array([0, 96], np.int32),
        owner=good.owner,
        table=good.table,
        rows=np.array([2], np.int32),
    )
    with pytest.raises(InputError) as error:
        executor.step(wrong)
    for part in ("tokens beyond 0 to 119", "positions beyond 0 to 95", "rows beyond 0 to 1"):
        assert part in str(error.value)
    holes = table.copy()
    holes[0, 0] = -1
    with pytest.raises(InputError, match="table with holes"):
        executor.step(batch(holes, [(0, [1], 20, 1)]))
    beyond = table.copy()
    beyond[0, 0] = executor.pages
    with pytest.raises(InputError, match="pages beyond 0 to 47"):
        executor.step(batch(beyond, [(0, [1], 0, 1)]))
    with pytest.raises(InputError, match="97 tokens of 1 to 96"):
        executor.step(batch(table, [(0, [1] * 97, 0, 1)]))
    assert executor.step(good).shape == (1, CONFIG.vocab)
    executor.close()
    executor.close()
    with pytest.raises(ClosedError):
        executor.step(good)


def test_a_step_may_want_no_row(folder: Path) -> None:
    executor, table = opened(folder, CONFIG)
    assert executor.step(batch(table, [(0, IDS[:5], 0, 0)])).shape == (0, CONFIG.vocab)
    found = executor.step(batch(table, [(0, IDS[5:], 5, 75)]))
    assert np.array_equal(found, read(folder)[5:])
    executor.close()


def test_an_unknown_cache_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cache 'uint2': known: float16, uint8"):
        opened(folder, CONFIG, cache="uint2")


def test_the_backend_gives_the_last_logits(folder: Path) -> None:
    specs = signature(CONFIG)
    artifact = Artifact("llm", folder / "llm.json", specs[:1], specs[1:])
    executable = LlmBackend().load(artifact, LoadOptions(threads=1))
    found = executable.run({INPUT.name: np.array(IDS, np.int32)})["logits"]
    assert np.array_equal(found, read(folder)[-1])
    with pytest.raises(InputError, match="tokens from 0 to 119"):
        executable.run({INPUT.name: np.array([120], np.int32)})
    executable.close()
    with pytest.raises(ClosedError):
        executable.run({INPUT.name: np.array(IDS, np.int32)})


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LoadError, match="lies outside the file"):
        opened(tmp_path, CONFIG)


def test_the_likeliest_token_is_known_with_the_logits(folder: Path) -> None:
    executor, table = opened(folder, CONFIG, threads=2)
    logits = executor.step(batch(table, [(0, IDS, 0, len(IDS)), (1, IDS[:3], 0, 2)]))
    assert executor.best is not None
    assert executor.best.tolist() == logits.argmax(axis=1).tolist()
    logits = executor.step(batch(table, [(1, IDS[3:4], 3, 1)]))
    assert executor.best.tolist() == logits.argmax(axis=1).tolist()
    # Of a row that is not finite there is no largest.
    poisoned = np.zeros((1, CONFIG.hidden), np.float32)
    poisoned[0, 0] = np.nan
    tokens, positions, owner, rows = (np.array([v], np.int32) for v in (5, 0, 2, 0))
    given = StepBatch(tokens, positions, owner, table, rows)
    given.embedded, given.embeddings = np.zeros(1, np.int32), poisoned
    executor.step(given)
    assert executor.best.tolist() == [-1]
    executor.close()


def test_a_batch_of_other_integers_is_refused(folder: Path) -> None:
    executor, table = opened(folder, CONFIG)
    good = batch(table, [(0, [1, 2], 0, 1)])
    wide: Any = good.tokens.astype(np.int64)
    with pytest.raises(InputError, match="int64 where int32"):
        executor.step(StepBatch(wide, good.positions, good.owner, good.table, good.rows))
    executor.close()


def test_arrays_that_come_again_are_looked_at_again(folder: Path) -> None:
    """An engine has one set of arrays for all its usual steps."""
    executor, table = opened(folder, CONFIG)
    made = batch(table, [(0, IDS[:1], 0, 1), (1, IDS[:1], 0, 1)])
    first = executor.step(made).copy()
    made.tokens[:] = IDS[1]
    made.positions[:] = 1
    assert not np.array_equal(executor.step(made), first)
    made.tokens[0] = CONFIG.vocab
    with pytest.raises(InputError, match="tokens beyond"):
        executor.step(made)
    made.tokens[0] = 0
    made.owner = np.zeros(3, np.int32)
    with pytest.raises(InputError, match="3 owner for 2 tokens"):
        executor.step(made)
    executor.close()
