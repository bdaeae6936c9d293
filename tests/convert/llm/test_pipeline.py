from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.llm import cuda
from edgeinfer.backends.tvm import library
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert.llm import adapters, cuda_code, judge, reading, source
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.errors import InputError, NotAvailableError, SourceError, UsageError, VerifyError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.generation import Generation
from edgeinfer.llm.tape import Tape
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
from tests.backends.llm.small import CONFIG, weights
from tests.convert.llm.test_adapters import peft
from tests.convert.llm.test_gguf import f32, write

BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]


def _visible() -> list[str]:
    """The characters that byte-level tokenizers write bytes as."""
    known, more = dict(zip(BYTES, map(chr, BYTES), strict=True)), 256
    for byte in range(256):
        if byte not in known:
            known[byte] = chr(more)
            more += 1
    return [known[b] for b in range(256)]


def model(path: Path, **changes: Any) -> Path:
    """A GGUF file of a small Llama whose tokens are bytes."""
    config = CONFIG
    fields = {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden,
        "llama.block_count": config.layers,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.feed_forward_length": config.ffn,
        "llama.context_length": 256,
        "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": _visible(),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
        **changes,
    }
    tensors = weights(replace(config, vocab=256))
    return write(path, fields, {f"{n}.weight": f32(t.float32()) for n, t in tensors.items()})


def test_what_says_nothing_to_language_models_is_listed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it ignores data, labels"):
        export(model(tmp_path / "a.gguf"), data="x", labels=("y",))
    with pytest.raises(UsageError, match="calibration: it is for w4 and w8, and stored rounds"):
        export(model(tmp_path / "a.gguf"), calibration="x")
    with pytest.raises(UsageError, match="block 64: it is for w4 and w8; weights of stored"):
        export(model(tmp_path / "a.gguf"), block=64)
    with pytest.raises(UsageError, match="block 48: expected a multiple of 32"):
        export(model(tmp_path / "a.gguf"), precision="w4", block=48)
    with pytest.raises(UsageError, match="precision 'int3': of language models there are stored"):
        export(model(tmp_path / "a.gguf"), precision="int3")
    with pytest.raises(UsageError, match="target 'ios': no code of language models"):
        export(model(tmp_path / "a.gguf"), targets=["ios"])


def test_a_machine_without_kernels_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("tokenizers")
    with pytest.raises(UsageError, match="'cortex-a72': no kernels of language models"):
        export(model(tmp_path / "a.gguf"), tmp_path / "a.edge", targets=["tvm-cortex-a72"])
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_a_bundle_for_a_gpu_is_made_without_one_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(cuda, "cuda_devices", lambda: ())
    monkeypatch.setattr(cuda_code, "compiled", lambda _, arch: arch.encode())
    given: Any = {"targets": ["jetson"], "precision": "w4"}
    with pytest.raises(VerifyError, match=r"its code is for NVIDIA GPUs \(sm_87, sm_110\)"):
        export(model(tmp_path / "a.gguf"), tmp_path / "a.edge", **given)
    assert not (tmp_path / "a.edge").exists()
    export(model(tmp_path / "a.gguf"), tmp_path / "a.edge", unverified=True, **given)
    with Bundle.open(tmp_path / "a.edge") as bundle:
        (variant,) = bundle.manifest.variants
        names = {Path(f.path).name for f in variant.files}
    assert {"kernels.sm_87.cubin", "kernels.sm_110.cubin", "weights.bin", "tape.json"} <= names
    assert variant.constraints == {"os": "linux", "arch": "aarch64", "device": "gpu"}
    assert "finds none here" in variant.unverified
    with pytest.raises(NotAvailableError, match=r"variant jetson-llm-w4.* finds none here"):
        LLM(tmp_path / "a.edge")


def test_an_unknown_tokenizer_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = model(tmp_path / "a.gguf", **{"tokenizer.ggml.pre": "martian"})
    with pytest.raises(SourceError, match=r"splitting rule 'martian' is not known; known: .*qwen2"):
        export(path, tmp_path / "a.edge")
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_limits_name_what_left_them() -> None:
    found = judge.Quality(100, 0.3, 0.8, 0.85, 13.0, 10.0)
    lines = judge.LIMITS["w4"].breaches(found)
    assert [line.split()[0] for line in lines] == ["KL", "same", "perplexity"]
    assert judge.LIMITS["w4"].breaches(judge.Quality(100, 0.1, 0.8, 0.95, 11.0, 10.0)) == []


