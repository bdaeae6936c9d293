"""Every option of a conversion, once: keywords of ``export``, its command line and its manual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.convert import option_words as words
from edgeinfer.options import Section, about, option

if TYPE_CHECKING:
    from edgeinfer.accuracy import Metric
    from edgeinfer.media.description import Description
    from edgeinfer.types import Feeds, Preprocessing, Progress

Size = int | range | None
"""A size, those from the first to the last of a range, or the size that the model declares."""
Given = Mapping[str, Sequence[Size] | Sequence[Sequence[Size]]]
"""By input name one shape, or several."""

RESULT = Section("Result", "edgeinfer convert model.onnx -t rpi5 -t openvino -o model.edge")
INPUTS = Section(
    "Inputs of the model",
    "edgeinfer convert model.onnx -t cpu --input-shape image=1,3,64,64 --input-range image=0:1",
)
MEANING = Section(
    "Images, audio and meaning of outputs",
    "edgeinfer convert model.onnx -t rpi5 --pipeline detector.toml --labels coco.txt",
)
DATA = Section(
    "Data and quantization",
    "edgeinfer convert model.onnx -t rpi5 --precision auto --calibration photos/ --max-drop 1%",
)
STORAGE = Section(
    "Storage and layout of tensors",
    "edgeinfer convert model.onnx -t rpi5 --channels-last image --io-dtype int8",
)
APPLE = Section(
    "Core ML packages",
    "edgeinfer convert model.onnx -t ios --picture image --classifier --labels names.txt",
)
SECTIONS = (RESULT, INPUTS, MEANING, DATA, STORAGE, APPLE)


@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """What is asked of the artifacts themselves: lowerings read these."""

    states: Mapping[str, str] = option(
        dict,
        "Output that becomes an input of the next run.",
        INPUTS,
        "--state",
        value=words.STATES,
        more="Sessions pass it on by themselves; Core ML packages for iOS18 keep it inside.",
    )
    preprocessing: Mapping[str, Preprocessing] = option(
        dict,
        "TOML file: how images and audio become inputs.",
        MEANING,
        value=words.RECORDS,
        more="In Python a mapping from input names to records of edgeinfer.types.",
    )
    labels: Sequence[str] = option(
        (),
        "Class names, in the order of the output's last axis.",
        MEANING,
        value=words.LABELS,
        more="The file has one a line.",
    )
    compress_weights: bool = option(False, "Store weights as fp16 and compute in fp32.", STORAGE)
    records: Sequence[str] = option(
        (),
        "Tuning records that `edgeinfer tune` wrote.",
        STORAGE,
        value=words.FILES,
        more="They are used in addition to those that are shipped.",
    )
    deployment: str = option(
        "", "Oldest OS that must open the package, such as iOS18.", APPLE, value=words.DEPLOYMENT
    )
    pictures: Sequence[str] = option(
        (),
        "Make this input an image input.",
        APPLE,
        "--picture",
        value=words.NAMES,
        more="Scale, mean and deviation of its preprocessing move into the model, for every "
        "target; Core ML packages then take images.",
    )
    classifier: bool = option(False, "Let the package name the class; needs --labels.", APPLE)
    integers: Mapping[str, tuple[int, int]] = option(
        dict,
        "Value range of an integer input.",
        APPLE,
        value=words.INTEGERS,
        more="Core ML computes in 32 bits; other values are refused when the model runs.",
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ArtifactOptions):
    """The arguments of ``export``."""

    model: Any = field(
        kw_only=False,
        metadata=about(
            "A path, an ONNX model, a PyTorch module or program; or a language model: a GGUF file "
            "or a Hugging Face folder."
        ),
    )
    output: str | Path | None = field(
        default=None,
        kw_only=False,
        metadata=about(
            "Bundle (NAME.edge, DIR/), or one artifact (NAME.tflite, ...).",
            RESULT,
            *("-o", "--output"),
            value=words.FILE,
            more="Default is NAME.edge. A slash at the end asks for a folder.",
        ),
    )
    targets: Sequence[str] = option(
        ("cpu",),
        "Device that the result is for; repeat it for more.",
        RESULT,
        "-t",
        "--target",
        value=words.TARGETS,
        more="A profile's name, the path of a .toml profile, or all.",
        required=True,
    )
    precision: str = option(
        "",
        "Precision of the result; default fp32.",
        RESULT,
        value=words.PRECISION,
        more="A recipe such as fp16, static_wi8_ai8 or auto; for a language model w4, w8, fp16, "
        "bf16 or fp32, by default as its weights are stored.",
    )
    name: str | None = option(None, "Name of the bundle; default the model's.", RESULT)
    overwrite: bool = option(False, "Replace an existing result.", RESULT)
    unverified: bool = option(
        False,
        "Also write artifacts that nothing here can run.",
        RESULT,
        more="The bundle marks each of them as not verified.",
    )
    time_limit_s: float = option(
        600.0,
        "Time limit of one run of the source model.",
        RESULT,
        "--time-limit",
        value=words.SECONDS,
        more="A loop in a model may never end.",
    )
    input_shapes: Given = option(
        dict,
        "Sizes of an input; ? as declared, 1..8 a range.",
        INPUTS,
        "--input-shape",
        value=words.SHAPES,
        more="None is ? in Python, range(1, 9) a range. An input with several shapes has all of "
        "them in the result: as signatures of one .tflite file, as the only shapes of a Core ML "
        "package, as dynamic sizes elsewhere.",
    )
    input_ranges: Mapping[str, tuple[float, float]] = option(
        dict,
        "Lowest and highest value of an input.",
        INPUTS,
        "--input-range",
        value=words.RANGES,
        more="Test vectors reach them, half precision is judged for them, and sessions warn of "
        "values outside or refuse them.",
    )
    signature: str | None = option(
        None, "Which signature of a .tflite file with several to convert.", INPUTS, value=words.KEY
    )
    random: str = option(
        "",
        "What replaces random numbers in the model.",
        INPUTS,
        value=words.RANDOM,
        more="input makes each draw an input, zero takes the mean, a seed the same draws in "
        "every run.",
    )
    example_inputs: Any = option(
        None, "For a PyTorch module: a tuple, or a dict by parameter name."
    )
    dynamic_shapes: Any = option(None, 'For a PyTorch module: {"x": {0: "batch"}}.')
    description: Description | None = option(
        None,
        "TOML or JSON file: what inputs and outputs mean.",
        MEANING,
        "--pipeline",
        value=words.DESCRIPTION,
        more="In Python what edgeinfer.media.parse_description gives. It takes the place of "
        "preprocessing.",
    )
    data: str | Path | Sequence[Feeds] | None = option(
        None,
        "Inputs to check with, and expected outputs.",
        DATA,
        value=words.DATA,
        more="An .npz file, a folder of them, or in Python a list of dicts.",
    )
    calibration: str | Path | None = option(
        None,
        "Samples to calibrate quantization and to check with.",
        DATA,
        value=words.SAMPLES,
        more="A folder of images, recordings or .npz files, or one .npz file with all samples.",
    )
    calibrator: str = option(
        "mse", "How quantization ranges are chosen.", DATA, value=words.CALIBRATOR
    )
    max_drop: float | None = option(
        None,
        "Loss of quality that --precision auto may cause, such as 1%.",
        DATA,
        value=words.SHARE,
        more="In Python a share of the float model's quality, such as 0.01.",
    )
    metric: str | Metric | None = option(
        None,
        "Quality metric of --max-drop: top1, f1, ..., or FILE.py:NAME.",
        DATA,
        value=words.METRIC,
        more="top1, top5, f1, map, cer, wer, cosine or rmse, or a function from the outputs of "
        "all runs and the labels of all samples to a number that is higher the better it is. "
        "Default is top-1 where labels are known, else agreement with the float model.",
    )
    force: bool = option(False, "Calibrate even if the data check fails.", DATA)
    channels_last: Sequence[str] = option(
        (),
        "Input or output to be laid out N...C.",
        STORAGE,
        value=words.NAMES,
        more="This holds for every target: a bundle has one signature.",
    )
    channels_first: Sequence[str] = option(
        (), "Input or output to be laid out NC...", STORAGE, value=words.NAMES
    )
    io_dtypes: str | Mapping[str, str] = option(
        dict,
        "Element type of inputs and outputs in .tflite files.",
        STORAGE,
        "--io-dtype",
        value=words.DTYPES,
        more="int8, uint8 or int16, with the scales of the operators next to them, for all or "
        "by name. The bundle's inputs and outputs stay floats.",
    )
    progress: Progress | None = option(None, "Called with each stage and how far it is.")
