"""Code for Arm, emulated: the bytes that Pillow gives there, and NumPy's spectrograms.

Needs what ``tests/e2e/test_arm.py`` needs. Times under emulation say nothing.
"""

import importlib.util
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest

from edgeinfer.backends.process.emulator import emulator, folder
from edgeinfer.convert.lower.tvm.machines import Machine, machine
from edgeinfer.convert.machine_code import functions
from edgeinfer.errors import NotAvailableError
from tests.runtime.pipelines.test_spectra import RECORDS

RUN = """
import sys
from itertools import product
from pathlib import Path
import numpy as np
from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.media.image import open_image, prepare
from edgeinfer.runtime.pipelines.grouping import grouping
from edgeinfer.runtime.pipelines.image_preparation import ByCode
from edgeinfer.types import ImageInput

functions = Functions(Path(sys.argv[1]))
RNG = np.random.default_rng(0)
ways = product(
    ("stretch", "crop", "letterbox", "pad"),
    ("nearest", "bilinear", "bicubic", "sampled"),
    ("RGB", "GRAY", "BGR"),
    ("NCHW", "NHWC"),
)
count = 0
for resize, method, color, layout in ways:
    how = {"antialias": False} if method == "sampled" else {"interpolation": method}
    dtype = "float32"
    if color == "BGR":
        dtype, how = "int8", {**how, "scale": 1.0, "mean": (128.0,)}
    record = ImageInput(33, 20, resize=resize, color=color, layout=layout, **how)
    for width, height in ((1, 1), (50, 40), (7, 90), (120, 9)):
        noise = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
        opened = open_image(noise, color)
        expected, place = prepare(opened, record, dtype)
        found, where = ByCode(functions, record, dtype).prepared(opened)
        assert found.tobytes() == expected.tobytes(), (record, width, height)
        assert where == place
        count += 1
print(count, grouping(functions, "")[1])
"""

LISTEN = """
import pickle, sys
from pathlib import Path
import numpy as np
from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.media.spectrogram import mel_spectrogram
from edgeinfer.runtime.pipelines.spectra import spectra

functions = Functions(Path(sys.argv[1]))
RNG = np.random.default_rng(0)
for record in pickle.loads(bytes.fromhex(sys.argv[2])):
    by = spectra(functions, "", record)
    for samples in (0, 1, 100, 5000):
        sound = RNG.normal(0, 0.1, samples).astype(np.float32)
        want, found = mel_spectrogram(sound, record), by(sound)
        assert want.shape == found.shape
        # What is left of levels far from zero has their rounding in float32.
        close = (1e-5 if record.floor < 1e-25 else 2e-6) * max(np.abs(want).max(), 1)
        assert np.abs(found - want).max() <= close, record
    print(by.about)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_images_and_boxes_are_right_there() -> None:
    done = _run(RUN, functions.library(_wanted()))
    assert done == ["384 boxes by compiled code for cortex-a72"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spectrograms_are_right_there() -> None:
    records = tuple(RECORDS.values())
    library = functions.library(_wanted(), pictures=False, spectrograms=records)
    done = _run(LISTEN, library, pickle.dumps(records).hex())
    assert done == ["spectrograms by compiled code for cortex-a72"] * len(records)


def _wanted() -> Machine:
    wanted = machine("cortex-a72")
    if importlib.util.find_spec("tvm") is None or shutil.which(wanted.linker) is None:
        pytest.skip("needs TVM and gcc-aarch64-linux-gnu")
    return wanted


def _run(script: str, library: Path, *more: str) -> list[str]:
    try:
        found = emulator("aarch64", _wanted().cpu)
    except NotAvailableError as e:
        pytest.skip(str(e))
    if not (folder() / "site" / "PIL").exists():
        pytest.skip("needs Pillow in the userland: python -m edgeinfer.convert.arm_userland")
    done = subprocess.run(
        [*found.command, "-c", script, str(library), *more],
        env={**os.environ, **found.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()
