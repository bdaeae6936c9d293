"""Texts to phonemes: by a library that is played here, and by Piper's own where it is installed."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.errors import BundleError, DamagedError, InputError, NotAvailableError, UsageError
from edgeinfer.heads import Speak
from edgeinfer.media import phonemes as module
from edgeinfer.media.phonemes import phonemes
from edgeinfer.media.symbols import SymbolTable
from edgeinfer.tasks import Speaker
from edgeinfer.types import SymbolInput
from tests.runtime.pipelines import test_voice
from tests.runtime.pipelines.conftest import MakeBundle
from tests.runtime.pipelines.conftest import make as make

TEXTS = (
    "Good morning, Dr. Smith. How are you?",
    "42 cats: yes; no!",
    "Le mot Bonjour",
    "one",
    "Wait... what?! (really)",
)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that says each letter, and begins a clause behind each mark."""

    def voiced(name: str) -> None:
        if name == "xx":
            raise RuntimeError("Failed to set voice: xx")

    def read(text: str) -> list[tuple[str, str, bool]]:
        if "\0" in text:
            raise ValueError("embedded null character")
        said = text.replace(",", ",|").replace(".", ".|").split("|")
        parts = [(c.rstrip(",."), c[-1:] if c[-1:] in ",." else "") for c in said if c]
        return [(f"(en){words}(fr)", mark, mark != ",") for words, mark in parts]

    monkeypatch.setattr(
        module, "_bridge", lambda: SimpleNamespace(set_voice=voiced, get_phonemes=read)
    )


@pytest.mark.usefixtures("played")
def test_sentences_hold_their_clauses_and_no_marks_of_languages() -> None:
    assert phonemes("a,b.c,d", "en-us") == ["a, b.", "c, d"]
    assert phonemes("", "en-us") == []
    with pytest.raises(UsageError, match="eSpeak NG has no voice 'xx'"):
        phonemes("a", "xx")
    with pytest.raises(InputError, match="a text that eSpeak NG reads, received embedded null"):
        phonemes("a\0", "en-us")


@pytest.mark.usefixtures("played")
def test_a_voice_says_sentence_after_sentence(make: MakeBundle) -> None:
    path = test_voice.voice(make, espeak="en-us", begin=(3,), end=(4,), unknown="skip")
    with Speaker(path) as speaker:
        said = speaker.say("ab,a.b.")
        assert [round(10 * s) for s in said.samples] == [3, 1, 2, 0, 1, 4, 3, 2, 4]
        assert said.left_out == (",", ".")
        with pytest.raises(InputError, match="a word, received ''"):
            speaker.say("")
        with pytest.raises(InputError, match="a str, received int"):
            speaker.say(3)  # type: ignore[arg-type]


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module._bridge.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotAvailableError, match=r"piper-tts brings: pip install '.*\[voice\]'"):
        phonemes("a", "en-us")


def test_names_of_voices_lead_to_no_file(make: MakeBundle) -> None:
    for name in ("../../etc/passwd", "en us", "", "a" * 60):
        with pytest.raises(BundleError, match="espeak: expected a name such as 'en-us'"):
            make(
                *("named", test_voice.TENTHS, test_voice.TABLE),
                head=Speak(8),
                preprocessing={"ids": SymbolInput("symbols.json", espeak=name)},
            )


def test_vowels_that_are_joined_are_not_read() -> None:
    table = {"phoneme_id_map": {"a": [1]}, "vowel_clusters": [["a", "i"]]}
    with pytest.raises(DamagedError, match="vowel_clusters, which is not built"):
        SymbolTable(json.dumps(table).encode(), SymbolInput("voice.json"))


@pytest.fixture
def piper() -> Any:
    """Piper's own code, without what its package imports."""
    package = importlib.util.find_spec("piper")
    (place,) = (package.submodule_search_locations if package else None) or ("",)
    if not (Path(place) / "phoneme_ids.py").is_file():
        pytest.skip("piper-tts is not installed")
    module._bridge.cache_clear()
    return pytest.importorskip("piper")


def test_ids_are_those_of_piper(piper: Any, caplog: pytest.LogCaptureFixture) -> None:
    from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP, phonemes_to_ids
    from piper.phonemize_espeak import EspeakPhonemizer

    caplog.set_level(logging.CRITICAL)
    table = {"phoneme_id_map": DEFAULT_PHONEME_ID_MAP}
    rule: dict[str, Any] = {"begin": (1, 0), "after": (0,), "end": (2,)}
    record = SymbolInput("v.json", **rule, normal="NFD", unknown="skip", espeak="en-us")
    ours = SymbolTable(json.dumps(table).encode(), record)
    for text in TEXTS:
        theirs = EspeakPhonemizer().phonemize("en-us", text)
        assert [p.ids[0].tolist() for p in ours.parts(text)] == [*map(phonemes_to_ids, theirs)]
