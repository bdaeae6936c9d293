"""Every way into edgeinfer, with machine code that nobody vouches for: none of it may run."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from edgeinfer.errors import NotAvailableError, SignatureError, UntrustedError
from edgeinfer.tasks import Classifier
from tests.trust import marked
from tests.trust.marked import Mark

pytest.importorskip("PIL")
pytest.importorskip("cryptography")
pytest.importorskip("tvm", reason="apache-tvm is not installed")

Enter = Callable[[Path, dict[str, Any]], object]

PICTURE = np.zeros((8, 8, 3), np.uint8)


@pytest.fixture
def mark(tmp_path: Path) -> Mark:
    return Mark(tmp_path / "mark")


@pytest.fixture
def bundle(tmp_path: Path, mark: Mark) -> Path:
    return marked.write(tmp_path / "b.edge", tmp_path, mark)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Private keys of ours and of a stranger; the public ones end with .pub."""
    for name in ("ours", "other"):
        new_keys(tmp_path / name, tmp_path / f"{name}.pub")
    return tmp_path / "ours", tmp_path / "other"


def _signed(bundle: Path, key: Path) -> None:
    with edgeinfer.Bundle.open(bundle) as opened:
        content, _ = sign(opened.manifest_bytes(), key)
    put_signatures(bundle, content)


def _load(path: Path, options: dict[str, Any]) -> object:
    with edgeinfer.load(path, measure=True, **options) as session:
        return session.run({"image": np.zeros((1, 3, 8, 8), np.float32)})


def _isolated(path: Path, options: dict[str, Any]) -> object:
    return _load(path, {**options, "isolate": True})


def _pipeline(path: Path, options: dict[str, Any]) -> object:
    with edgeinfer.pipeline(path, **options) as opened:
        return opened(PICTURE)


def _task(path: Path, options: dict[str, Any]) -> object:
    with Classifier(path, **options) as task:
        return task.classify(PICTURE)


def _runtime(path: Path, options: dict[str, Any]) -> object:
    with edgeinfer.Runtime(threads=1, **options) as runtime:
        return runtime.add(path, pinned=True)(np.zeros((1, 3, 8, 8), np.float32))


def _of_model(path: Path, options: dict[str, Any]) -> object:
    with edgeinfer.Runtime(threads=1) as runtime:
        return runtime.add(path, **options)(np.zeros((1, 3, 8, 8), np.float32))


def _verify(path: Path, options: dict[str, Any]) -> object:
    return edgeinfer.verify(path, **options)


def _bench(path: Path, options: dict[str, Any]) -> object:
    return edgeinfer.bench(path, seconds=0.05, runs=2, **options)


def _served(path: Path, options: dict[str, Any]) -> object:
    """What ``edgeinfer serve`` does before and after it listens."""
    from edgeinfer.runtime.serve.hub import Hub
    from edgeinfer.runtime.serve.options import ServeOptions

    hub = Hub([f"m={path}"], ServeOptions(), options)
    try:
        hub.loader.load_all(hub.models.values())
        assert hub.models["m"].is_ready, hub.models["m"].state
        return hub.models["m"].tensors
    finally:
        hub.close()


CALLS = (
    *(_load, _isolated, _pipeline, _task, _runtime, _of_model),
    *(_verify, _bench, _served),
)

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": (),
    "generate": ("hello",),
    "chat": (),
    "run": ("picture.png",),
    "verify": (),
    "eval": ("pictures", "--metric", "top1"),
    "compare": ("{bundle}",),
    "bench": ("--seconds", "0.05", "--runs", "2"),
    "build": (),
    "doctor": (),
    "encrypt": ("-k", "secret", "--new-key", "-o", "sealed.edge"),
    "extract": ("-o", "extracted"),
    "join": ("-o", "out.mlpackage"),
    "tune": ("-t", "tvm-x86-64-v3", "--minutes", "0.01", "--trials", "1"),
}
"""Commands that open a bundle, with arguments that make them go as far as they can."""

OTHERS = {
    *("convert", "check", "targets", "devices", "completion", "cache"),
    # They take a bundle's bytes and open none of its parts.
    *("sign", "decrypt"),
    # It goes on until it is ended; it opens bundles as ``Runtime`` does.
    "serve",
}

