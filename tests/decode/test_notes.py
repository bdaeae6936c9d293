"""Notes from how likely each begins and sounds."""

import numpy as np
import pytest

from edgeinfer.decode.notes import hear_notes
from edgeinfer.heads import Notes
from edgeinfer.types import Array

HEAD = Notes("onsets", "sounding", 256, lowest=60)
FRAME = 0.01


def played(*notes: tuple[int, int, int], frames: int = 120) -> tuple[Array, Array]:
    """Return onsets and sounding of notes, each from a frame to a frame, of a key."""
    onsets, sounding = np.zeros((frames, 24)), np.zeros((frames, 24))
    for start, end, key in notes:
        onsets[start, key] = 0.9
        sounding[start:end, key] = 0.8
    return onsets, sounding


def heard(onsets: Array, sounding: Array, head: Notes = HEAD) -> list[tuple[int, int, int]]:
    found = hear_notes(onsets, sounding, head, np.arange(len(onsets)) * FRAME)
    return [(round(n.start / FRAME), round(n.end / FRAME), n.midi - 60) for n in found]


def test_notes_come_back_in_order() -> None:
    notes = [(10, 40, 3), (30, 60, 7), (50, 90, 3)]
    assert heard(*played(*reversed(notes))) == notes


def test_strength_and_pitch() -> None:
    onsets, sounding = played((10, 40, 9))
    (note,) = hear_notes(onsets, sounding, HEAD, np.arange(120) * FRAME)
    assert note.strength == pytest.approx(0.8)
    assert (note.name, note.midi) == ("A4", 69)
    assert note.hertz == pytest.approx(440)


def test_a_gap_shorter_than_the_limit_does_not_end_a_note() -> None:
    onsets, sounding = played((10, 60, 3))
    sounding[30:40, 3] = 0.1
    head = Notes("o", "s", 256, lowest=60, infer_onsets=False, leftover=False)
    assert heard(onsets, sounding, head) == [(10, 60, 3)]
    sounding[30:42, 3] = 0.1
    assert heard(onsets, sounding, head) == [(10, 30, 3)]


def test_short_notes_are_dropped() -> None:
    assert heard(*played((10, 21, 3), (40, 52, 5))) == [(40, 52, 5)]


def test_a_sudden_rise_begins_a_note() -> None:
    onsets, sounding = played((10, 40, 3))
    sounding[60:90, 8] = 0.8
    without = Notes("o", "s", 256, lowest=60, infer_onsets=False, leftover=False)
    assert heard(onsets, sounding, without) == [(10, 40, 3)]
    rises = Notes("o", "s", 256, lowest=60, leftover=False)
    assert [(s, k) for s, _, k in heard(onsets, sounding, rises)] == [(10, 3), (60, 8)]


def test_what_is_left_is_a_note_too() -> None:
    _, sounding = played((10, 40, 3))
    head = Notes("o", "s", 256, lowest=60, infer_onsets=False)
    (found,) = heard(np.zeros_like(sounding), sounding, head)
    assert abs(found[0] - 10) <= 1
    assert abs(found[1] - 40) <= 1
    assert found[2] == 3


def test_a_neighbouring_key_s_leak_is_no_note() -> None:
    onsets, sounding = played((10, 60, 3))
    sounding[10:60, 4] = 0.5
    head = Notes("o", "s", 256, lowest=60, infer_onsets=False)
    assert heard(onsets, sounding, head) == [(10, 60, 3)]


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 12])
def test_silence_and_short_recordings(frames: int) -> None:
    with np.errstate(all="raise"):
        assert heard(*played(frames=frames)) == []


def test_keys_at_both_ends() -> None:
    assert heard(*played((10, 40, 0), (10, 40, 23))) == [(10, 40, 0), (10, 40, 23)]
