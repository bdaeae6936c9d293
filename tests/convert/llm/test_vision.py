"""Vision parts: what a folder says of pictures, and the tower as transformers computes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import source, tokenizer, tower
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.vision import VisionSource
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.request import check_request
from edgeinfer.errors import SourceError, UsageError
from edgeinfer.llm.step import PAGE, StepBatch
from edgeinfer.runtime.llm.images import ImagePrompt, ImageReader
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.types import Array
from tests.convert.llm import pictured
from tests.runtime.llm.reference import ReferenceExecutor

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 90, 3), np.uint8)
TEXT = "a <image>, and <image> again?"
SUPPORTED = [name for name in pictured.PICTURED if name != "gemma3"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    made = {}
    for name in SUPPORTED:
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder, pictured.save(name, folder)
    return made


class _Tower:
    """The exported module in the place of a session on its bundle."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, tile: Array) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._module(torch.from_numpy(tile)).numpy()
        return found


@pytest.mark.parametrize("name", SUPPORTED)
def test_logits_behind_pictures_are_those_of_transformers(
    name: str, folders: dict[str, tuple[Path, Any]]
) -> None:
    torch = pytest.importorskip("torch")
    folder, model = folders[name]
    given = source.read(folder)
    assert given.vision is not None
    module = tower.load(folder, given.vision)
    reader = ImageReader(given.vision.pictures, lambda: _Tower(module))  # type: ignore[arg-type,return-value]
    texts, _ = tokenizer.files(given)
    tokens = TextTokenizer(texts["tokenizer.json"].decode(), given.config.vocab, None)
    pictures = [PICTURE, PICTURE[::-1, :30]]
    read = reader.read(ImagePrompt(TEXT, pictures), tokens.encode, 512)
    assert read.embeddings is not None

    count = len(read.tokens)
    weights = {key: t.float32() for key, t in given.tensors.items()}
    executor = ReferenceExecutor(given.config, weights, pages=-(-count // PAGE))
    batch = StepBatch(
        np.array(read.tokens, np.int32),
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int32),
        np.arange(executor.pages, dtype=np.int32)[None],
        np.arange(count, dtype=np.int32),
        embedded=np.array(read.positions, np.int32),
        embeddings=read.embeddings,
    )
    found = executor.step(batch)

    tiles = torch.from_numpy(np.concatenate([reader.tiled(p).tiles for p in pictures]))
    pixels = tiles if name.startswith("llava") else tiles[None]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([read.tokens]), pixel_values=pixels).logits[0]
    largest = float(expected.abs().max())
    assert largest > 0.5
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-4 * largest)


def _edited(folder: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / name).read_text())
    edit(data)
    (folder / name).write_text(json.dumps(data))


CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"


