"""The pages that tell a user what to type: what stands there runs, and the manual builds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw

from tests.cli.test_documented import words_of_page

pytestmark = pytest.mark.usefixtures("conversions_apart")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 32, 32] image) => (float[1, 3] scores)
<float[6, 3, 3, 3] w = {WEIGHTS}, float[3, 6] v = {MIX}>
{
    c = Conv <pads = [1, 1, 1, 1]> (image, w)
    r = Relu (c)
    m = ReduceMean <axes = [2, 3], keepdims = 0> (r)
    scores = Gemm <transB = 1> (m, v)
}
"""
PREPROCESSING = """
[image]
kind = "image"
width = 32
height = 32
scale = 0.00392156862745098
"""
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (40, 60, 220)}


def model() -> onnx.ModelProto:
    """A net that tells colours: two filters for each channel, and their means."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.0, 0.05, (6, 3, 3, 3))
    for channel in range(3):
        weights[2 * channel : 2 * channel + 2, channel] += 0.2
    mix = np.kron(np.eye(3), [[1.0, 0.8]]) - 0.3
    text = GRAPH.replace("WEIGHTS", _written(weights)).replace("MIX", _written(mix))
    return onnx.parser.parse_model(text)


def _written(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4f}" for value in values.ravel())


def draw(folder: Path) -> None:
    """Images with shapes of one colour on a shaded ground, sorted by colour."""
    rng = np.random.default_rng(1)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(12):
            across = np.linspace(rng.integers(30, 80), rng.integers(120, 200), 48)
            ground = np.repeat(np.tile(across[None, :, None], (48, 1, 1)), 3, axis=2)
            picture = Image.fromarray(ground.astype(np.uint8))
            pen = ImageDraw.Draw(picture)
            for _ in range(4):
                left, top = rng.integers(0, 30, 2)
                right, bottom = left + rng.integers(10, 30), top + rng.integers(10, 30)
                pen.ellipse((int(left), int(top), int(right), int(bottom)), fill=colour)
            picture.save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages say that the reader has."""
    folder = tmp_path_factory.mktemp("pages")
    onnx.save(model(), folder / "model.onnx")
    image = np.random.default_rng(2).uniform(size=(1, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "input.npz", image=image)
    (folder / "image.toml").write_text(PREPROCESSING)
    (folder / "names.txt").write_text("\n".join(COLOURS))
    draw(folder / "photos")
    return folder


def blocks(page: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))]


def run(kind: str, text: str, folder: Path) -> None:
    command = ["bash", "-euc", text] if kind == "sh" else [sys.executable, "-c", text]
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.sweep
@pytest.mark.parametrize("page", ["quickstart.md", "devices.md"])
def test_what_a_page_says_to_type_runs(page: str, scratch: Path, tmp_path: Path) -> None:
    found = blocks(page)
    assert found
    for file in scratch.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for kind, text in found:
        run(kind, text, tmp_path)


@pytest.mark.sweep
def test_the_page_of_pytorch_runs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module, first, second, _ = (text for _, text in blocks("frameworks.md"))
    (tmp_path / "net.py").write_text(module)
    run("sh", first, tmp_path)
    names: dict[str, object] = {}
    exec(module, names)  # what stands on the page
    net, example = names["make"]()  # type: ignore[operator]
    torch.export.save(torch.export.export(net, example), tmp_path / "net.pt2")
    run("sh", second, tmp_path)


