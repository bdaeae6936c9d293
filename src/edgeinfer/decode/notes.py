"""How likely each note begins and sounds, to notes (Bittner et al. 2022, sec. 2.3)."""

from __future__ import annotations

import numpy as np

from edgeinfer.heads import Notes
from edgeinfer.results import Pitch
from edgeinfer.types import Array

_NEIGHBOURS = (-1, 0, 1)
"""A note's energy leaks into the keys next to it."""
_RISE = 2
"""Frames back to which a sudden rise of loudness is measured."""


def hear_notes(onsets: Array, sounding: Array, head: Notes, seconds: Array) -> list[Pitch]:
    """Find notes, in the order of their beginnings.

    Args:
        onsets: (frames, notes), 0..1.
        sounding: (frames, notes), 0..1.
        head: thresholds.
        seconds: (frames,), when each begins.
    """
    if len(sounding) < 3:
        return []
    onsets = np.asarray(onsets, np.float64)
    sounding = np.asarray(sounding, np.float64)
    starts = _with_rises(onsets, sounding) if head.infer_onsets else onsets
    left = sounding.copy()
    found = _from_onsets(starts, left, head)
    if head.leftover:
        found += _from_leftover(left, head)
    notes = [
        Pitch(
            start=float(seconds[start]),
            end=float(seconds[end]),
            midi=key + head.lowest,
            strength=float(sounding[start:end, key].mean()),
        )
        for start, end, key in found
    ]
    return sorted(notes, key=lambda note: (note.start, note.midi, note.end))


def _with_rises(onsets: Array, sounding: Array) -> Array:
    """Add sudden rises of loudness to the onsets, on the same scale."""
    before = [np.pad(sounding, ((n, 0), (0, 0)))[: len(sounding)] for n in range(1, _RISE + 1)]
    rise = np.min([sounding - b for b in before], axis=0).clip(0.0, None)
    rise[:_RISE] = 0.0
    highest = rise.max()
    if highest > 0:
        rise *= onsets.max() / highest
    return np.asarray(np.maximum(onsets, rise))


def _from_onsets(starts: Array, left: Array, head: Notes) -> list[tuple[int, int, int]]:
    """Follow each onset, the last first, until the note falls silent; its energy is used up."""
    peaks = np.zeros(starts.shape, bool)
    peaks[1:-1] = (starts[1:-1] > starts[:-2]) & (starts[1:-1] > starts[2:])
    found = []
    for start, key in np.argwhere(peaks & (starts >= head.onset_threshold))[::-1]:
        if start >= len(left) - 1:
            continue
        end = _silent_from(left, int(start), int(key), head)
        if end - start > head.least_frames:
            _use_up(left, int(start), end, int(key))
            found.append((int(start), end, int(key)))
    return found


def _silent_from(left: Array, start: int, key: int, head: Notes) -> int:
    """Return the frame behind the last one that sounds before a gap."""
    frame, quiet = start + 1, 0
    while frame < len(left) - 1 and quiet < head.gap_frames:
        quiet = quiet + 1 if left[frame, key] < head.threshold else 0
        frame += 1
    return frame - quiet


def _from_leftover(left: Array, head: Notes) -> list[tuple[int, int, int]]:
    """Grow notes both ways from the loudest frames of what is left."""
    found = []
    loud = np.flatnonzero(left > head.threshold)
    for place in loud[(-left.ravel()[loud]).argsort(kind="stable")]:
        middle, key = divmod(int(place), left.shape[1])
        if not left[middle, key]:
            # It was used up by a louder one.
            continue
        left[middle, key] = 0.0
        end = _grown(left, middle, key, 1, head)
        start = _grown(left, middle, key, -1, head)
        if end - start > head.least_frames:
            found.append((start, end, key))
    return found


def _grown(left: Array, middle: int, key: int, step: int, head: Notes) -> int:
    """Use energy up in one direction until a gap; return the last frame that sounded."""
    frame, quiet = middle + step, 0
    stop = len(left) - 1 if step > 0 else 0
    while frame * step < stop * step and quiet < head.gap_frames:
        quiet = quiet + 1 if left[frame, key] < head.threshold else 0
        _use_up(left, frame, frame + 1, key)
        frame += step
    return frame - step - step * quiet


def _use_up(left: Array, start: int, end: int, key: int) -> None:
    for near in _NEIGHBOURS:
        if 0 <= key + near < left.shape[1]:
            left[start:end, key + near] = 0.0