@pytest.mark.parametrize(
    ("name", "file", "edit", "message"),
    [
        ("llava", CONFIG, {"model_type": "gemma3"}, "'gemma3': tokens of an image see each other"),
        ("llava", CONFIG, {"model_type": "qwen2_5_vl"}, r"three positions each \(M-RoPE\)"),
        ("llava", CONFIG, {"model_type": "pixtral"}, "read are images of llava, idefics3, smol"),
        ("llava", CONFIG, {"image_token_index": -3}, "image_token_id: expected a token"),
        ("llava", CONFIG, {"image_token_index": 7}, "tokenizer.json: its added tokens have no 7"),
        ("llava", PROCESSOR, {"do_pad": True, "resample": 9}, "resample: expected 0 to 5.*do_pad"),
        ("llava", PROCESSOR, {"crop_size": 16}, "crop_size .*expected both sides 32"),
        ("llava", PROCESSOR, {"do_normalize": False}, "do_normalize: False is not supported"),
        ("llava", PROCESSOR, {"image_processor_type": "ViTImageProcessor"}, "expected CLIPImageP"),
        (
            "llava",
            PROCESSOR,
            {"image_processor_type": ["a"]},
            "image_processor_type: expected CLIP",
        ),
        ("smolvlm", PROCESSOR, {"image_processor_type": None, "size": None}, "and size: one is"),
        ("smolvlm", PROCESSOR, {"max_image_size": {"longest_edge": 16}}, "tiles of 16 pixels"),
        ("smolvlm", CONFIG, {"scale_factor": 3}, "scale_factor: 3 does not divide 4 patches"),
        ("smolvlm", PROCESSOR, {"image_mean": [0.5]}, "image_mean: expected three numbers"),
        ("smolvlm", PROCESSOR, {"image_std": [0.5, "x", 0]}, r"image_std\[1\]: expected a number"),
        ("smolvlm", PROCESSOR, {"image_std": [0.5, 0, 0.5]}, "std: received"),
        ("smolvlm", PROCESSOR, {"size": {"longest_edge": 9999}}, "longest_edge of 1 to 4096"),
    ],
)
def test_what_is_not_supported_is_refused_in_a_line(
    name: str,
    file: str,
    edit: dict[str, Any],
    message: str,
    folders: dict[str, tuple[Path, Any]],
    tmp_path: Path,
) -> None:
    folder = _copied(folders[name][0], tmp_path)
    _edited(folder, file, lambda data: data.update(edit))
    with pytest.raises(SourceError, match=message) as caught:
        source.read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("side", "patch", "heads"), [(512, 4, 4), (4096, 32, 32), (65536, 8, 1), (4096, 1, 1)]
)
def test_more_patches_than_a_tower_has_are_refused(
    side: int, patch: int, heads: int, folders: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    """4.8 MB of files took 9 GB, and minutes: heads look at all pairs of patches."""
    folder = _copied(folders["llava"][0], tmp_path)
    sizes = {"image_size": side, "patch_size": patch, "num_attention_heads": heads}
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(sizes))
    with pytest.raises(SourceError, match=r"patches, .* layers of \d+ are more than a tower has"):
        source.read(folder)


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "SiglipImageProcessorFast"])
def test_what_a_processor_does_not_say_is_its_own(
    name: str, folders: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    """All were CLIP's."""
    transformers = pytest.importorskip("transformers")
    folder = _copied(folders["llava"][0], tmp_path)

    def older(data: dict[str, Any]) -> None:
        for key in ("resample", "image_mean", "image_std"):
            data.pop(key, None)
        data["image_processor_type"] = name
        if name.startswith("Siglip"):
            data["size"] = data.pop("crop_size")

    _edited(folder, PROCESSOR, older)
    found = source.read(folder).vision
    assert found is not None
    theirs = getattr(transformers, name.removesuffix("Fast"))()
    assert found.pictures.mean == pytest.approx(theirs.image_mean)
    assert found.pictures.std == pytest.approx(theirs.image_std)
    assert (found.pictures.filter, int(theirs.resample)) == ("bicubic", 3)


def _copied(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_processor_lacks_or_is_in_the_newer_file(
    folders: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder = _copied(folders["smolvlm"][0], tmp_path)
    old = source.read(folder).vision
    given = json.loads((folder / PROCESSOR).read_text())
    (folder / PROCESSOR).unlink()
    with pytest.raises(SourceError, match=r"there is no preprocessor_config\.json, nor an image_"):
        source.read(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": given}))
    assert source.read(folder).vision == old


def test_without_images_the_language_part_of_gemma_3_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = pictured.save("gemma3", tmp_path)
    with pytest.raises(SourceError, match=r"'gemma3': tokens of an image.*; --text-only converts"):
        source.read(tmp_path)
    given = source.read(tmp_path, text_only=True)
    assert given.vision is None
    ids = np.random.default_rng(1).integers(3, 250, 40)
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    result = Oracle(given.config, given.tensors).logits([ids])[0]
    atol = 2e-4 * np.abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=atol)


def test_older_files_are_read_alike(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    folder = _copied(folders["llava"][0], tmp_path)
    new = source.read(folder)
    text, _ = tokenizer.files(new)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))

    def older(data: dict[str, Any]) -> None:
        inner = data["text_config"]
        data["image_token_index"] = data.pop("image_token_id", pictured.IMAGE)
        data["text_config"] = {k: v for k, v in inner.items() if k != "rope_parameters"}
        data["text_config"] |= {"torch_dtype": "float16", "architectures": ["LlamaForCausalLM"]}
        data.pop("eos_token_id", None)

    _edited(folder, CONFIG, older)
    old = source.read(folder)
    assert (old.config, old.vision) == (new.config, new.vision)
    assert tokenizer.files(old)[0] == text


def test_a_description_of_more_than_the_files_hold_takes_no_memory(
    folders: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder = _copied(folders["smolvlm"][0], tmp_path)
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(num_hidden_layers=5000))
    with pytest.raises(SourceError, match="num_hidden_layers: 5000 of 38 weights"):
        source.read(folder)
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(num_hidden_layers=2))
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(intermediate_size=60000))
    given = source.read(folder).vision
    assert given is not None
    with pytest.raises(SourceError, match=r"fc1.weight': expected \(60000, 32\), received \(48"):
        tower.load(folder, given)
    weights = {name: t for name, t in given.weights.items() if "patch_embedding" not in name}
    weights["model.vision_model.extra"] = weights["model.connector.modality_projection.proj.weight"]
    weights["vision_model.extra"] = weights["model.vision_model.extra"]
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(intermediate_size=48))
    given = source.read(folder).vision
    assert given is not None
    with pytest.raises(SourceError, match=r"extra' is there twice; .*weight' is missing.*unknown"):
        tower.load(folder, replace(given, weights=weights))


