"""The language model of a bundle: what texts need, and what makes an executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.cuda import architecture
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Variant
from edgeinfer.errors import (
    BundleError,
    DamagedError,
    MemoryBudgetError,
    NotAvailableError,
    UsageError,
)
from edgeinfer.llm import LlmConfig, config, generation, vision
from edgeinfer.llm.generation import Generation
from edgeinfer.llm.gpu import architectures_in
from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.cuda import free_bytes
from edgeinfer.machine.device import DeviceKind
from edgeinfer.machine.facts import free_mb
from edgeinfer.machine.host import host
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.chat import ChatTemplate
from edgeinfer.runtime.llm.executor import PAGE, Executor
from edgeinfer.runtime.llm.images import ImageReader
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.runtime.trusted import barred

if TYPE_CHECKING:
    from edgeinfer.runtime.session import Session


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What an executor gets room for.

    Attributes:
        context: tokens of a sequence; 0 for what the model was made for.
        sequences: that run at once.
        cache_mb: Megabytes of keys and values; 0 takes what all sequences could need, at
            most half of the memory that is free.
        step_tokens: the most tokens of a step.
        kind: type of the cache; empty for the variant's first.
        threads: 0 for all cores that this process may use.
    """

    context: int = 0
    sequences: int = 16
    cache_mb: int = 0
    step_tokens: int = 512
    kind: str = ""
    threads: int = 0


@dataclass(frozen=True, slots=True)
class BundledModel:
    """What a bundle holds of a language model.

    Attributes:
        name: Name of the bundle.
        config: Configuration of the decoder.
        generation: how texts begin and end.
        tokenizer: Tokenizer of the bundle.
        template: for conversations; None where the model knows none.
        open_executor: makes an executor, each time anew; of other sizes where it is given some.
        variant: id of the variant that is taken.
        device: kind of unit that runs it.
        instead: why it is taken in the place of one for another device; empty where it is not.
        pictures: makes embeddings of images; None where the model reads text alone.
        digest: Digest of the bundle.
    """

    name: str
    config: LlmConfig
    generation: Generation
    tokenizer: TextTokenizer
    template: ChatTemplate | None
    open_executor: Callable[..., Executor]
    variant: str = ""
    device: DeviceKind = "cpu"
    instead: str = ""
    pictures: ImageReader | None = None
    digest: str = ""


def read(bundle: Bundle, sizes: CacheSizes, variant: str = "") -> BundledModel:
    """Read everything but the weights.

    Args:
        bundle: stays open as long as executors are made.
        sizes: Sizes of executors.
        variant: id of the one to take; empty for the first language model that runs here, on a GPU
            before those on the CPU.

    Raises:
        UsageError: there is none, or none of that id.
        BundleError: files of it are damaged.
        DamagedError: they do not fit each other.
        NotAvailableError: its machine code may not run here, or is for no device that is here.
    """
    chosen, instead = _choose(bundle, variant)
    # Its code is the whole of it: of a stranger's no text is read either.
    if why := barred(bundle).get(chosen.id):
        raise NotAvailableError(f"{bundle.location}: variant {chosen.id} {why}")
    described = LlmConfig.from_json(_text(bundle, chosen, config.FILE_NAME))
    texts = Generation.from_json(_text(bundle, chosen, generation.FILE_NAME))
    tokenizer = TextTokenizer(
        _text(bundle, chosen, generation.TOKENIZER_NAME), described.vocab, texts.bos
    )
    wrong = [token for token in texts.eos if token >= described.vocab]
    if wrong:
        raise DamagedError(f"{generation.FILE_NAME}: eos {wrong} are not in the vocabulary")
    template = None
    if _file(bundle, chosen, generation.TEMPLATE_NAME) is not None:
        template = ChatTemplate(_text(bundle, chosen, generation.TEMPLATE_NAME), texts.tokens)

    def open_executor(sizes: CacheSizes = sizes) -> Executor:
        return _executor(bundle, chosen, described, sizes)

    device: DeviceKind = "gpu" if is_for_gpu(chosen) else "cpu"
    named = (bundle.manifest.name, described, texts, tokenizer, template)
    pictures = _pictures(bundle, described, sizes)
    taken = (chosen.id, device, instead, pictures, bundle.digest)
    return BundledModel(*named, open_executor, *taken)


def _pictures(bundle: Bundle, described: LlmConfig, sizes: CacheSizes) -> ImageReader | None:
    files = bundle.manifest.extra_files
    record = next((f for f in files if f.path == vision.FILE_NAME), None)
    if record is None:
        return None
    about = vision.VisionInput.from_json(bundle.read(record, _MOST_ABOUT))
    if about.token >= described.vocab:
        raise DamagedError(f"{vision.FILE_NAME}: token {about.token} is not in the vocabulary")

    def open_tower() -> Session:
        from edgeinfer.runtime.session import load

        part = bundle.part(f"{vision.FOLDER}/{vision.TOWER}")
        return load(part, threads=sizes.threads or None)

    return ImageReader(about, open_tower)