@pytest.mark.slow
def test_a_name_in_the_working_folder_is_enough_where_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("tokenizers")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("no code of language models for this machine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "measured", _opened)
    export(model(tmp_path / "a.gguf"), Path("a.edge"), targets=["cpu"])
    assert (tmp_path / "a.edge").exists()


def _opened(folders: Sequence[Path], widths: Sequence[int]) -> list[dict[str, float]]:
    """Microseconds of no kernel; each folder has all files of a model."""
    assert all((folder / "weights.bin").stat().st_size for folder in folders)
    assert widths
    return [defaultdict(lambda: 1.0) for _ in folders]


@pytest.mark.slow
def test_a_model_becomes_a_bundle_that_is_inspected_and_run(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("tokenizers")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("code for x86-64-v3 does not run here")
    source_path, added = model(tmp_path / "a.gguf"), adapter(tmp_path / "lora")
    made = export(
        *(source_path, tmp_path / "a.edge"), targets=["tvm-x86-64-v3"], adapters={"more": added}
    )
    variant = made.manifest.variants[0]
    assert (variant.format, variant.precision) == ("llm", "fp32")
    judged = made.report.language[variant.id]
    assert judged["kl"] < 1e-4
    # Weights of chance make scores that four bits cannot tell apart.
    assert judged["caches"]["float16"]["kl"] < 0.02 < judged["caches"]["uint4"]["kl"]
    with Bundle.open(made.path) as bundle:
        names = {Path(f.path).name for f in variant.files}
        assert names >= {"llm.json", "tape.json", "weights.bin", "kernels.so", "generation.json"}
        paths = {p.name: p for p in bundle.paths(variant)}
        assert LlmConfig.from_json(paths["llm.json"].read_text()).vocab == 256
        caches = Tape.from_json(paths["tape.json"].read_text()).caches
        assert caches[:2] == ("float32", "float16")
        assert "uint4" not in caches
        assert Generation.from_json(paths["generation.json"].read_text()).eos == (0,)
        from edgeinfer.backends.base import Artifact, LoadOptions
        from edgeinfer.backends.llm.backend import LlmBackend

        artifact = Artifact("llm", paths["llm.json"], made.manifest.inputs, made.manifest.outputs)
        executable = LlmBackend().load(artifact, LoadOptions())
        for feeds, right in bundle.vectors():
            found = executable.run(feeds)["logits"]
            np.testing.assert_allclose(found, right["logits"], rtol=0, atol=2e-2)
        executable.close()
    assert any("adapter more: 480 tokens" in n for n in made.report.variants[0].notes)
    _check_texts(made.path, source_path, added)


def adapter(folder: Path) -> Path:
    """An adapter of all matrices of ``model``."""
    rng, halves = np.random.default_rng(5), {}
    for name, shape in source.expected(CONFIG).items():
        place, _, part = name.rpartition(".")
        if part in adapters.PARTS:
            rows, columns = shape
            stem = f"{place.removeprefix('blk.')}.{source.HF_LAYER[part]}.lora_"
            halves[f"{stem}A"] = rng.standard_normal((4, columns)) / np.sqrt(columns)
            halves[f"{stem}B"] = rng.standard_normal((rows, 4))
    return peft(folder, halves, lora_alpha=2)


def _check_texts(bundle: Path | str, path: Path, added: Path) -> None:
    """Requests with an adapter and without run together, and each gets its own text."""
    given = source.read(path)
    prompt, right = [65, 66, 67], []
    for tensors in (
        given.tensors,
        adapters.with_adapter(given.tensors, adapters.read(added, given.config)),
    ):
        tokens = [*prompt]
        for _ in range(6):
            tokens.append(
                int(Oracle(given.config, tensors).logits([np.array(tokens)])[0][-1].argmax())
            )
        right.append(tokens[3:])
    assert right[0] != right[1]
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    with LLM(bundle, threads=1) as llm:
        requests = [llm.request(prompt, params), llm.request(prompt, params, adapter="more")]
        found = [list(completion.outputs[0].tokens) for completion in llm.run(requests)]
        assert found == right
        with pytest.raises(InputError, match=r"one of the bundle's \(more\)"):
            llm.generate([prompt], params, adapter="other")
