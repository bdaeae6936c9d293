"""The main job, as `make demo` runs it: one model in, one checked bundle out, run here.

Every step is a command that you can type yourself.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console

from edgeinfer.media import read_arrays

HERE = Path(__file__).parent
OUT = Path("out", "demo")
EDGEINFER = Path(sysconfig.get_path("scripts"), "edgeinfer")

console = Console(highlight=False)


def step(title: str, *arguments: str | Path) -> None:
    """Show a command, then run it; the demo ends with its code if it fails."""
    console.print(f"\n[bold]{title}[/bold]")
    shown = [os.path.relpath(a) if isinstance(a, Path) else a for a in arguments]
    console.print(f"$ edgeinfer {' '.join(shown)}", style="cyan", markup=False, soft_wrap=True)
    code = subprocess.run([EDGEINFER, *shown], check=False).returncode
    if code:
        sys.exit(code)


def first_example() -> ModuleType:
    """Import 01_convert_and_run.py, which makes the chord and names the notes."""
    spec = importlib.util.spec_from_file_location("first", HERE / "01_convert_and_run.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/01_convert_and_run.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    start = time.perf_counter()
    OUT.mkdir(parents=True, exist_ok=True)
    models, example = HERE / "models", first_example()
    bundle, chord, notes = OUT / "basic_pitch.edge", OUT / "chord.wav", OUT / "notes.npz"
    example.write_chord(chord, (60, 64, 67))

    step(
        "1. Convert a model that hears notes, for two engines; both are checked",
        *("convert", models / "basic_pitch.onnx", "--target", "cpu", "--target", "openvino"),
        *("--preprocessing", models / "basic_pitch.toml", "-o", bundle, "--overwrite"),
    )
    step("2. Check the bundle again, as any device can", "verify", bundle)
    step("3. Run it on a recording of a C major chord", "run", bundle, chord, "-o", notes)
    heard = example.heard(read_arrays(notes)[example.NOTES])
    console.print(f"\nheard: [bold green]{', '.join(heard)}[/bold green]")
    step("4. Compare the engines", "bench", bundle, chord, "--seconds", "5")
    seconds = time.perf_counter() - start
    console.print(f"\nDone in {seconds:.0f} s. The bundle is {bundle}.")
    if heard != ["C4", "E4", "G4"]:
        sys.exit(f"expected C4, E4, G4, heard {heard}")


if __name__ == "__main__":
    main()
