"""Records in JSON files of their own."""

from __future__ import annotations

import pytest

from edgeinfer.bundle.documents import read, text_of
from edgeinfer.errors import BundleError
from edgeinfer.llm.generation import Generation


def test_a_record_comes_back() -> None:
    record = Generation(eos=(3,), temperature=0.5)
    assert read(Generation, text_of(record), "one.json") == record


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", r"^one\.json: "),
        ('{"eos": [-1], "top_k": -1}', r"^one\.json: eos.*; top_k"),
        ('{"eos": "x", "other": 1}', r"^one\.json: .*eos.*other|^one\.json: .*other.*eos"),
    ],
)
def test_what_is_wrong_is_listed_with_the_file(text: str, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        read(Generation, text, "one.json")
