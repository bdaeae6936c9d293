from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.errors import BundleError
from edgeinfer.llm import Experts, LlmConfig, Rope
from tests.llm.small import small

SMALL = small(
    ropes=(Rope((1.0, 0.1, 0.01, 0.001)),),
    layer_rope=(0, -1),
    windows=(0, 32),
    experts=Experts(8, 2, 32, True),
)


def test_its_text_is_read_back() -> None:
    assert LlmConfig.from_json(SMALL.to_json()) == SMALL


def test_contradictions_are_listed_together() -> None:
    wrong = replace(SMALL, kv_heads=3, windows=(0,), layer_rope=(0, 1), attention_scale=0.0)
    with pytest.raises(BundleError) as error:
        LlmConfig.from_json(wrong.to_json())
    for part in ("kv_heads", "windows", "layer_rope[1]", "attention_scale"):
        assert part in str(error.value)


@pytest.mark.parametrize(("name", "size"), [("vocab", 10**9), ("context", 10**9), ("heads", 8192)])
def test_sizes_have_bounds(name: str, size: int) -> None:
    """A list was made of 10^9 tokens, by a file of a kilobyte."""
    with pytest.raises(BundleError, match=f"{name}: expected 1 to "):
        LlmConfig.from_json(replace(SMALL, **{name: size}).to_json())  # type: ignore[arg-type]


def test_an_unknown_key_is_refused() -> None:
    text = SMALL.to_json().replace('"family"', '"familie"', 1)
    with pytest.raises(BundleError, match="familie: unknown key"):
        LlmConfig.from_json(text)
