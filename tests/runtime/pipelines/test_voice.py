"""Texts to sound, by models small enough to hear by hand."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import BundleError, InputError, RunError, UsageError
from edgeinfer.heads import Classify, Speak
from edgeinfer.results import Audio, as_json
from edgeinfer.tasks import Embedder, Speaker
from edgeinfer.types import ConstantInput, NoiseInput, SymbolInput
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.runtime.pipelines.conftest import MakeBundle

TENTHS = """
tenths (int64[1, T] ids) => (float[1, 1, T] sound)
<float tenth = {0.1}>
{
    wide = Cast <to = 1> (ids)
    flat = Mul(wide, tenth)
    axis = Constant <value_ints = [1]> ()
    sound = Unsqueeze(flat, axis)
}
"""
"""The id of a symbol is its sample, in tenths."""

PIPER = """
piper (int64[N, T] input, int64[N] input_lengths, float[3] scales) => (float[N, 1, 1, T] output)
<int64[1] first = {0}, float ten = {10.0}>
{
    wide = Cast <to = 1> (input)
    scale = Gather <axis = 0> (scales, first)
    count = Cast <to = 1> (input_lengths)
    share = Div(scale, count)
    part = Mul(wide, share)
    axes = Constant <value_ints = [1, 2]> ()
    output = Unsqueeze(part, axes)
}
"""

NOISY = """
noisy (int64[1, T] ids, float[1, 2, T] noise, float[1, 4] more) => (float[1, T] sound)
{
    some = Constant <value_ints = [1]> ()
    level = ReduceSum <keepdims = 0> (noise, some)
    all = ReduceSum <keepdims = 1> (more, some)
    sound = Add(level, all)
}
"""

TABLE = {"symbols.json": json.dumps({"a": 1, "b": 2, "c": 12, " ": 0}).encode()}
IDS = SymbolInput("symbols.json")


def voice(make: MakeBundle, **more: Any) -> Path:
    records = {"ids": SymbolInput("symbols.json", **more)}
    return make("voice", TENTHS, TABLE, head=Speak(100), preprocessing=records)


def test_a_text_becomes_samples(make: MakeBundle) -> None:
    with Speaker(voice(make, unknown="skip")) as speaker:
        said = speaker.say("ab!a")
    assert isinstance(said, Audio)
    np.testing.assert_allclose(said.samples, [0.1, 0.2, 0.1], rtol=1e-6)
    assert said.samples.dtype == np.float32
    assert (said.rate, said.left_out) == (100, ("!",))
    assert said.seconds == pytest.approx(0.03)
    told = {"kind": "audio", "seconds": said.seconds, "rate": 100, "left_out": ["!"]}
    assert as_json(said) == told


def test_a_wav_file_has_sixteen_bits_and_is_cut_at_the_ends(make: MakeBundle) -> None:
    with Speaker(voice(make)) as speaker:
        said = speaker.say("abc")
    assert said.samples[2] == pytest.approx(1.2)
    np.testing.assert_array_equal(np.frombuffer(said.pcm(), "<i2"), [3277, 6553, 32767])


def test_a_length_and_scales_as_piper_has_them(make: MakeBundle) -> None:
    rules: dict[str, Any] = {"begin": (3,), "end": (4,)}
    records = {
        "input": SymbolInput("symbols.json", **rules),
        "input_lengths": SymbolInput("symbols.json", field="length", **rules),
        "scales": ConstantInput((0.5, 1.0, 0.8)),
    }
    path = make("piper", PIPER, TABLE, head=Speak(8), preprocessing=records)
    with Speaker(path) as speaker:
        # 0.5 of the scales, over four ids.
        np.testing.assert_allclose(speaker.say("ab").samples, np.array([3, 1, 2, 4]) * 0.125)


def test_noise_is_that_of_its_seed_in_the_size_of_the_text(make: MakeBundle) -> None:
    records = {"ids": IDS, "noise": NoiseInput(7), "more": NoiseInput(8, scale=0.5)}
    path = make("noisy", NOISY, TABLE, head=Speak(8), preprocessing=records)
    with Speaker(path) as speaker:
        said = [speaker.say(text).samples for text in ("ab", "ab", "aba")]
    np.testing.assert_array_equal(said[0], said[1])
    for samples, count in zip(said, (2, 2, 3), strict=True):
        noise = np.random.default_rng(7).standard_normal((1, 2, count))
        more = 0.5 * np.random.default_rng(8).standard_normal((1, 4))
        np.testing.assert_allclose(samples, noise.sum(1)[0] + more.sum(), rtol=1e-5, atol=1e-6)


def test_inputs_that_make_no_voice(make: MakeBundle) -> None:
    said: dict[str, Any] = {"head": Speak(8)}
    noise = {"noise": NoiseInput(), "more": NoiseInput()}
    wrong = {
        "no input takes the ids": {"ids": SymbolInput("symbols.json", field="mask"), **noise},
        "input 'more' takes no text": {
            **{"ids": IDS, "noise": NoiseInput()},
            "more": edgeinfer.types.AudioInput(8),
        },
    }
    for number, (told, records) in enumerate(wrong.items()):
        path = make(f"noisy{number}", NOISY, TABLE, preprocessing=records, **said)
        with pytest.raises(UsageError, match=told):
            edgeinfer.pipeline(path)
    other = NOISY.replace("float[1, 4] more", "float[1, S] more")
    path = make("noisy", other, TABLE, preprocessing={"ids": IDS, **noise}, **said)
    with pytest.raises(UsageError, match=r"more: float32\[1, S\]: no text says how much"):
        edgeinfer.pipeline(path)
    records = {
        "input": SymbolInput("symbols.json", begin=(1,)),
        "input_lengths": SymbolInput("symbols.json", field="length"),
        "scales": ConstantInput((0.5, 1.0, 0.8)),
    }
    path = make("piper", PIPER, TABLE, preprocessing=records, **said)
    with pytest.raises(UsageError, match="'input', 'input_lengths' read the same text by other"):
        edgeinfer.pipeline(path)


def test_outputs_that_are_no_sound(make: MakeBundle) -> None:
    two = TENTHS.replace("[1, 1, T] sound", "[1, 2, T] sound")
    two = two.replace("sound =", "one =").rstrip().rstrip("}")
    two += "    sound = Concat <axis = 1> (one, one)\n}"
    path = make("two", two, TABLE, head=Speak(8), preprocessing={"ids": IDS})
    with Speaker(path) as speaker, pytest.raises(RunError, match=r"received float32\[1, 2, 2"):
        speaker.say("ab")
    bad = TENTHS.replace("{0.1}", "{inf}")
    path = make("bad", bad, TABLE, head=Speak(8), preprocessing={"ids": IDS})
    with Speaker(path) as speaker, pytest.raises(RunError, match="not finite"):
        speaker.say("ab")


def test_records_that_cannot_be(make: MakeBundle) -> None:
    for record, told in (
        (SymbolInput("symbols.txt"), r"expected a \.json file"),
        (SymbolInput("symbols.json", most=0), "most: expected above 0"),
        (SymbolInput("symbols.json", begin=(-1,)), "begin: expected at most 16 ids, none below 0"),
        (SymbolInput("symbols.json", marks=("ab",)), "marks: expected at most 64 symbols"),
        (SymbolInput("none.json"), r"pipeline/none\.json is not in extra_files"),
        (NoiseInput(-1), "scale, seed: expected above 0"),
    ):
        with pytest.raises(BundleError, match=told):
            make("wrong", TENTHS, TABLE, head=Speak(8), preprocessing={"ids": record})
    with pytest.raises(BundleError, match="sample_rate: expected above 0"):
        make("wrong", TENTHS, TABLE, head=Speak(0), preprocessing={"ids": IDS})


def test_another_task_is_refused(make: MakeBundle) -> None:
    path = voice(make)
    with pytest.raises(UsageError, match="takes a text and gives 'speak'; not for embedding"):
        Embedder(path)
    path = make("named", TENTHS, TABLE, head=Classify(), preprocessing={"ids": IDS})
    with pytest.raises(UsageError, match="takes ids; name the bundle"):
        Speaker(path)


def test_the_command_writes_what_is_said(cli: Cli, make: MakeBundle, tmp_path: Path) -> None:
    path, out = voice(make, unknown="skip"), tmp_path / "said.wav"
    result = cli("run", path, "ab!", "-o", out)
    assert result.code == 0, result.err
    assert "0.02  100     0.20  '!'" in result.out
    assert f"saved to {out}\n" in result.out
    with wave.open(str(out)) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        assert form == (1, 2, 100)
        np.testing.assert_array_equal(np.frombuffer(file.readframes(9), "<i2"), [3277, 6553])
    (tmp_path / "text.txt").write_text("a")
    result = cli("run", path, tmp_path / "text.txt", "-o", out, "--json")
    (found,) = json.loads(result.out)["results"]
    assert (found["found"][0]["seconds"], json.loads(result.out)["saved"]) == (0.01, str(out))


def test_the_command_writes_a_sound_and_nothing_else(
    cli: Cli, make: MakeBundle, tmp_path: Path
) -> None:
    path = voice(make)
    for arguments, told in (
        (("ab", "ba", "-o", "x.wav"), "-o x.wav: expected one INPUT, received 2"),
        (("ab", "--raw", "-o", "x.wav"), "expected a name that ends with .npz"),
        (("x.npz", "-o", "x.wav"), "-o FILE.wav take images, recordings or texts, not arrays"),
    ):
        result = cli("run", path, *arguments)
        assert (result.code, told in result.err) == (2, True), result.err
    (tmp_path / "x.wav").write_text("mine")
    result = cli("run", path, "ab", "-o", tmp_path / "x.wav")
    assert "is no wav file; add --overwrite" in result.err
    assert (tmp_path / "x.wav").read_text() == "mine"
    records = {"ids": edgeinfer.types.TextInput("vocab.txt", 6)}
    files = {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na"}
    other = make("named", TENTHS, files, head=Classify(), preprocessing=records)
    result = cli("run", other, "ab", "-o", tmp_path / "y.wav")
    assert "gives 'classify', no audio; -o FILE.npz keeps tensors" in result.err
    assert not (tmp_path / "y.wav").exists()
    with Speaker(path) as speaker, pytest.raises(InputError, match=r"received 'x' \(U\+0078\)"):
        speaker.say("x")
