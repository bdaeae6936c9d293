"""How well documents answer a query, as a decoder judges that was trained to say yes or no.

Source: the model cards of Qwen3-Reranker, whose prompt this is.
"""

from __future__ import annotations

from edgeinfer.errors import UsageError
from edgeinfer.runtime.llm.tokenizer import TextTokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

ANSWERS = ("yes", "no")

_BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def question(query: str, document: str, instruction: str) -> str:
    """Return the prompt behind which the model says yes or no."""
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    return f"{_BEGIN}{asked}{_END}"


def answers(tokenizer: TextTokenizer) -> tuple[int, int]:
    """Return the tokens of yes and no.

    Raises:
        UsageError: the vocabulary has none.
    """
    found = [tokenizer.encode_part(word) for word in ANSWERS]
    if any(len(tokens) != 1 for tokens in found):
        words = " and ".join(map(repr, ANSWERS))
        raise UsageError(f"this model's vocabulary has no tokens {words}: it judges nothing")
    return found[0][0], found[1][0]
