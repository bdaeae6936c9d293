"""Every option of a conversion, once: keywords of ``export``, its command line and its manual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.convert import option_words as words
from edgeinfer.options import Section, about, option
from edgeinfer.records import dataclass

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
    "edgeinfer convert model.onnx -t ios --image-input image --classifier --labels names.txt",
)
SECTIONS = (RESULT, INPUTS, MEANING, DATA, STORAGE, APPLE)


@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """What is asked of the artifacts themselves: lowerings read these."""

    states: Mapping[str, str] = option(
        dict,
        "Output that becomes an input of the next run. Sessions pass it on by themselves; Core "
        "ML packages for iOS18 keep it inside.",
        INPUTS,
        "--state",
        value=words.STATES,
    )
    preprocessing: Mapping[str, Preprocessing] = option(
        dict,
        "TOML file: how images and audio become inputs. In Python a mapping from input names to "
        "records of edgeinfer.types.",
        MEANING,
        value=words.RECORDS,
    )
    labels: Sequence[str] = option(
        (),
        "Class names, in the order of the output's last axis. The file has one a line.",
        MEANING,
        value=words.LABELS,
    )
    compress_weights: bool = option(False, "Store weights as fp16 and compute in fp32.", STORAGE)
    machine_code: Sequence[str] = option(
        (),
        "Also compile machine code with TVM: model, regions, functions or all. A small fp32 model "
        "as a whole and regions inside ONNX Runtime are for the target cpu, functions around "
        "models prepare images and spectrograms on Linux. Conversion takes several times as "
        "long; what the device runs is decided by measurement there.",
        STORAGE,
        value=words.CODE,
    )
    regions_time_s: float = option(
        45.0,
        "Time limit of the search for regions that --machine-code compiles.",
        STORAGE,
        "--regions-time",
        value=words.SECONDS,
    )
    records: Sequence[str] = option(
        (),
        "Tuning records that `edgeinfer tune` wrote. They are used in addition to those that are "
        "shipped.",
        STORAGE,
        value=words.FILES,
    )
    deployment: str = option(
        "", "Oldest OS that must open the package, such as iOS18.", APPLE, value=words.DEPLOYMENT
    )
    image_inputs: Sequence[str] = option(
        (),
        "Make this input an image input. Scale, mean and deviation of its preprocessing move "
        "into the model, for every target; Core ML packages then take images.",
        APPLE,
        "--image-input",
        value=words.NAMES,
    )
    classifier: bool = option(False, "Let the package name the class; needs --labels.", APPLE)
    integers: Mapping[str, tuple[int, int]] = option(
        dict,
        "Value range of an integer input. Core ML computes in 32 bits; other values are refused "
        "when the model runs.",
        APPLE,
        value=words.INTEGERS,
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
            "Bundle (NAME.edge, DIR/), or one artifact (NAME.tflite, ...). Default is NAME.edge. "
            "A slash at the end means a folder.",
            RESULT,
            *("-o", "--output"),
            value=words.FILE,
        ),
    )
    targets: Sequence[str] = option(
        ("cpu",),
        "Device that the result is for; repeat it for more. A profile's name, the path of a "
        ".toml profile, or all.",
        RESULT,
        "-t",
        "--target",
        value=words.TARGETS,
        required=True,
    )
    precision: str = option(
        "",
        "Precision of the result; default fp32. A recipe such as fp16, static_wi8_ai8 or auto; "
        "for a language model w4, w8, fp16, bf16 or fp32, by default as its weights are stored.",
        RESULT,
        value=words.PRECISION,
    )
    also: Sequence[str] = option(
        (),
        "Further precisions in the same bundle, such as bf16 or int8. A device runs them where "
        "``allow`` names them, and each only with right numbers, here and there. bf16, fp16 and "
        "tf32 are options of the fp32 file where the engine has such, and take no room. One that "
        "fails its check is left out, and the report says why.",
        RESULT,
        value=words.PRECISIONS,
    )
    name: str | None = option(None, "Name of the bundle; default the model's.", RESULT)
    overwrite: bool = option(False, "Replace an existing result.", RESULT)
    keep: str | Path | None = option(
        None,
        "Empty folder for the graph of each stage. The model as it was read, normalised, as each "
        "target was given it, and every artifact stay there, also where the conversion fails.",
        RESULT,
        value=words.FOLDER,
    )
    layers: bool = option(
        False,
        "Put error and time of each layer into the report. Each artifact is made once more with "
        "every value as an output, and its engine's profiler runs it, where the engine has one.",
        RESULT,
    )
    unverified: bool = option(
        False,
        "Also write artifacts that nothing here can run. The bundle marks each of them as not "
        "verified.",
        RESULT,
    )
    time_limit_s: float = option(
        600.0,
        "Time limit of one run of the source model. A loop in a model may never end.",
        RESULT,
        "--time-limit",
        value=words.SECONDS,
    )
    input_shapes: Given = option(
        dict,
        "Sizes of an input; ? as declared, 1..8 a range. None is ? in Python, range(1, 9) a "
        "range. An input with several shapes has all of them in the result: as signatures of one "
        ".tflite file, as the only shapes of a Core ML package, as dynamic sizes elsewhere.",
        INPUTS,
        "--input-shape",
        value=words.SHAPES,
    )
    input_ranges: Mapping[str, tuple[float, float]] = option(
        dict,
        "Lowest and highest value of an input. Test vectors reach them, half precision is judged "
        "for them, and sessions warn of values outside or refuse them.",
        INPUTS,
        "--input-range",
        value=words.RANGES,
    )
    signature: str | None = option(
        None, "Which signature of a .tflite file with several to convert.", INPUTS, value=words.KEY
    )
    random: str = option(
        "",
        "What replaces random numbers in the model. input makes each draw an input, zero takes "
        "the mean, a seed the same draws in every run.",
        INPUTS,
        value=words.RANDOM,
    )
    example_inputs: Any = option(
        None, "For a PyTorch module: a tuple, or a dict by parameter name."
    )
    dynamic_shapes: Any = option(None, 'For a PyTorch module: {"x": {0: "batch"}}.')
    trust_source: bool = option(
        False,
        "Read the model's file without bounds of memory and time, which a stranger's needs. On the "
        "command line also what is code in a .pt2 file.",
    )
    description: Description | None = option(
        None,
        "TOML or JSON file: what inputs and outputs mean. In Python what "
        "edgeinfer.media.parse_description gives. It takes the place of preprocessing.",
        MEANING,
        "--pipeline",
        value=words.DESCRIPTION,
    )
    data: str | Path | Sequence[Feeds] | None = option(
        None,
        "Inputs to check with, and expected outputs. An .npz file, a folder of them, or in "
        "Python a list of dicts.",
        DATA,
        value=words.DATA,
    )
    calibration: str | Path | None = option(
        None,
        "Samples to calibrate quantization and to check with. A folder of images, recordings or "
        ".npz files, or one .npz file with all samples; of language models a file of text.",
        DATA,
        value=words.SAMPLES,
    )
    block: int = option(
        32,
        "Weights of a row that share a scale, where a language model's are rounded to w4 or w8. A "
        "multiple of 32: 64 and 128 take less memory and lose more.",
        DATA,
        value=words.COUNT,
    )
    adapters: Mapping[str, str | Path] = option(
        dict,
        "Low-rank adapter (LoRA) of a language model, and the name that requests have for it. A "
        "GGUF file, or a folder with adapter_config.json and adapter_model.safetensors; may be "
        "repeated.",
        DATA,
        "--adapter",
        value=words.ADAPTERS,
    )
    text_only: bool = option(
        False,
        "Leave the vision part of a language model out. It reads text alone then, and models whose "
        "images are not supported convert too.",
        DATA,
    )
    calibrator: str = option(
        "mse", "How quantization ranges are chosen.", DATA, value=words.CALIBRATOR
    )
    max_drop: float | None = option(
        None,
        "Loss of quality that --precision auto may cause, such as 1%. In Python a share of the "
        "float model's quality, such as 0.01.",
        DATA,
        value=words.SHARE,
    )
    metric: str | Metric | None = option(
        None,
        "Quality metric of --max-drop: top1, f1, ..., or FILE.py:NAME. top1, top5, f1, map, cer, "
        "wer, cosine or rmse, or a function from the outputs of all runs and the labels of all "
        "samples to a number that is higher the better it is. Default is top-1 where labels are "
        "known, else agreement with the float model.",
        DATA,
        value=words.METRIC,
    )
    force: bool = option(False, "Calibrate even if the data check fails.", DATA)
    channels_last: Sequence[str] = option(
        (),
        "Input or output to be laid out N...C. This holds for every target: a bundle has one "
        "signature.",
        STORAGE,
        value=words.NAMES,
    )
    channels_first: Sequence[str] = option(
        (), "Input or output to be laid out NC...", STORAGE, value=words.NAMES
    )
    io_dtypes: str | Mapping[str, str] = option(
        dict,
        "Element type of inputs and outputs, for all or by name. float16 for every target: the "
        "bundle then takes and gives halves. int8, uint8 or int16 in .tflite files, with the "
        "scales of the operators next to them; the bundle's inputs and outputs stay floats.",
        STORAGE,
        "--io-dtype",
        value=words.DTYPES,
    )
    progress: Progress | None = option(None, "Called with each stage and how far it is.")
