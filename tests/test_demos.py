"""Each demo on a file instead of a camera or microphone, with tiny models; what its page says."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import socket
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.heads import Classify, DetectGrid, Features, Speak, SpotWord
from edgeinfer.media import live
from edgeinfer.media.live import FrameRate, Preview, audio, frames
from edgeinfer.types import Array, AudioInput, ConstantInput, FrameInput, ImageInput, StateInput
from tests.runtime.pipelines import test_audio, test_image, test_speech, test_voice
from tests.runtime.pipelines.conftest import MakeBundle, make
from tests.stand_in import SAYS, Model

__all__ = ["make"]

Image = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DEMOS = {
    "pi_camera": ("watch.py", "edgeinfer-camera.service"),
    "pi_listen": ("listen.py", "edgeinfer-listen.service"),
    "jetson_streams": ("streams.py", "edgeinfer-streams.service"),
    "document_ocr": ("read.py", "edgeinfer-ocr.service"),
    "pi_assistant": ("assistant.py", "edgeinfer-assistant.service"),
}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Run a demo as a program in this process; return its exit code and what it printed."""

    def run(name: str, *arguments: object) -> tuple[int | str, str]:
        script = EXAMPLES / name / DEMOS[name][0]
        monkeypatch.setattr("sys.argv", [str(script), *map(str, arguments)])
        code: int | str = 0
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as e:
            code = 0 if e.code is None else e.code
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, colour in (("a.png", (255, 0, 0)), ("b.jpg", (255, 255, 255))):
        Image.new("RGB", (64, 32), colour).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture
def detector(make: MakeBundle) -> Path:
    record = ImageInput(8, 8, resize="letterbox", pad=0)
    records = {"image": record, "bias": ConstantInput((-0.5,))}
    said = {"preprocessing": records, "labels": ("spot",)}
    return make("boxes", test_image.BOXES, head=DetectGrid(), **said)


def test_camera_names_and_boxes(
    demo: object, pictures: Path, detector: Path, make: MakeBundle, tmp_path: Path
) -> None:
    assert callable(demo)
    said = {"preprocessing": {"image": ImageInput(4, 4)}, "labels": ("red", "green", "blue")}
    classifier = make("colours", test_image.COLOURS, head=Classify(top=1), **said)
    code, out = demo("pi_camera", classifier, "--source", pictures, "--save", tmp_path / "shots")
    assert code == 0
    assert [line.split("frames/s")[1] for line in out.splitlines()] == ["  red 1.00"] * 2
    with Image.open(tmp_path / "shots" / "000002.jpg") as drawn:
        assert drawn.size == (64, 32)
        assert drawn.convert("L").getextrema()[0] < 60  # white before something was written on it
    one = ("--source", pictures / "b.jpg", "--frames", 1, "--http", 0)
    code, out = demo("pi_camera", detector, *one)
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith("watch at http://127.0.0.1:")
    assert second.endswith("spot 0.50 at 24,16-40,48")


def test_listener_hears_speech_and_a_word(demo: object, make: MakeBundle, tmp_path: Path) -> None:
    assert callable(demo)
    records = {"x": AudioInput(1000, 12, 10, 2), "h": StateInput("hn")}
    voice = make("voice", test_audio.LOUDNESS, head=test_audio.VOICE, preprocessing=records)
    sound = {"x": AudioInput(1000, samples=20, gain=0.5)}
    word = [
        make("spread", test_audio.SPREAD, head=Features(scale=2, offset=1), preprocessing=sound),
        make("both", test_audio.TOGETHER, head=Features(), preprocessing={"w": FrameInput(4, 2)}),
        make(
            "said",
            test_audio.SAID,
            head=SpotWord("go", threshold=2.4),
            preprocessing={"v": FrameInput(2)},
        ),
    ]
    soundfile.write(tmp_path / "x.wav", test_audio.bursts(), 1000)
    given = ("--voice", voice, "--word", *word, "--source", tmp_path / "x.wav")
    code, out = demo("pi_listen", *given)
    assert code == 0
    assert "speech 0.11 s to 0.21 s\n" in out
    assert "speech 0.31 s to 0.43 s\n" in out
    assert "heard 'go' at 0.14 s (3.02)\n" in out
    assert re.search(r"0\.5 s of audio, \d\.\d\d s of work \(", out)


