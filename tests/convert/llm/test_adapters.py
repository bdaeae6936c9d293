from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import adapters, source
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.errors import SourceError, UsageError
from edgeinfer.types import Array
from tests.convert.llm import tiny
from tests.convert.llm.test_gguf import f32, write

IDS = np.random.default_rng(1).integers(3, 128, 12)


def safetensors(path: Path, tensors: dict[str, Array]) -> None:
    """Write a file of float32."""
    about, body = {}, b""
    for name, value in tensors.items():
        data = np.ascontiguousarray(value, np.float32).tobytes()
        place = [len(body), len(body) + len(data)]
        about[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": place}
        body += data
    head = json.dumps(about).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def peft(folder: Path, tensors: dict[str, Array], **changes: Any) -> Path:
    """A folder as PEFT writes it; tensors by the end of their names."""
    folder.mkdir(exist_ok=True)
    modules = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in tensors})
    about = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none"}
    about |= {"target_modules": modules, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    named = {f"base_model.model.model.layers.{n}.weight": v for n, v in tensors.items()}
    safetensors(folder / "adapter_model.safetensors", named)
    return folder


def adapted(model: Any, scale: float, rank: int = 4) -> dict[str, Array]:
    """Merge random adapters into a model of torch; returns their halves."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    halves: dict[str, Array] = {}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not name.endswith("_proj.weight"):
                continue
            low = rng.standard_normal((rank, value.shape[1])).astype(np.float32) * 0.2
            high = rng.standard_normal((value.shape[0], rank)).astype(np.float32) * 0.2
            value.add_(torch.from_numpy(scale * high @ low))
            stem = name.removeprefix("model.layers.").removesuffix(".weight")
            halves |= {f"{stem}.lora_A": low, f"{stem}.lora_B": high}
    return halves


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3"])
def test_an_adapter_of_peft_gives_the_merged_model(name: str, tmp_path: Path) -> None:
    model = tiny.save(name, tmp_path / "hf")
    halves = adapted(model, 6 / 4)
    given = source.read(tmp_path / "hf")
    found = adapters.read(peft(tmp_path / "lora", halves), given.config)
    assert len(found) == 7 * given.config.layers
    tensors = adapters.with_adapter(given.tensors, found)
    result = Oracle(given.config, tensors).logits([IDS])[0]
    right = tiny.logits(model, IDS)
    plain = Oracle(given.config, given.tensors).logits([IDS])[0]
    assert np.abs(plain - right).max() > 0.05 * np.abs(right).max()
    np.testing.assert_allclose(result, right, rtol=0, atol=2e-4 * np.abs(right).max())


def test_an_adapter_in_a_gguf_file_is_the_same(tmp_path: Path) -> None:
    """Rows of queries and keys lie in pairs there, and in halves of heads in PEFT's."""
    model = tiny.save("llama", tmp_path / "hf")
    halves = adapted(model, 6 / 4)
    config = source.read(tmp_path / "hf").config
    right = adapters.read(peft(tmp_path / "lora", halves), config)

    def paired(name: str, value: Array) -> Array:
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.rpartition(".")[2])
        if heads is None:
            return value
        return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)

    tensors = {}
    for name, pair in right.items():
        tensors[f"{name}.weight.lora_a"] = f32(pair.low)
        tensors[f"{name}.weight.lora_b"] = f32(paired(name, pair.high))
    fields = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 6.0,
    }
    found = adapters.read(write(tmp_path / "a.gguf", fields, tensors), config)
    assert found.keys() == right.keys()
    for name, pair in found.items():
        assert pair.scale == right[name].scale
        assert np.array_equal(pair.low, right[name].low)
        assert np.array_equal(pair.high, right[name].high)
    for field, value, text in (
        ("general.architecture", "qwen2", "an adapter of 'qwen2', and the model is of 'llama'"),
        ("adapter.type", "control_vector", "not of an adapter"),
    ):
        path = write(tmp_path / "b.gguf", {**fields, field: value}, tensors)
        with pytest.raises(SourceError, match=text):
            adapters.read(path, config)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    tiny.save("llama", tmp_path / "hf")
    return source.read(tmp_path / "hf").config


