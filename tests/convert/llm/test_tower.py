"""A folder with a vision part becomes a bundle that sees."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.tvm import library
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.runtime.llm.images import ImagePrompt
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
from tests.convert.llm import pictured


@pytest.mark.slow
def test_a_folder_becomes_a_bundle_that_sees(tmp_path: Path) -> None:
    for name in ("tvm", "tokenizers", "jinja2", "PIL"):
        pytest.importorskip(name)
    torch = pytest.importorskip("torch")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("code for x86-64-v3 does not run here")
    folder = tmp_path / "smol"
    folder.mkdir()
    model = pictured.save("smolvlm", folder)
    made = export(folder, tmp_path / "a.edge", targets=["tvm-x86-64-v3"], precision="fp32")
    judged = made.report.language["tvm-x86-64-v3-llm-fp32"]["images"]
    assert judged["float32"]["kl"] < 1e-5 < judged["uint8"]["kl"]
    with Bundle.open(made.path) as bundle:
        assert "vision/images.json" in {f.path for f in bundle.manifest.extra_files}
        with bundle.part("vision/tower") as part:
            assert part.manifest.variants[0].accuracy["output"]["max_abs"] < 1e-4
            assert part.manifest.preprocessing["pixel_values"].kind == "image"

    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, 256, (40, 70, 3), np.uint8) for _ in range(2))
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=0, ignore_eos=True)
    with LLM(made.path, cache="float32", sequences=2) as llm:
        prompts = [ImagePrompt("Once, look: <image> what?", [p]) for p in (one, other, one)]
        found = [llm.generate(p, params)[0] for p in prompts]
        assert found[0].outputs[0].tokens == found[2].outputs[0].tokens
        cached = [c.outputs[0].usage.cached_tokens for c in found]
        # Of others what stands before their pictures, and of its own all but the last page.
        first, count = found[0].prompt.index(pictured.IMAGE), len(found[0].prompt)
        assert cached == [0, first // 16 * 16, (count - 1) // 16 * 16]
        assert llm.model.pictures is not None
        for picture, completion in zip((one, other), found, strict=False):
            (output,) = completion.outputs
            tiles = torch.from_numpy(llm.model.pictures.tiled(picture).tiles)[None]
            ids = torch.tensor([[*completion.prompt, *output.tokens]])
            with torch.no_grad():
                logits = model(input_ids=ids, pixel_values=tiles).logits[0]
            rows = torch.log_softmax(logits[len(completion.prompt) - 1 : -1], -1).numpy()
            expected = [row[t] for row, t in zip(rows, output.tokens, strict=True)]
            result = [p.logprob for p in output.logprobs]
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4)
            assert rows.argmax(-1).tolist() == list(output.tokens)
        content = [{"type": "image", "image": one}, {"type": "text", "text": "what?"}]
        said = llm.chat_request([{"role": "user", "content": content}], params)
        assert said.prompt.count(pictured.IMAGE) == 20
        plain = llm.chat_request([{"role": "user", "content": "what?"}], params)
        text = llm.model.tokenizer.decode(plain.prompt)
        assert text == "user:what?assistant:"