RUNS = {"run", "verify", "eval", "compare", "bench", "build", "doctor", "generate", "chat"}


def _command(name: str, bundle: Path, *options: str) -> int:
    first = f"main={bundle}" if name == "join" else str(bundle)
    arguments = (argument.format(bundle=bundle) for argument in COMMANDS[name])
    return guarded(group, [name, first, *arguments, *options])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.fromarray(PICTURE).save("picture.png")
    for label in ("red", "green"):
        Path("pictures", label).mkdir(parents=True)
        Image.fromarray(PICTURE).save(f"pictures/{label}/picture.png")


def test_every_command_is_in_one_of_the_lists() -> None:
    assert set(COMMANDS) | OTHERS == set(group.list_commands(click.Context(group)))


@pytest.mark.parametrize("enter", CALLS)
class TestCalls:
    @pytest.mark.sample(3)
    def test_data_run_and_code_does_not(self, enter: Enter, bundle: Path, mark: Mark) -> None:
        assert enter(bundle, {}) is not None
        assert mark.times() == 0

    def test_an_unsigned_one_is_refused_first(
        self, enter: Enter, bundle: Path, mark: Mark, keys: tuple[Path, Path]
    ) -> None:
        for options in (
            {"require_signature": True},
            {"trusted": [f"{keys[0]}.pub"], "native": "allow"},
            {"require_signature": True, "native": "allow"},
        ):
            with pytest.raises(SignatureError):
                enter(bundle, options)
            assert mark.times() == 0

    @pytest.mark.sample(4)
    def test_one_that_a_stranger_signed_too(
        self, enter: Enter, bundle: Path, mark: Mark, keys: tuple[Path, Path]
    ) -> None:
        ours, other = keys
        _signed(bundle, other)
        with pytest.raises(SignatureError):
            enter(bundle, {"trusted": [f"{ours}.pub"]})
        assert mark.times() == 0
        # Whoever signed it: without a key to hold it against that says nothing.
        assert enter(bundle, {}) is not None
        assert mark.times() == 0

    @pytest.mark.sample(4)
    def test_one_that_was_changed_behind_its_signature_too(
        self, enter: Enter, bundle: Path, mark: Mark, keys: tuple[Path, Path], tmp_path: Path
    ) -> None:
        ours, _ = keys
        _signed(bundle, ours)
        harmless = Mark(tmp_path / "nobody")
        clean = marked.write(tmp_path / "clean.edge", tmp_path, harmless)
        with edgeinfer.Bundle.open(bundle) as opened:
            content = opened.signatures()
        assert content is not None
        put_signatures(clean, content)
        with pytest.raises(SignatureError, match="is not of it"):
            enter(clean, {"trusted": [f"{ours}.pub"]})
        assert harmless.times() == mark.times() == 0

    @pytest.mark.sample(3)
    def test_code_runs_where_it_is_signed_or_allowed(
        self,
        enter: Enter,
        bundle: Path,
        mark: Mark,
        keys: tuple[Path, Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert enter(bundle, {"native": "allow"}) is not None
        assert mark.times() > 0
        monkeypatch.setenv("EDGEINFER_NATIVE", "allow")
        monkeypatch.setenv("EDGEINFER_CACHE", "other-cache")
        assert enter(bundle, {}) is not None
        assert mark.times() > 0
        monkeypatch.delenv("EDGEINFER_NATIVE")
        _signed(bundle, keys[0])
        monkeypatch.setenv("EDGEINFER_CACHE", "third-cache")
        options: dict[str, Any] = {"trusted": [f"{keys[0]}.pub"]}
        assert enter(bundle, {**options, "native": "deny"}) is not None
        assert mark.times() == 0
        assert enter(bundle, options) is not None
        assert mark.times() > 0


@pytest.mark.parametrize("name", COMMANDS)
class TestCommands:
    def test_code_of_a_stranger_does_not_run(self, name: str, bundle: Path, mark: Mark) -> None:
        code = _command(name, bundle)
        # Kernels are tuned on a machine of the kind that they are for.
        refused = {"build": 3, "join": 2, "generate": 2, "chat": 2}
        assert code == refused.get(name, 0) or (name == "tune" and code == 2)
        assert mark.times() == 0

    def test_what_is_not_signed_is_refused_first(
        self, name: str, bundle: Path, mark: Mark, keys: tuple[Path, Path]
    ) -> None:
        allow = ("--allow-native",) if name in RUNS else ()
        assert _command(name, bundle, "--require-signature", *allow) == 1
        assert _command(name, bundle, "--trusted", f"{keys[0]}.pub", *allow) == 1
        _signed(bundle, keys[1])
        assert _command(name, bundle, "--trusted", f"{keys[0]}.pub", *allow) == 1
        assert mark.times() == 0
        assert not Path("sealed.edge").exists()
        assert not Path("extracted").exists()

    @pytest.mark.sample(6)
    def test_what_was_changed_is_refused_first(
        self,
        name: str,
        bundle: Path,
        mark: Mark,
        keys: tuple[Path, Path],
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """Another bundle under a good signature, and files changed in a bundle that has one."""
        allow = ("--allow-native",) if name in RUNS else ()
        trusted = ("--trusted", f"{keys[0]}.pub", *allow)
        _signed(bundle, keys[0])
        with edgeinfer.Bundle.open(bundle) as opened:
            content = opened.signatures()
        assert content is not None
        clean = marked.write(tmp_path / "clean.edge", tmp_path, Mark(tmp_path / "nobody"))
        put_signatures(clean, content)
        assert _command(name, clean, *trusted) == 1
        assert "is not of it" in capfd.readouterr().err
        folder = tmp_path / "unpacked.edge"
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(folder)
        for file in (*folder.glob("variants/*/*"), *folder.glob("code/*")):
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        # That it is no language model its manifest says, which is unchanged.
        is_none = name in ("generate", "chat")
        assert _command(name, folder, *trusted) == (2 if is_none else 1)
        assert is_none or "is altered" in capfd.readouterr().err
        assert mark.times() == 0
        assert not Path("sealed.edge").exists()
        assert not Path("extracted").exists()

    @pytest.mark.sample(4)
    def test_code_runs_where_that_is_asked_for(self, name: str, bundle: Path, mark: Mark) -> None:
        if name in RUNS:
            _command(name, bundle, "--allow-native")
        assert (mark.times() > 0) == (name in RUNS - {"build", "doctor", "generate", "chat"})


def test_a_folder_is_held_to_it_too(bundle: Path, mark: Mark, tmp_path: Path) -> None:
    folder = tmp_path / "folder.edge"
    shutil.unpack_archive(bundle, folder, "zip")
    for enter in CALLS:
        assert enter(folder, {}) is not None
    assert mark.times() == 0


def test_one_with_nothing_but_code_says_why_it_does_not_run(tmp_path: Path, mark: Mark) -> None:
    bundle = marked.write(tmp_path / "code.edge", tmp_path, mark, formats=("tvm",))
    with pytest.raises(NotAvailableError, match="is machine code, and no trusted key signed"):
        edgeinfer.load(bundle)
    assert guarded(group, ["verify", str(bundle)]) == 3
    assert mark.times() == 0


def test_what_was_left_out_is_told(bundle: Path) -> None:
    with edgeinfer.load(bundle) as session:
        (note,) = [n for n in session.report().notes if "left out" in n]
    assert note.startswith("cpu-tvm-fp32, cpu-onnx_tvm-fp32 left out: machine code, and no trusted")
    assert "--allow-native" in note
    with edgeinfer.pipeline(bundle) as opened:
        notes = opened.models[0].session.report().notes
    assert any(n.startswith("code/") and "left out" in n for n in notes)


@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--json")])
def test_inspect_names_what_is_machine_code(
    bundle: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = words
    assert guarded(group, [name, str(bundle), *more]) == 0
    told = capsys.readouterr().out
    for part in ("cpu-tvm-fp32", "cpu-onnx_tvm-fp32", "code/"):
        assert part in told
    assert "no trusted key signed the bundle and this machine did not make it" in told
    assert ('"native_allowed": false' if more else "which is left out here") in told


def test_no_path_of_it_is_given_to_anybody(bundle: Path) -> None:
    with edgeinfer.Bundle.open(bundle) as opened:
        data, *native = opened.manifest.variants
        assert opened.paths(data)[0].is_file()
        for variant in native:
            with pytest.raises(UntrustedError, match="is machine code"):
                opened.paths(variant)