Q = "0.self_attn.q_proj.lora_"
GOOD = {f"{Q}A": np.ones((4, 64)), f"{Q}B": np.ones((64, 4))}


def test_scales_are_those_of_peft(config: Any, tmp_path: Path) -> None:
    for changes, scale in (
        ({}, 1.5),
        ({"use_rslora": True}, 3.0),
        ({"alpha_pattern": {"q_proj": 8}}, 2.0),
        ({"alpha_pattern": {"k_proj": 8}}, 1.5),
        ({"alpha_pattern": {"1.self_attn.q_proj": 8}}, 1.5),
        # Keys are expressions, and the first one that matches counts.
        ({"alpha_pattern": {"q.proj": 8}}, 2.0),
        ({"alpha_pattern": {"proj": 8, "self_attn.q_proj": 4, "q_proj": 8}}, 1.0),
        ({"r": 9, "rank_pattern": {"q.proj": 4}}, 1.5),
        ({"target_modules": "all-linear"}, 1.5),
        ({"target_modules": r".*\.(?:q|v)_proj", "exclude_modules": ["v_proj"]}, 1.5),
        (
            {
                "target_modules": r"model\.layers\.\d+\..*(self_attn|mlp)\."
                r"(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
                "exclude_modules": r"(?:.*[|()]?\.)?lm_(?:head)?",
            },
            1.5,
        ),
        ({"target_modules": ["self_attn.q_proj"], "layers_to_transform": [1, 0]}, 1.5),
        ({"layers_to_transform": 0, "layers_pattern": ["h", "layers"]}, 1.5),
    ):
        found = adapters.read(peft(tmp_path / "lora", GOOD, **changes), config)
        assert found["blk.0.attn_q"].scale == scale


