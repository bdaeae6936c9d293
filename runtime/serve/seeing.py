"""Images in requests for texts: read along with texts, one at a time in each thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edgeinfer.media import image
from edgeinfer.runtime.llm.images import from_address
from edgeinfer.runtime.serve.http import Receive, RequestError
from edgeinfer.runtime.serve.inflight import held
from edgeinfer.runtime.serve.keys import GRANT
from edgeinfer.runtime.serve.meaning import ASKING, Asking
from edgeinfer.runtime.serve.streams import watched
from edgeinfer.types import ImageInput

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.serve.asked import Asked
    from edgeinfer.runtime.serve.hub import Hub

    T = TypeVar("T", bound=Sequence[Asked])

KINDS = ("image_url", "input_image")
"""Parts of contents that are images, of chat completions and of responses."""

_DETAILS = (None, "auto", "low", "high")


async def read_asked(hub: Hub, llm: LLM, receive: Receive, read: Callable[[], T]) -> T:
    """Read a request for texts in a thread, and hold what its images became.

    Who looks at images keeps nobody waiting who asks a model of texts alone.

    Args:
        hub: the models.
        llm: the one that is asked.
        receive: ASGI's receive function.
        read: reads it.

    Raises:
        RequestError: it is wrong, there is no memory for it; 429, the key has no tokens left.
        DisconnectedError: the client left.
    """
    if llm.model.pictures is None:
        return await hub.words.run(read)
    if (grant := GRANT.get()) is not None:
        grant.check_tokens()
    asking = Asking()
    token = ASKING.set(asking)
    context = contextvars.copy_context()
    ASKING.reset(token)
    try:
        async with watched(receive):
            found = await hub.images.run(partial(context.run, read))
    finally:
        # Before its next tile.
        asking.left.set()
    given = [one.request.embeddings for one in found]
    if size := sum(each.nbytes for each in given if each is not None):
        await held().take(size)
    return found


def contents(part: Mapping[str, Any], where: str, most: int) -> bytes:
    """Return the file of a part that is an image.

    Args:
        part: Part of a content.
        where: it stands.
        most: values that an image may have.

    Raises:
        RequestError: it is too large.
        InputError: it holds no image, but maybe where one is.
    """
    given: Any = part.get("image_url")
    inner = given if isinstance(given, Mapping) else {"url": given, **part}
    detail = inner.get("detail")
    if detail not in _DETAILS:
        raise RequestError(400, f"{where}: detail: expected auto, low or high")
    data = from_address(inner.get("url"), where)
    pixels, _ = image.measured(data, ImageInput(1, 1))
    if 3 * pixels > most:
        raise RequestError(413, f"{where}: an image with {3 * pixels} values; at most {most}")
    return data
