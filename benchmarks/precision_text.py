"""Text for the precision benchmark: words in scenes, sentence pairs, mail."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.precision_case import Case, traced
from edgeinfer.convert.quantize import task_metrics
from edgeinfer.types import Array
from tests.zoo import fetch

WORDS: tuple[tuple[str, tuple[int, int, int, int] | None, str], ...] = (
    ("scenetext-word01.jpg", None, "CHINA"),
    ("scenetext-word02.jpg", None, "HERE"),
    ("scenetext-word03.jpg", None, "riser"),
    ("scenetext-word04.jpg", None, "Produkt"),
    ("scenetext01.jpg", (276, 33, 430, 76), "NOTICE"),
    ("scenetext01.jpg", (277, 86, 424, 121), "DOUBLE"),
    ("scenetext01.jpg", (276, 129, 423, 163), "PARKING"),
    ("scenetext01.jpg", (276, 171, 422, 207), "PROHIBITED"),
    ("scenetext01.jpg", (285, 213, 406, 251), "AT ALL TIMES"),
    ("scenetext01.jpg", (223, 504, 238, 518), "The"),
    ("scenetext01.jpg", (209, 517, 250, 535), "Washington"),
    ("scenetext01.jpg", (219, 532, 237, 550), "Post"),
    ("scenetext02.jpg", (435, 617, 784, 699), "Sports Centre"),
    ("scenetext02.jpg", (435, 689, 792, 766), "Wivenhoe Park"),
    ("scenetext02.jpg", (434, 756, 892, 844), "Conference Centre"),
    ("scenetext02.jpg", (434, 831, 681, 903), "Car Parks"),
    ("scenetext03.jpg", (208, 547, 615, 619), "copy centre"),
    ("scenetext03.jpg", (128, 575, 188, 611), "the"),
    ("scenetext04.jpg", (422, 416, 557, 459), "GM 125"),
    ("scenetext05.jpg", (90, 174, 225, 218), "NO PARKING"),
    ("scenetext05.jpg", (476, 316, 690, 387), "NO PARKING"),
    ("scenetext06.jpg", (294, 157, 331, 174), "PRIORY"),
    ("scenetext06.jpg", (289, 175, 337, 192), "galleries"),
    ("scenetext06.jpg", (295, 202, 330, 214), "the ship"),
    ("scenetext-segmented01.jpg", (127, 222, 515, 292), "HOTEL"),
    ("scenetext-segmented02.jpg", (59, 228, 425, 294), "Stationery"),
    ("scenetext-segmented02.jpg", (447, 228, 589, 288), "Box"),
    ("scenetext-segmented02.jpg", (376, 448, 431, 460), "COMPUTER"),
    ("scenetext-segmented03.jpg", (146, 75, 485, 129), "Customer"),
    ("scenetext-segmented03.jpg", (128, 156, 501, 223), "Freephone"),
    ("scenetext-segmented03.jpg", (112, 244, 344, 304), "Private"),
    ("scenetext-segmented03.jpg", (367, 243, 515, 307), "Hire"),
    ("scenetext-segmented03.jpg", (175, 331, 441, 400), "Service"),
    ("scenetext-segmented04.jpg", (315, 151, 374, 223), "F"),
    ("scenetext-segmented04.jpg", (83, 286, 579, 368), "FOSTER'S"),
    ("scenetext-segmented05.jpg", (176, 40, 494, 125), "SANYO"),
    ("scenetext-segmented05.jpg", (185, 330, 344, 380), "PRO"),
    ("scenetext-segmented05.jpg", (328, 340, 473, 380), "xtraX"),
    ("scenetext-segmented05.jpg", (184, 385, 473, 404), "MULTIMEDIA PROJECTOR"),
    ("page.png", (7, 13, 291, 32), "Region-based segmentation"),
)
"""Pictures, boxes of words in them and what is written there."""

WIDTH = 320
"""Of a line as the reader takes it, 48 high."""


def words(work: Path) -> Case:
    """PP-OCRv4's reader on words in scenes; calibrated with words printed over other photos."""
    import onnx_ir as ir

    from edgeinfer.convert import passes, sources

    model = work / "ppocrv4-rec.onnx"
    if not model.exists():
        source = sources.read(fetch("ppocrv4-rec.onnx"))
        shapes = {"x": (1, 3, 48, WIDTH)}
        ir.save(passes.normalise(source.model, input_shapes=shapes).model, model)
    names = ("", *fetch("ppocr-keys.txt").read_text("utf-8").split("\n"), " ")
    feeds, texts = [], []
    for picture, text in printed(96):
        feeds.append({"x": line(picture)})
        texts.append(text)
    tests = [{"x": line(cut(fetch(name), box))} for name, box, _ in WORDS]
    written = [text for _, _, text in WORDS]
    metric = task_metrics.Named("cer", names)
    return Case("ppocrv4-rec", model, feeds, tests, metric, written, texts, "right characters")