def _choose(bundle: Bundle, variant: str) -> tuple[Variant, str]:
    """The variant to take, and why none of those before it."""
    found = [v for v in bundle.manifest.variants if v.format == generation.FORMAT]
    if not found:
        there = ", ".join(v.id for v in bundle.manifest.variants)
        raise UsageError(f"{bundle.location}: it has no language model (variants: {there})")
    if not variant:
        return _first_that_runs(bundle, found)
    for one in found:
        if one.id == variant:
            return one, ""
    raise UsageError(
        f"{bundle.location}: no variant {variant!r}; expected one of "
        f"{', '.join(v.id for v in found)}"
    )


def _first_that_runs(bundle: Bundle, found: list[Variant]) -> tuple[Variant, str]:
    reasons: list[str] = []
    for one in sorted(found, key=lambda v: not is_for_gpu(v)):
        why = _absence(one)
        if not why:
            return one, "; ".join(reasons)
        reasons.append(f"variant {one.id}: {why}")
    raise NotAvailableError(f"{bundle.location}: {'; '.join(reasons)}")


def is_for_gpu(variant: Variant) -> bool:
    """Whether a variant's code is for GPUs."""
    return variant.constraints.get("device") == "gpu"


def _absence(variant: Variant) -> str:
    """Why a variant does not run on this machine; empty if it may."""
    if is_for_gpu(variant):
        try:
            architecture(architectures_in(f.path for f in variant.files))
        except NotAvailableError as e:
            return str(e)
        return ""
    wanted, here = variant.constraints.get("arch", ""), host().arch
    return f"its code is for {wanted}, this is {here}" if wanted not in ("", here) else ""


def _file(bundle: Bundle, variant: Variant, name: str) -> Path | None:
    for record in variant.files:
        if record.path.rsplit("/", 1)[-1] == name:
            return bundle.path(record)
    return None


def _path(bundle: Bundle, variant: Variant, name: str) -> Path:
    found = _file(bundle, variant, name)
    if found is None:
        raise DamagedError(f"{bundle.location}: variant {variant.id} has no {name}")
    return found


def _text(bundle: Bundle, variant: Variant, name: str) -> str:
    place = _path(bundle, variant, name)
    try:
        return read_bounded(place, _MOST_TEXT).decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BundleError(f"{bundle.location}: {name} cannot be read: {e}") from e


_MOST_ABOUT = 1 << 16
_MOST_TEXT = 256 << 20
"""Bytes of a text besides the weights; tokenizers have tens of megabytes."""


def pages_for(described: LlmConfig, sizes: CacheSizes, free: int | None) -> int:
    """Return how many pages the cache gets.

    Args:
        described: the decoder.
        sizes: what was requested.
        free: bytes that can still be taken; None where nobody knows.

    Raises:
        UsageError: a size is not possible.
        MemoryBudgetError: what is left does not hold one page of 16 tokens for each sequence.
    """
    context = sizes.context or described.context
    for name in ("context", "cache_mb"):
        if getattr(sizes, name) < 0:
            raise UsageError(f"{name}: expected at least 0, received {getattr(sizes, name)}")
    if sizes.sequences < 1:
        raise UsageError(f"sequences: expected at least 1, received {sizes.sequences}")
    if context > described.context:
        raise UsageError(
            f"context: expected at most {described.context}, which the model was made for, "
            f"received {context}"
        )
    page = page_bytes(described, sizes.kind)
    most = sizes.sequences * -(-context // PAGE)
    if sizes.cache_mb:
        most = min(most, sizes.cache_mb * 1_000_000 // page)
    elif free is not None:
        most = min(most, free // 2 // page)
    if most < sizes.sequences:
        room = f"cache_mb={sizes.cache_mb}" if sizes.cache_mb else f"half of {(free or 0) >> 20} MB"
        raise MemoryBudgetError(
            f"the cache of {sizes.sequences} sequences needs {page * sizes.sequences / 1e6:.0f} MB "
            f"at least, and {room} is there; choose fewer sequences or a smaller type of cache"
        )
    return most


def page_bytes(described: LlmConfig, kind: str) -> int:
    """Return about how many bytes a page of 16 tokens takes over all layers."""
    factors = 8 / described.head_dim
    known = {"float32": 4.0, "uint8": 1 + factors, "uint4": 0.5 + factors}
    of_element = known.get(kind, 2.0)
    elements = 2 * PAGE * described.kv_heads * described.head_dim * described.layers
    return int(elements * of_element)


def _free_bytes(variant: Variant) -> int | None:
    """Bytes of memory that a cache may be taken from, where its weights are; None if unknown."""
    if is_for_gpu(variant):
        weights = max(record.size_bytes for record in variant.files)
        return max(0, free_bytes() - weights)
    root = Path("/")
    free = free_mb(root, read_limits(root))
    return None if free is None else free << 20


def _executor(
    bundle: Bundle, variant: Variant, described: LlmConfig, sizes: CacheSizes
) -> Executor:
    pages = pages_for(described, sizes, _free_bytes(variant))
    bundle.paths(variant)
    folder = _path(bundle, variant, config.FILE_NAME).parent
    room = ExecutorSizes(
        pages=pages,
        max_tokens=sizes.step_tokens,
        max_sequences=sizes.sequences,
        context=sizes.context,
        cache=sizes.kind,
        threads=sizes.threads,
    )
    contents = " ".join(record.sha256 for record in variant.files)
    return open_executor(folder, room, contents)
