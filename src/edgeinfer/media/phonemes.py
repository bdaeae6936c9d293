"""A text to the phonemes of eSpeak NG, sentence by sentence, as Piper's voices are trained on them.

Piper's package brings eSpeak NG as a library; its own module is loaded by itself, for the package
imports ONNX Runtime.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.installed import install

_LOCK = threading.Lock()
"""The library has one voice at a time, for the whole process."""

_LANGUAGE = re.compile(r"\([^)]+\)")
"""Marks around words of another language, which are no phonemes."""

_PAUSES = (",", ":", ";")
"""Ends of clauses behind which a sentence goes on."""


def phonemes(text: str, voice: str) -> list[str]:
    """Return the phonemes of each sentence, punctuation among them.

    Args:
        text: in the language of the voice.
        voice: by its name in eSpeak NG, such as ``en-us``.

    Raises:
        InputError: the text cannot be read.
        NotAvailableError: the library is not installed.
        UsageError: it has no such voice.

    Source: piper-tts 1.8, ``EspeakPhonemizer.phonemize``.
    """
    with _LOCK:
        bridge = _bridge()
        try:
            bridge.set_voice(voice)
        except RuntimeError as e:
            raise UsageError(f"eSpeak NG has no voice {voice!r}") from e
        try:
            clauses = bridge.get_phonemes(text)
        except (ValueError, RuntimeError) as e:
            raise InputError("text", "a text that eSpeak NG reads", str(e)) from e
    found, held = [], ""
    for said, mark, ends in clauses:
        held += _LANGUAGE.sub("", said) + mark + (" " if mark in _PAUSES else "")
        if ends:
            found.append(held)
            held = ""
    return [sentence for sentence in (*found, held) if sentence]


@functools.cache
def _bridge() -> Any:
    """Load the library.

    Raises:
        NotAvailableError: it is not installed.
    """
    package = importlib.util.find_spec("piper")
    for place in (package.submodule_search_locations if package else None) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(place) / f"espeakbridge{suffix}"
            spec = importlib.util.spec_from_file_location("espeakbridge", path)
            if path.is_file() and spec is not None and spec.loader is not None:
                bridge = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(bridge)
                bridge.initialize(str(path.parent / "espeak-ng-data"))
                return bridge
    raise NotAvailableError(
        f"phonemes of a text need eSpeak NG, which piper-tts brings: {install('voice')}"
    )
