"""Compile a stranger's grammar in a process of its own first.

What compiles (llguidance 1.9) has limits, and work that they do not see: overlaps of the patterns
of an object take minutes, a chain of 5,000 rules ends the process by its depth. Schemas that are
small and plain are known to do neither; all else is tried where it may end nothing, and for some
seconds only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from edgeinfer.backends.process import child, isolation
from edgeinfer.backends.process.trial import answer, limit_memory
from edgeinfer.bounded import parse_json
from edgeinfer.errors import InputError
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.params import Grammar

WITHIN = "one that is compiled within the limits"

LONGEST_S = 15.0
"""Seconds that a trial may take, with the start of its process."""

_MODULE = "edgeinfer.runtime.llm.grammar_trial"
_STACK, _MEMORY = 1 << 20, 1 << 30
"""Bytes of a trial: less stack than a server's thread has, memory beyond what it begins with."""

_PLAIN, _MOST_PARTS, _DEEPEST, _MOST_CHOICES, _SHORT = 1 << 14, 300, 20, 10_000, 256
"""Characters, schemas within and levels of a plain schema; texts of a plain list; characters of a
plain expression, which has neither intersections nor complements."""

_WORDS = frozenset(
    {
        *("$schema", "additionalProperties", "anyOf", "const", "default", "description", "enum"),
        *("examples", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maximum"),
        *("maxItems", "maxLength", "minimum", "minItems", "minLength", "multipleOf"),
        *("properties", "required", "title", "type"),
    }
)
"""Keywords that cost what their schemas cost, one after the other."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What a trial compiles, and for which vocabulary."""

    tokenizer: str
    vocab: int
    eos: Sequence[int]
    grammar: Grammar


def check(request: TrialRequest) -> None:
    """Compile a grammar in a process of its own, unless it is plain.

    Raises:
        InputError: that ended the process, or had no end; whatever else is wrong with the grammar
            shows when it is compiled here.
        NotAvailableError: no process can be started.
    """
    if is_plain(request.grammar) or not isolation.apart():
        return
    process = child.Child(_MODULE, keep_errors=True)
    try:
        process.send(request)
        process.wait_for_answer(LONGEST_S)
    except TimeoutError:
        raise InputError("grammar", WITHIN, f"one that took more than {LONGEST_S:g} s") from None
    except child.ChildEndedError as error:
        raise InputError("grammar", WITHIN, f"one that ended it by {error.how}") from error
    finally:
        process.kill()


def is_plain(grammar: Grammar) -> bool:
    """Whether compiling it is known to take little, by what it consists of."""
    if grammar.kind == "json":
        return True
    if grammar.kind == "choice":
        return grammar.text.count('"') < 2 * _MOST_CHOICES
    if grammar.kind == "regex":
        return len(grammar.text) <= _SHORT
    schema = grammar.text if grammar.kind == "json_schema" else grammar.schema
    if not 0 < len(schema) <= _PLAIN:
        return False
    try:
        return _plain_schema(parse_json(schema))
    except ValueError:
        return False


def _plain_schema(schema: Any) -> bool:
    waiting, seen = [(schema, 0)], 0
    while waiting:
        each, depth = waiting.pop()
        seen += 1
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict) or not each.keys() <= _WORDS:
            return False
        if seen > _MOST_PARTS or depth > _DEEPEST or ("format" in each and "minLength" in each):
            return False
        if "format" in each and "maxLength" in each:
            return False
        properties, choices = each.get("properties", {}), each.get("anyOf", [])
        if not isinstance(properties, dict) or not isinstance(choices, list):
            return False
        inner = [*properties.values(), *choices]
        inner += [each[name] for name in ("items", "additionalProperties") if name in each]
        waiting += [(one, depth + 1) for one in inner]
    return True


def _attempt(request: TrialRequest) -> None:
    from edgeinfer.runtime.llm.grammar import Grammars

    limit_memory(_MEMORY)
    failed: list[Exception] = []

    def compile_it() -> None:
        try:
            Grammars(request.tokenizer, request.vocab, request.eos).compiled(request.grammar)
        except Exception as error:
            failed.append(error)

    threading.stack_size(_STACK)
    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    answer(_attempt)