def spotted(make: MakeBundle) -> list[Path]:
    """A chain that hears when it gets loud."""
    sound = {"x": AudioInput(1000, samples=20, gain=0.5)}
    frames = {"w": FrameInput(4, 2)}
    said = {"head": SpotWord("go", threshold=2.4), "preprocessing": {"v": FrameInput(2)}}
    return [
        make("spread", test_audio.SPREAD, head=Features(scale=2, offset=1), preprocessing=sound),
        make("both", test_audio.TOGETHER, head=Features(), preprocessing=frames),
        make("said", test_audio.SAID, **said),
    ]


def test_the_assistant_answers_what_was_said(
    demo: object, make: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import edgeinfer

    assert callable(demo)
    monkeypatch.setattr(edgeinfer, "LLM", Model, raising=False)
    monkeypatch.setattr(Model, "asked", [])
    records = {"x": AudioInput(1000, 12, 10, 2), "h": StateInput("hn")}
    voice = make("voice", test_audio.LOUDNESS, head=test_audio.VOICE, preprocessing=records)
    # Loudness 0.9 is the token of "ab" for it.
    heard = test_speech.bundles(
        make, sound=AudioInput(1000, gain=2.2), said=test_speech.head(most=3)
    )
    soundfile.write(tmp_path / "x.wav", test_audio.bursts(), 1000, subtype="FLOAT")
    done = tmp_path / "done"
    given = ("--word", *spotted(make), "--voice", voice, "--speech", *heard, "--chat", "chat.edge")
    more = ("--action", f"light on=touch {done}", "--source", tmp_path / "x.wav")
    letters = {"symbols.json": json.dumps(dict.fromkeys(set(SAYS), 1)).encode()}
    records = {"ids": test_voice.IDS}
    says = make("says", test_voice.TENTHS, letters, head=Speak(8), preprocessing=records)
    played = tmp_path / "played.wav"
    code, out = demo("pi_assistant", *given, *more, "--say", says, "--player", f"tee {played}")
    assert code == 0
    assert "heard 'go' at 0.14 s\n" in out
    assert "understood: ababab\n" in out
    assert "answer: Light it is. [light on]\n" in out
    assert "said: 1.5 s\n" in out
    assert soundfile.info(played).frames == len(SAYS)
    assert Model.asked[0] == "ababab"
    assert done.exists()


def test_streams_are_read_side_by_side(
    demo: object, pictures: Path, detector: Path, tmp_path: Path
) -> None:
    assert callable(demo)
    wall = tmp_path / "wall.jpg"
    code, out = demo("jetson_streams", detector, pictures, pictures / "b.jpg", "--save", wall)
    assert code == 0
    assert f"{pictures}: 2 frames, 0 skipped\n" in out
    assert f"{pictures / 'b.jpg'}: 1 frames, 0 skipped\n" in out
    assert re.search(r"all: 3 frames in \d+\.\d s, \d+\.\d frames/s", out)
    with Image.open(wall) as image:
        assert image.size == (2 * 640, 360)


def test_a_stream_that_fails_is_named_and_the_others_go_on(
    demo: object, pictures: Path, detector: Path
) -> None:
    assert callable(demo)
    code, out = demo("jetson_streams", detector, "none.mp4", pictures)
    assert code == 1
    assert "none.mp4: none.mp4: no such file, camera or stream\n" in out
    assert f"{pictures}: 2 frames, 0 skipped\n" in out


def test_documents_from_an_inbox(demo: object, make: MakeBundle, tmp_path: Path) -> None:
    assert callable(demo)
    import os

    bundles = test_image.readers(make)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    Image.fromarray(test_image.page()).save(inbox / "a.png")
    (inbox / "broken.png").write_bytes(b"nothing")
    Image.new("RGB", (40, 40)).save(inbox / "new.png")
    for name in ("a.png", "broken.png"):
        os.utime(inbox / name, (1, 1))
    code, out = demo("document_ocr", *bundles, "--inbox", inbox, "--once", "--overlay")
    assert code == 0
    assert out.splitlines()[0] == "a.png: x"
    assert (inbox / "a.txt").read_text() == "x\nx\n"
    assert (inbox / "broken.txt").read_text().startswith("cannot be read: input ")
    assert not (inbox / "new.txt").exists()
    with Image.open(inbox / "a.found.png") as drawn:
        assert drawn.size == (100, 60)
    code, out = demo("document_ocr", *bundles, inbox / "a.png")
    assert (code, out) == (0, "x\nx\n")


@pytest.mark.parametrize("name", DEMOS)
def test_mistakes_are_one_line(demo: object, name: str, tmp_path: Path) -> None:
    assert callable(demo)
    none = tmp_path / "none.edge"
    assistant = ["--voice", none, "--speech", none, none, "--chat", none, "--word"]
    needed: dict[str, list[object]] = {"pi_listen": ["--voice"], "pi_assistant": [*assistant]}
    extra = needed.get(name, [])
    after = ["x.jpg"] if name == "jetson_streams" else []
    code, out = demo(name, *extra, tmp_path / "none.edge", *after)
    assert out == ""
    assert isinstance(code, str)
    assert code.startswith(f"{DEMOS[name][0]}: ")
    assert "none.edge" in code
    assert "\n" not in code


def test_a_bundle_of_another_kind(demo: object, detector: Path) -> None:
    assert callable(demo)
    code, _ = demo("pi_listen", "--voice", detector, "--source", "x.wav")
    assert code == f"{detector}: takes no recording"
    code, _ = demo("document_ocr", detector, "x.jpg")
    assert code == f"{detector}: name the bundles that find, turn and read lines"


@pytest.mark.parametrize("name", DEMOS)
def test_the_page_and_the_unit_name_what_there_is(name: str) -> None:
    folder = EXAMPLES / name
    script, unit = DEMOS[name]
    source = (folder / script).read_text()
    page, service = (folder / "README.md").read_text(), (folder / unit).read_text()
    lines = [line for line in page.splitlines() if script in line and "venv/bin/python" in line]
    command = next(line for line in service.splitlines() if line.startswith("ExecStart="))
    assert lines
    for line in (*lines, command):
        for option in re.findall(r"(?<= )--[a-z]+", line):
            assert f'"{option}"' in source, f"{option} in {line!r}"
    assert unit in (folder / "install.sh").read_text()
    assert "Not run on a" in page
    assert subprocess.run(["bash", "-n", folder / "install.sh"], check=False).returncode == 0
    for target in re.findall(r"--pipeline (?:examples/pipelines/)?([\w.-]+\.toml)", page):
        assert target == "yolo.toml" or (EXAMPLES / "pipelines" / target).is_file()


def test_every_pipeline_file_is_read(tmp_path: Path) -> None:
    from edgeinfer.media import parse_description

    for path in sorted((EXAMPLES / "pipelines").iterdir()):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in ("imagenet.txt", "ppocr_keys.txt", "tokenizer.json"):
        (tmp_path / name).write_text("one\ntwo\n")
    found = [parse_description(path) for path in sorted(tmp_path.glob("*.toml"))]
    assert len(found) > 10
    assert all(description.head is not None for description in found)


def test_sources_of_pictures(pictures: Path, tmp_path: Path) -> None:
    from edgeinfer.errors import InputError, NotAvailableError, UsageError

    assert [f.shape for f in frames(str(pictures))] == [(32, 64, 3)] * 2
    with pytest.raises(UsageError, match="no such file, camera or stream"):
        next(frames(str(tmp_path / "none.mp4")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without any"):
        next(frames(str(tmp_path / "empty")))
    with pytest.raises(NotAvailableError, match="sudo apt install python3-picamera2"):
        next(frames("picamera"))


def test_videos(tmp_path: Path) -> None:
    from edgeinfer.errors import InputError

    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "x.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 16))
    for _ in range(3):
        writer.write(np.full((16, 32, 3), (0, 0, 250), np.uint8))  # red, in OpenCV's order
    writer.release()
    found = list(frames(str(path)))
    assert len(found) == 3
    assert found[0][8, 8, 0] > 200
    assert found[0][8, 8, 2] < 50
    (tmp_path / "broken.avi").write_bytes(b"RIFF\xffno video")
    with pytest.raises(InputError, match="a camera, video or stream that OpenCV can open"):
        next(frames(str(tmp_path / "broken.avi")))
    (tmp_path / "text.avi").write_bytes(b"no video")
    with pytest.raises(InputError, match="received another file, such as a playlist"):
        next(frames(str(tmp_path / "text.avi")))


def test_sound_of_a_file_and_of_no_microphone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.errors import InputError, NotAvailableError

    signal: Array = np.linspace(-1, 1, 100, dtype=np.float32)
    soundfile.write(tmp_path / "x.wav", signal, 1000, subtype="FLOAT")
    pieces = list(audio(str(tmp_path / "x.wav"), 1000))
    assert [len(p) for p in pieces] == [32, 32, 32, 4]
    np.testing.assert_array_equal(np.concatenate(pieces), signal)
    recorder = tmp_path / "arecord"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError, match="sudo apt install alsa-utils"):
        next(audio("mic", 1000))
    recorder.write_text(
        "#!/bin/sh\nprintf '\\000\\100\\000\\300'\necho 'no such card' >&2\nexit 1\n"
    )
    recorder.chmod(0o755)
    heard = audio("mic:plughw:1", 1000)
    np.testing.assert_array_equal(next(heard), [0.5, -0.5])
    with pytest.raises(InputError, match=r"mic:plughw:1.*received no such card"):
        next(heard)


def test_a_page_shows_the_newest_picture() -> None:
    with Preview(0) as preview:
        preview.show(Image.new("RGB", (8, 8), (255, 0, 0)))
        with urllib.request.urlopen(preview.address, timeout=5) as page:
            head = page.read(120)
    assert head.startswith(b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: ")
    assert b"\xff\xd8\xff" in head


@pytest.mark.parametrize(
    ("host", "more", "status"),
    [
        ("127.0.0.1", [], 200),
        ("127.0.0.1", ["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"], 200),
        ("evil.example", ["Sec-Fetch-Site: same-origin"], 403),
        ("127.0.0.1", ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"], 403),
        ("127.0.0.1", ["Origin: http://evil.example"], 403),
    ],
)
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_page_shows_nothing_to_other_pages(
    address: str, host: str, more: list[str], status: int
) -> None:
    with Preview(0, address) as preview:
        preview.show(Image.new("RGB", (8, 8), (255, 0, 0)))
        port = int(preview.address.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            head = "\r\n".join(("GET / HTTP/1.1", f"Host: {host}:{port}", *more))
            line.sendall(f"{head}\r\n\r\n".encode())
            assert line.recv(100).split()[1] == str(status).encode()


def test_a_page_has_room_for_so_many_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "VIEWERS", 2)
    with Preview(0) as preview, contextlib.ExitStack() as stack:
        port = int(preview.address.rsplit(":", 1)[1].strip("/"))
        lines = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(3)]
        for line in lines:
            stack.enter_context(line)
        assert lines[2].recv(1) == b""
        lines[0].close()
        preview.show(Image.new("RGB", (8, 8), (255, 0, 0)))
        found = b""
        while b"image/jpeg" not in found:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                found = line.recv(4096) + line.recv(4096)


def test_frame_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    rate = FrameRate(window=2)
    found = []
    for step in (0.0, 0.5, 0.5, 0.1, 0.1):
        now[0] += step
        found.append(rate.tick())
    np.testing.assert_allclose(found, [0, 2, 2, 2 / 0.6, 10])
    assert rate.count == 5