@pytest.mark.parametrize(
    ("tensors", "changes", "text"),
    [
        (GOOD, {"use_dora": True, "bias": "all"}, "use_dora: True is not.*bias: 'all' is not"),
        (GOOD, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (GOOD, {"init_lora_weights": "pissa"}, "'pissa' changes the model's own weights"),
        (GOOD, {"alpha_pattern": {"(a+)+$": 8}}, "no plain name"),
        (GOOD, {"alpha_pattern": {"q_proj": None}}, "expected numbers by name"),
        (GOOD, {"lora_alpha": "6"}, "lora_alpha: expected a number"),
        (GOOD, {"lora_alpha": True}, "lora_alpha: expected a number"),
        (GOOD, {"use_rslora": "no"}, "use_rslora: expected true or false"),
        (GOOD, {"r": 64}, "the rank is 4, and adapter_config.json says 64"),
        (GOOD, {"rank_pattern": {"q_proj": 9}}, "the rank is 4, and adapter_config.json says 9"),
        (GOOD, {"of_tomorrow": {"x": 1}}, "of_tomorrow: .* is not supported"),
        ({**GOOD, f"{Q}A.default": GOOD[f"{Q}A"]}, {}, "once more"),
        (GOOD, {"target_modules": ["v_proj"]}, r"q_proj': .*target_modules \['v_proj'\] leaves it"),
        (GOOD, {"target_modules": ["proj"]}, "leaves it out"),
        (GOOD, {"target_modules": []}, "leaves it out"),
        (GOOD, {"target_modules": None}, "target_modules: expected names, received None"),
        (GOOD, {"target_modules": ".*up_proj"}, "leaves it out"),
        (GOOD, {"target_modules": "(.*)*x"}, "may take long to match"),
        (GOOD, {"target_modules": ".*.*.*.*x"}, "may take long to match"),
        (GOOD, {"target_modules": ".?" * 26 + "!"}, "may take long to match"),
        (GOOD, {"target_modules": ".?" * 400 + "!"}, "may take long to match"),
        (GOOD, {"target_modules": r"(?:[(\]|]|.|\w)" * 20 + "!"}, "may take long to match"),
        (GOOD, {"exclude_modules": "(?:.|(?:q|.?))" * 20 + "!"}, "exclude_modules: .* may take"),
        (GOOD, {"target_modules": "(q"}, "may take long to match, or is none"),
        (GOOD, {"exclude_modules": ["q_proj"]}, "exclude_modules .* leaves it out"),
        (GOOD, {"exclude_modules": ".*q_proj"}, "exclude_modules .* leaves it out"),
        (GOOD, {"layers_to_transform": [5]}, r"layers_to_transform \[5\] leaves it out"),
        (GOOD, {"layers_to_transform": 1}, "layers_to_transform 1 leaves it out"),
        (GOOD, {"layers_to_transform": ["0"]}, "expected numbers of layers"),
        (GOOD, {"layers_to_transform": 0, "layers_pattern": "h"}, "leaves it out"),
        (GOOD, {"layers_pattern": "h"}, "layers_pattern: 'h' is not supported"),
        (GOOD, {"target_modules": ".*", "layers_to_transform": 0}, "expected none next to an expr"),
        (GOOD, {"r": 4.0}, "r: expected a whole number"),
        (
            {**GOOD, f"{Q}A": np.full((4, 64), 10)},
            {"lora_alpha": 1e38},
            "B A may have numbers that are not finite",
        ),
        ({f"{Q}A": np.full((4, 64), 3e38), f"{Q}B": np.full((64, 4), 3e38)}, {}, "B A may have"),
        (GOOD, {"peft_type": "IA3"}, "expected 'LORA', received 'IA3'"),
        ({f"{Q}A": GOOD[f"{Q}A"]}, {}, "q_proj with A alone"),
        ({**GOOD, "0.extra": np.ones(3)}, {}, "1 tensors that no adapter here has"),
        ({**GOOD, f"{Q}B": np.ones((60, 4))}, {}, r"expected A \(4, 64\) and B \(64, 4\)"),
        ({**GOOD, f"{Q}A": np.full((4, 64), np.nan)}, {}, "not finite"),
        (
            {
                "0.input_layernorm.lora_A": np.ones((4, 1)),
                "0.input_layernorm.lora_B": GOOD[f"{Q}B"],
            },
            {},
            "adapters of this model change attn_q, attn_k",
        ),
        ({}, {}, "no matrices of an adapter"),
    ],
)
def test_what_no_adapter_here_does_is_refused(
    config: Any, tmp_path: Path, tensors: Any, changes: Any, text: str
) -> None:
    with pytest.raises(SourceError, match=text):
        adapters.read(peft(tmp_path / "lora", tensors, **changes), config)


def test_all_that_is_wrong_is_one_list(config: Any, tmp_path: Path) -> None:
    wrong = {**GOOD, "0.extra": np.ones(3), "1.self_attn.k_proj.lora_A": np.ones((4, 64))}
    wrong |= {
        "1.self_attn.v_proj.lora_A": np.ones((4, 60)),
        "1.self_attn.v_proj.lora_B": np.ones(1),
    }
    wrong["1.self_attn.v_proj.lora_B"] = np.full((64, 4), np.nan)
    place = peft(tmp_path / "lora", wrong, r=5, target_modules=["v_proj"])
    with pytest.raises(SourceError) as caught:
        adapters.read(place, config)
    for part in ("0.extra", "k_proj with A alone", "says 5", "leaves it out", "expected A (4, "):
        assert part in str(caught.value)
    with pytest.raises(SourceError, match=r"use_dora.*0\.extra"):
        adapters.read(peft(tmp_path / "lora", wrong, use_dora=True), config)


def test_names_and_places_are_checked(config: Any, tmp_path: Path) -> None:
    place = peft(tmp_path / "lora", GOOD)
    with pytest.raises(UsageError, match="names have letters"):
        adapters.named_adapters({"a b": place}, config)
    with pytest.raises(SourceError, match="no such file"):
        adapters.named_adapters({"a": tmp_path / "none"}, config)
    found, notes = adapters.named_adapters({"a": place / "adapter_model.safetensors"}, config)
    assert list(found) == ["a"]
    assert notes == ["adapter a: adapter_model.safetensors, rank 4, 1 matrices"]