def cut(path: Path, box: tuple[int, int, int, int] | None) -> Any:
    """Cut a word out of a picture."""
    from PIL import Image

    picture = Image.open(path).convert("RGB")
    return picture.crop(box or (0, 0, *picture.size))


def line(picture: Any) -> Array:
    """Bring a line of text to the reader's size."""
    from PIL import Image

    wide = min(WIDTH, max(1, round(48 * picture.width / picture.height)))
    pixels = np.asarray(picture.resize((wide, 48), Image.Resampling.BILINEAR), np.float32)
    made = np.zeros((1, 3, 48, WIDTH), np.float32)
    made[0, :, :, :wide] = (pixels[..., ::-1] / 127.5 - 1.0).transpose(2, 0, 1)
    return made


def printed(count: int) -> Iterator[tuple[Any, str]]:
    """Words of mails, printed over pieces of photos in colours, sizes and slants of their own."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    rng = np.random.default_rng(0)
    photos = [Image.open(fetch(name)).convert("RGB") for name in PHOTOS]
    plain = re.compile(r"[A-Za-z0-9][A-Za-z0-9'.-]{1,11}")
    texts = (t for _, mail in mails() for t in plain.findall(mail.partition("\n\n")[2])[20:60:13])
    for index, text in zip(range(count), texts, strict=False):
        text = (text.upper(), text, text.title())[index % 3]
        height = int(rng.integers(20, 80))
        font = ImageFont.load_default(height)
        left, top, right, bottom = ImageDraw.Draw(photos[0]).textbbox((0, 0), text, font)
        edge = [int(rng.integers(2, 3 + height // 4)) for _ in range(4)]
        size = int(right - left) + edge[0] + edge[2], int(bottom - top) + edge[1] + edge[3]
        photo = photos[index % len(photos)]
        x, y = (int(rng.integers(0, max(1, p - s))) for p, s in zip(photo.size, size, strict=True))
        ground = photo.crop((x, y, x + size[0], y + size[1]))
        paper = Image.new("RGB", size, tuple(int(v) for v in rng.integers(0, 256, 3)))
        ground = Image.blend(ground, paper, float(rng.uniform(0.5, 0.95)))
        # Ink that differs from what it is on.
        bright = float(np.asarray(ground.convert("L")).mean()) > 127
        ink = rng.integers(0, 70, 3) if bright else rng.integers(185, 256, 3)
        place = edge[0] - left, edge[1] - top
        ImageDraw.Draw(ground).text(place, text, fill=tuple(int(v) for v in ink), font=font)
        ground = ground.rotate(float(rng.normal(0, 1.5)), Image.Resampling.BILINEAR, fillcolor=0)
        yield ground.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, height / 40)))), text


PHOTOS = (
    *("coffee.png", "chelsea.png", "astronaut.png", "rocket.jpg", "baboon.jpg", "fruits.jpg"),
    *("home.jpg", "building.jpg", "grass.png", "messi5.jpg"),
)


PAIRS: tuple[tuple[str, str], ...] = (
    ("The cat sits outside.", "A cat is sitting in the yard."),
    ("The new movie is awesome.", "The new film is so great."),
    ("A man is playing guitar.", "Someone plays a string instrument."),
    ("How do I reset my password?", "I forgot my login and need a new one."),
    ("The train leaves at noon.", "Departure of the railway is at twelve o'clock."),
    ("She bought a red car.", "A crimson vehicle was purchased by her."),
    ("The stock market fell today.", "Shares lost value this afternoon."),
    ("He is cooking dinner for his family.", "A father prepares the evening meal."),
    ("It rained all night.", "There was wet weather until the morning."),
    ("The doctor examined the patient.", "A physician looked at the sick person."),
    ("Children are playing football in the park.", "Kids kick a ball on the grass."),
    ("The battery of my phone is empty.", "My mobile has run out of power."),
    ("The recipe needs two eggs and flour.", "To bake this you want eggs and some flour."),
    ("The museum is closed on Mondays.", "You cannot visit the gallery at the start of the week."),
    ("Scientists found water on the moon.", "Researchers discovered ice on our satellite."),
    ("The plane landed safely.", "The aircraft touched down without trouble."),
    ("I would like a cup of tea.", "Could you bring me a hot drink, please?"),
    ("The bridge was built in 1890.", "Construction of the crossing ended in the 19th century."),
    ("My dog barks at strangers.", "The puppy makes noise when visitors come."),
    ("The election results are in.", "The votes have been counted."),
    ("Prices for oil went up.", "Petroleum has become more expensive."),
    ("The teacher explained the lesson.", "The pupils were taught by their instructor."),
    ("The river flooded the village.", "Houses stood under water after the stream rose."),
    ("He broke his leg while skiing.", "A winter sports accident fractured his bone."),
    ("The concert was sold out.", "No tickets were left for the music show."),
    ("Turn left at the next corner.", "Take the following street on your left hand."),
    ("The computer crashed again.", "My machine stopped working once more."),
    ("They married last summer.", "The couple had their wedding in July."),
    ("The shop opens at nine.", "You can buy things there from 9 am."),
    ("The book tells the story of a sailor.", "A novel about a man at sea."),
    ("Bees make honey.", "A sweet food is produced by insects in hives."),
    ("The thief was arrested by the police.", "Officers caught the burglar."),
    ("We missed the bus this morning.", "We were too late for public transport."),
    ("The soup is too salty.", "There is far too much salt in this broth."),
    ("The lake is frozen in winter.", "Ice covers the water in the cold season."),
    ("Her grandmother lives in Spain.", "An old relative of hers has a home in Madrid."),
    ("The company hired ten engineers.", "Ten technicians found a job at the firm."),
    ("The volcano erupted yesterday.", "Lava came out of the mountain a day ago."),
    ("Please turn down the music.", "Could you make the sound less loud?"),
    ("The flight was delayed by fog.", "Bad visibility made our plane late."),
)
"""Two sentences of one meaning each."""

TOKENS = 32

CALIBRATING = 256
"""Sentences of mails: with two pieces of each, as many as a search measures on at most. With a
quarter of them the error of a drop was 2.4 %, more than the budget."""


def minilm(work: Path) -> Case:
    """MiniLM: which sentence means the same? Calibrated with sentences of mails.

    Of each sentence there are two pieces that share half of it: they belong together. With so many
    sentences the float net finds 95 % of them, so it is a harder task than the test's.
    """
    import onnx_ir as ir
    import torch

    from edgeinfer.convert import passes, sources
    from tests.zoo.nets import torch_model

    model, data = work / "minilm.onnx", work / "minilm-pieces.npz"
    names = ("input_ids", "attention_mask")
    if not model.exists():
        module, _, _ = torch_model("minilm")
        ids = torch.ones((1, TOKENS), dtype=torch.int64)
        source = sources.read(module, example_inputs=dict.fromkeys(names, ids))
        ir.save(passes.normalise(source.model).model, model)
    if not data.exists():
        sentences = [s for pair in PAIRS for s in pair]
        pieces = [p for s in _sentences(CALIBRATING) for p in _pieces(s)]
        np.savez(data, mail=tokens(pieces), tests=tokens(sentences))
    stored = np.load(data)

    def runs(ids: Array) -> list[dict[str, Array]]:
        masks = (ids > 0).astype(np.int64)
        return [
            dict(zip(names, (i[None], m[None]), strict=True))
            for i, m in zip(ids, masks, strict=True)
        ]

    wanted = [i // 2 for i in range(2 * len(PAIRS))]
    known = [i // 2 for i in range(2 * CALIBRATING)]
    metric = task_metrics.Named("cosine")
    return Case(
        *("minilm", model, runs(stored["mail"]), runs(stored["tests"]), metric, wanted, known),
        unit="right pairs",
    )


def _pieces(sentence: str) -> tuple[str, str]:
    """Return the first and the last three quarters of the words."""
    words = sentence.split()
    quarter = len(words) // 4
    return " ".join(words[: len(words) - quarter]), " ".join(words[quarter:])


def tokens(sentences: Sequence[str]) -> Array:
    """Token ids of sentences, filled up with zeros."""
    from tests.zoo.nets import wordpiece_ids

    made = np.zeros((len(sentences), TOKENS), np.int64)
    for row, text in zip(made, sentences, strict=True):
        ids = wordpiece_ids(text)[:TOKENS]
        row[: len(ids)] = ids
    return made


def _sentences(count: int) -> Iterator[str]:
    """Sentences out of mails, one of each; what many mails say is given once.

    Pieces of a sentence that is there twice belong to either, and chance decides which is found.
    """
    plain = re.compile(r"^[A-Z][A-Za-z0-9 ,.'?!\n]{30,140}[.?!]$")
    seen: set[str] = set()
    for _, text in mails():
        body = text.partition("\n\n")[2]
        found = next((s for s in body.split("\n\n") if plain.match(s.strip())), None)
        sentence = " ".join((found or "").split())
        if sentence and sentence not in seen:
            seen.add(sentence)
            yield sentence
            count -= 1
        if count == 0:
            return


def mails() -> Iterator[tuple[int, str]]:
    """Every mail in a fixed shuffled order: whether it is spam, and its text."""
    files = sorted(fetch("spam-assassin").glob("*/*.json"))
    for place in np.random.default_rng(0).permutation(len(files)):
        path = files[place]
        yield int(path.parent.name.startswith("spam")), json.loads(path.read_text())["text"]


VOCABULARY, WORDS_READ = 8192, 256


def spam(work: Path) -> Case:
    """A text CNN on mails: subject and body, words hashed; trained on three quarters."""
    model, data = work / "spam.onnx", work / "spam-tokens.npz"
    if not data.exists():
        rows = [(label, hashed(text)) for label, text in mails()]
        np.savez(data, labels=[r[0] for r in rows], ids=np.stack([r[1] for r in rows]))
    stored = np.load(data)
    ids, labels = stored["ids"], stored["labels"]
    cut = len(labels) * 3 // 4
    if not model.exists():
        _train_spam(ids[:cut], labels[:cut], model)
    feeds = [{"x": i[None]} for i in ids[:200]]
    tests = [{"x": i[None]} for i in ids[cut : cut + 800]]
    metric = task_metrics.Named("f1")
    known, wanted = labels[:200].tolist(), labels[cut : cut + 800].tolist()
    return Case("spam", model, feeds, tests, metric, wanted, known, "F1")


def hashed(text: str) -> Array:
    """The first words of subject and body as numbers; headers would give the answer away."""
    head, _, body = text.partition("\n\n")
    subject = re.search(r"^Subject: (.*)$", head, re.MULTILINE)
    words = re.findall(r"[a-z']{2,}|\d+|[$!%]", f"{subject[1] if subject else ''} {body}".lower())
    made = np.zeros(WORDS_READ, np.int64)
    ids = [1 + zlib.crc32(w.encode()) % (VOCABULARY - 1) for w in words[:WORDS_READ]]
    made[: len(ids)] = ids
    return made


def _train_spam(ids: Array, labels: Array, path: Path) -> None:
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, 32)
            self.near = nn.Conv1d(32, 64, 5, padding=2)
            self.last = nn.Linear(64, 2)

        def forward(self, x: Any) -> Any:
            y = self.near(self.words(x).transpose(1, 2)).relu()
            return self.last(y.amax(dim=2))

    torch.manual_seed(0)
    net = Net()
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    x, y = torch.from_numpy(ids), torch.from_numpy(labels)
    for _ in range(4):
        for part in torch.randperm(len(y)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimiser.step()
    traced(net.eval(), x[:1], path)
