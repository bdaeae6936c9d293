"""Pictures, recordings and array files to the tensors that a model takes, and results back.

Pillow, soundfile and soxr are imported only when a picture or recording is read.
"""

from edgeinfer.media.arrays import read_arrays, write_arrays
from edgeinfer.media.audio import load_audio
from edgeinfer.media.description import Description, parse_description
from edgeinfer.media.feeds import calls_for, feeds_for, has_batch
from edgeinfer.media.image import load_image
from edgeinfer.media.preprocessing import parse_preprocessing, read_labels

__all__ = [
    "Description",
    "calls_for",
    "feeds_for",
    "has_batch",
    "load_audio",
    "load_image",
    "parse_description",
    "parse_preprocessing",
    "read_arrays",
    "read_labels",
    "write_arrays",
]
