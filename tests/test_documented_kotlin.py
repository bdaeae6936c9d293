"""The Kotlin of docs/phones.md, run on a JVM next to stand-ins for Android and LiteRT."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
KOTLIN = shutil.which("kotlinc")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(KOTLIN is None, reason="no kotlinc here: apt-get install kotlin"),
]

STAND_INS = {
    "content.kt": """package android.content
class Assets
class Context { val assets = Assets() }
""",
    "graphics.kt": """package android.graphics
class Bitmap(val w: Int, val h: Int, val pixels: IntArray) {
    companion object {
        fun createScaledBitmap(b: Bitmap, w: Int, h: Int, filter: Boolean): Bitmap {
            require(w == b.w && h == b.h); return b
        }
    }
    fun getPixels(to: IntArray, at: Int, stride: Int, x: Int, y: Int, w: Int, h: Int) {
        pixels.copyInto(to, at)
    }
}
""",
    "litert.kt": """package com.google.ai.edge.litert
import android.content.Assets
enum class Accelerator { CPU, GPU, NPU }
class TensorBuffer(var held: FloatArray) {
    fun writeFloat(x: FloatArray) { held = x }
    fun readFloat(): FloatArray = held
}
class CompiledModel {
    class Options(vararg val accelerators: Accelerator)
    companion object {
        fun create(a: Assets, name: String, o: Options): CompiledModel = CompiledModel()
    }
    fun createInputBuffers() = listOf(TensorBuffer(FloatArray(0)))
    fun createOutputBuffers() = listOf(TensorBuffer(FloatArray(0)))
    fun run(from: List<TensorBuffer>, to: List<TensorBuffer>) { to[0].held = from[0].held }
}
""",
    "main.kt": """fun main() {
    val pixels = IntArray(224 * 224) { i -> (0xff shl 24) or ((i * 7919) and 0xffffff) }
    val model = open(android.content.Context())
    for (v in scores(android.graphics.Bitmap(224, 224, pixels), model)) println(v)
}
""",
}
"""With the signatures that the documentation of Android and of LiteRT 2 states."""


def test_it_compiles_and_prepares_a_picture_as_the_record_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"```kotlin\n(.*?)```", (ROOT / "docs/phones.md").read_text(), re.DOTALL)
    for name, text in {**STAND_INS, "page.kt": code}.items():
        (tmp_path / name).write_text(text)
    files = [*STAND_INS, "page.kt"]
    assert KOTLIN is not None
    subprocess.run(
        [KOTLIN, *files, "-include-runtime", "-d", "page.jar"],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    told = subprocess.run(
        ["java", "-cp", "page.jar", "MainKt"],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = np.array(told.stdout.split(), np.float32).reshape(3, -1)
    pixels = (np.arange(224 * 224) * 7919) & 0xFFFFFF
    channels = np.stack([(pixels >> shift) & 255 for shift in (16, 8, 0)]).astype(np.float64)
    mean = np.array([[0.485], [0.456], [0.406]])
    std = np.array([[0.229], [0.224], [0.225]])
    np.testing.assert_allclose(found, (channels / 255 - mean) / std, atol=1e-5)