EVIL = {"AutoModel": "evil.Evil", "AutoImageProcessor": "evil.Evil"}


def _leave_code(folder: Path) -> Path:
    """Put Python into a folder, which leaves a file when it runs."""
    mark = folder / "MARK"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil: pass\n")
    return mark


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (CONFIG, {"auto_map": EVIL}, r"config\.json: auto_map: Python of the folder is never run"),
        (CONFIG, {"vision_config": {"auto_map": EVIL}}, r"json: vision_config: auto_map: Python"),
        (PROCESSOR, {"auto_map": EVIL}, r"preprocessor_config\.json: auto_map: Python"),
        (CONFIG, {"vision_config": {"model_type": "blip_vision_model"}}, "received 'blip_vision_"),
        (CONFIG, {"vision_config": {"model_type": ["a"]}}, "model_type: expected one of clip_"),
        (CONFIG, {"vision_config": {"hidden_act": "xielu"}}, "hidden_act: expected one of gelu"),
        (CONFIG, {"projector_hidden_act": "xielu"}, "projector_hidden_act: expected one of gelu"),
        (CONFIG, {"vision_feature_layer": [1, 4]}, "vision_feature_layer: .* of its 3 layers"),
        (CONFIG, {"vision_config": {"layer_norm_eps": "x"}}, "layer_norm_eps: expected a number"),
        (CONFIG, {"vision_config": {"window_size": 8, "dropout": 0.0}}, "config.window_size: 8 is"),
        (
            CONFIG,
            {"vision_config": {"quantization_config": {"a": 1}}},
            "config.quantization_config",
        ),
        (CONFIG, {"vision_config": {"num_channels": 4}}, "num_channels: 4 is not supported"),
        (CONFIG, {"vision_config": {"num_attention_heads": 3}}, "3 do not divide the hidden_size"),
    ],
)
def test_python_of_a_folder_never_runs_and_nobody_is_asked(
    file: str,
    edit: dict[str, Any],
    message: str,
    folders: dict[str, tuple[Path, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = _copied(folders["llava"][0], tmp_path)
    mark = _leave_code(folder)

    def put(data: dict[str, Any]) -> None:
        inner = {k: {**data[k], **v} for k, v in edit.items() if isinstance(data.get(k), dict)}
        data.update({**edit, **inner})

    _edited(folder, file, put)
    with pytest.raises(SourceError, match=message) as caught:
        tower.load(folder, _seen(folder))
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_transformers_is_never_told_the_folder(
    folders: dict[str, tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own keys, nor pickled weights, nor adapters that would be taken along."""
    import torch

    folder = _copied(folders["llava"][0], tmp_path)
    mark = _leave_code(folder)
    right = tower.load(folder, _seen(folder))
    more = {"_name_or_path": str(folder), "attn_implementation": "evil/kernels"}
    more |= {"_attn_implementation_internal": "sdpa"}
    _edited(folder, CONFIG, lambda data: data["vision_config"].update(more))
    for name in ("pytorch_model.bin", "adapter_config.json", "generation_config.json"):
        (folder / name).write_text("none")
    given = _seen(folder)
    for path in folder.iterdir():
        path.unlink()
    module, tile = tower.load(folder, given), torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(module(tile), right(tile))
    assert not mark.exists()


def _seen(folder: Path) -> VisionSource:
    found = source.read(folder).vision
    assert found is not None
    return found


def test_names_of_older_files_are_known(folders: dict[str, tuple[Path, Any]]) -> None:
    import torch

    given, tile = _seen(folders["llava"][0]), torch.rand(1, 3, 32, 32)
    older = {
        name.removeprefix("model.")
        .replace("vision_tower.vision_model.", "vision_tower.")
        .replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in given.weights.items()
    }
    assert older.keys().isdisjoint({n for n in given.weights if n.startswith("model.")})
    with torch.no_grad():
        found = tower.load(Path("a"), replace(given, weights=older))(tile)
        assert torch.equal(found, tower.load(Path("a"), given)(tile))


def test_sizes_that_a_description_leaves_out_are_those_of_transformers(
    folders: dict[str, tuple[Path, Any]],
) -> None:
    transformers = pytest.importorskip("transformers")
    from edgeinfer.convert.llm.vision import TEXT_DEFAULTS

    for kind, sizes in TEXT_DEFAULTS.items():
        config = transformers.AutoConfig.for_model(kind).to_dict()
        assert {name: config[name] for name in sizes} == sizes, kind


def test_other_models_have_no_vision_part_to_leave_out() -> None:
    with pytest.raises(UsageError, match="text_only: only language models have a vision part"):
        check_request(ConvertOptions("a.onnx", text_only=True))
