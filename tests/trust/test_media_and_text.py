"""Images, videos and texts of strangers: no program is started, no terminal is commanded."""

import logging
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.backends.checks import one_line
from edgeinfer.cli.failures import _Warnings
from edgeinfer.errors import InputError
from edgeinfer.media.image import FORMATS, open_image
from edgeinfer.media.live import frames
from tests.trust import marked
from tests.trust.marked import Mark

ESCAPE = "\x1b]0;owned\x07"


@pytest.mark.skipif(os.name != "posix", reason="a program in PATH")
def test_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    mark = tmp_path / "mark"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    picture = tmp_path / "cat.jpg"
    picture.write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(
        InputError, match=r"cat.jpg': expected an image that Pillow can read \(PNG, JPEG, "
    ):
        open_image(picture)
    assert not mark.exists()


@pytest.mark.parametrize("form", FORMATS)
def test_the_formats_that_are_read(tmp_path: Path, form: str) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "x.bin", form)
    assert open_image(tmp_path / "x.bin").size == (4, 4)


@pytest.mark.parametrize("form", ["PPM", "PCX", "ICO", "TGA"])
def test_others_are_not(tmp_path: Path, form: str) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "x.png", form)
    with pytest.raises(InputError, match="a file of another kind"):
        open_image(tmp_path / "x.png")


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nhttp://127.0.0.1:1/x.ts\n",
        "ffconcat version 1.0\nfile /etc/hostname\n",
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nm=video 5004 RTP/AVP 96\r\n",
        "<?xml version='1.0'?><MPD></MPD>",
        "#EXTM3U\n# é\n#EXTINF:10,\nfile:///etc/hostname\n",
        "ffconcat version 1.0\n# \0\nfile other.ts\n",
    ],
)
def test_a_playlist_is_no_video(tmp_path: Path, text: str) -> None:
    pytest.importorskip("cv2")
    video = tmp_path / "v.mp4"
    video.write_text(text)
    with pytest.raises(InputError, match="another file, such as a playlist; name what it plays"):
        next(frames(str(video)))


def test_a_file_is_no_pipeline_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GStreamer reads, writes and fetches what a pipeline says."""
    cv2 = pytest.importorskip("cv2")
    opened: list[tuple[object, ...]] = []

    class Capture:
        def __init__(self, *given: object) -> None:
            opened.append(given)

        def isOpened(self) -> bool:  # noqa: N802 - OpenCV's name
            return False

        def release(self) -> None:
            pass

    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    monkeypatch.chdir(tmp_path)
    name = "filesrc location=a ! filesink location=b .mp4"
    Path(name).write_text("#EXTM3U")
    with pytest.raises(InputError, match="a playlist"):
        next(frames(name))
    Path(name).write_bytes(b"\0\0\0\x20ftypisom")
    with pytest.raises(InputError, match="that it cannot"):
        next(frames(name))
    with pytest.raises(InputError, match="that it cannot"):
        next(frames("videotestsrc ! appsink"))
    assert opened == [(str(tmp_path / name),), ("videotestsrc ! appsink", cv2.CAP_GSTREAMER)]


def test_warnings_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    warnings = _Warnings()
    with warnings:
        logging.getLogger("edgeinfer").warning("node %s failed", ESCAPE)
    warnings.tell([])
    assert capsys.readouterr().err == "edgeinfer: warning: node \\x1b]0;owned\\x07 failed\n"


def test_what_engines_say_again_commands_none() -> None:
    assert one_line(RuntimeError(f"node {ESCAPE}")) == "node \\x1b]0;owned\\x07"


def test_names_in_counters_are_short_and_plain(tmp_path: Path) -> None:
    bundle = marked.write(
        tmp_path / "b.edge",
        tmp_path,
        Mark(tmp_path / "mark"),
        formats=("onnx",),
        name=ESCAPE + "x" * 100_000,
    )
    with edgeinfer.load(bundle, stats=True) as session:
        stats = session.stats()
    assert stats is not None
    assert stats.labels["model"].startswith("\\x1b]0;owned\\x07xxx")
    assert len(stats.labels["model"]) < 120
