"""A generation that Ctrl-C ended: its request ends too, and others go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
from tests.interrupts import PLACES, interrupted
from tests.runtime.llm.test_llm import model

pytest.importorskip("tokenizers")
LONG = SamplingParams(max_tokens=480, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(LLM, "_open", lambda *_: model(""))
    with LLM("tiny.edge") as made:
        yield made


def test_its_request_ends_with_it(llm: LLM) -> None:
    right = llm.generate("the cat", SHORT)[0].text
    # Up to the first tokens: from there on the places are the same ones again.
    for number in range(90):
        assert interrupted(lambda: llm.generate("the cat", LONG), number)
        assert llm.generate("the cat", SHORT)[0].text == right
        stats = llm.stats()
        assert stats.running == stats.pages_used == 0, PLACES[-1]