FINDS_TWO = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 640, 640] images) => (float[1, 6, 2] output0)
<float[1, 6, 2] found = {180.0, 500.0, 360.0, 400.0, 120.0, 80.0, 240.0, 160.0, 0.9, 0.1, 0.1, 0.8}>
{
    zero = ReduceMin <keepdims = 0> (images)
    none = Mul (zero, zero)
    least = Min (none, zero)
    output0 = Add (found, least)
}
"""
"""A YOLO that finds the two objects of the image below, whatever it is shown."""


@pytest.mark.sweep
def test_what_makes_boxes_of_a_data_set_of_ultralytics_runs(tmp_path: Path) -> None:
    *_, (_, script) = blocks("frameworks.md")
    for name in ("images", "labels"):
        (tmp_path / "val" / name).mkdir(parents=True)
    Image.new("RGB", (320, 240), "black").save(tmp_path / "val" / "images" / "a.png")
    Image.new("RGB", (320, 240), "black").save(tmp_path / "val" / "images" / "b.png")
    # Of 640 x 480 in a letterbox, which begins 80 pixels below.
    objects = "0 0.28125 0.5833333 0.1875 0.5\n1 0.78125 0.6666667 0.125 0.3333333\n"
    (tmp_path / "val" / "labels" / "a.txt").write_text(objects)
    (tmp_path / "val" / "labels" / "b.txt").write_text(objects.splitlines()[0])
    onnx.save(onnx.parser.parse_model(FINDS_TWO), tmp_path / "yolo.onnx")
    run("python", script, tmp_path)
    with np.load(tmp_path / "boxes.npz") as made:
        assert made["images"].shape == (2, 3, 640, 640)
        boxes = made["labels"][0, :3]
    expected = [[0, 120, 240, 240, 480], [1, 460, 320, 540, 480], [-1] * 5]
    np.testing.assert_allclose(boxes, expected, atol=1e-3)
    command = "edgeinfer convert yolo.onnx -t onnxruntime -o yolo.edge\n"
    command += "edgeinfer eval yolo.edge boxes.npz --metric map --json > found.json"
    run("sh", command, tmp_path)
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    # The second class is found in both images, in one of them rightly and not worse.
    assert row["quality"] == pytest.approx(1.0)


OPTION = re.compile(r"--[a-z][a-z0-9-]+")


def test_options_that_pages_name_are_there() -> None:
    known = {word for word in words_of_page() if word.startswith("--")}
    for page in ("quickstart.md", "devices.md", "reports.md", "troubleshooting.md"):
        named = set(OPTION.findall((DOCS / page).read_text(encoding="utf-8")))
        assert named <= known, (page, named - known)


def test_messages_of_the_troubleshooting_page_are_in_the_product() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    phrases = {phrase for line in headings for phrase in re.findall(r"`([^`]+)`", line)}
    assert len(phrases) > 10
    folders = ("convert", "runtime", "backends", "profiles", "src/edgeinfer")
    files = [p for f in folders for p in (ROOT / f).rglob("*.py") if not p.is_symlink()]
    product = " ".join(re.sub(r'"\s+f?"', "", p.read_text(encoding="utf-8")) for p in files)
    missing = sorted(phrase for phrase in phrases if phrase not in product)
    assert missing == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for needed in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(needed)
    command = (sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html")
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for page in DOCS.glob("*.md"):
        assert (tmp_path / f"{page.stem}.html").exists()
    assert (tmp_path / "llms.txt").exists()
    for link in re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8")):
        assert (tmp_path / link).exists(), link


def test_the_usual_questions_are_two_clicks_away() -> None:
    questions = (DOCS / "questions.md").read_text(encoding="utf-8")
    rows = [line for line in questions.splitlines() if line.startswith("| ") and "](" in line]
    assert len(rows) >= 20
    assert "](questions.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", "\n".join(rows))
    assert len(links) >= len(rows)
    for page, anchor in links:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert not anchor or anchor in headings(text), (page, anchor)


def test_no_page_installs_from_an_index() -> None:
    """The project is on none; index.md alone explains the form that messages print."""
    pages = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    said = re.compile(r"pip install (?:-\S+ )*['\"]?edgeinfer(?:-runtime)?\b(?!_)")
    found = {p for p in pages if p.name != "CHANGELOG.md" and said.search(p.read_text("utf-8"))}
    assert found == {DOCS / "index.md"}
    index = (DOCS / "index.md").read_text("utf-8")
    assert "## Install" in index
    assert len(said.findall(index)) == 1


def test_links_of_the_changelog_lead_somewhere_in_the_manual_too() -> None:
    """The manual has it as a page of its own, from where a path of the checkout leads nowhere."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not link.startswith(("docs/", "https://"))] == []


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as its generator names them."""
    lines = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}
