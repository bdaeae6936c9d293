"""Texts of a given form, by llguidance: which tokens may come next."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import InputError, NotAvailableError, RunError
from edgeinfer.installed import install, version
from edgeinfer.runtime.llm.grammar_trial import WITHIN, TrialRequest, check
from edgeinfer.runtime.llm.params import Grammar

WHITESPACE = r"[ \t\r\n]{0,40}"
"""Between the parts of a JSON text: a small model may otherwise write blanks forever."""

_REMEMBERED, _MOST_REFUSED = 16, 1024

LONGEST = 1 << 18
"""Characters of a grammar."""

MOST_REMAINDERS = 10_000
"""Least common multiple of the digits of all ``multipleOf`` of a schema, without point and zeros at
the end: the library looks at each remainder, outside of all its limits, and in alternatives at
those of all together (llguidance 1.9)."""

_LIMITS: dict[str, Any] = {"max_lexer_states": 50_000, "verbose_errors": False}
"""Others are the library's own. A state takes one or two kilobytes."""

_TOO_MUCH = re.compile(r"too many|limit|max is", re.IGNORECASE)
"""In what the library says of a grammar that is right and takes too much."""

_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([-+.0-9eE]+)')


class Grammars:
    """Compiles grammars for one vocabulary; several threads may do so at once.

    Args:
        tokenizer: contents of ``tokenizer.json``.
        vocab: columns of the logits.
        eos: tokens that end a sequence.

    Raises:
        NotAvailableError: llguidance is not installed, or too old.
    """

    def __init__(self, tokenizer: str, vocab: int, eos: Sequence[int]) -> None:
        try:
            import llguidance
        except ImportError as e:
            raise NotAvailableError(f"grammars need llguidance: {install('llm')}") from e
        self._library: Any = llguidance
        self.tokenizer, self._eos = tokenizer, tuple(eos)
        # Without an end nothing could stop a text that is complete; the library takes one of its
        # own where it is given none.
        ends = list(eos) or None
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocab, eos_token=ends)
        except TypeError as e:
            # Before 1.7 it takes one end of a text and no more.
            found = version("llguidance", "llguidance")
            text = f"grammars need llguidance 1.7 or newer, and {found} is installed"
            raise NotAvailableError(f"{text}: {install('llm')}") from e
        self._vocab = vocab
        self._limits = llguidance.LLParserLimits(**_LIMITS)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a matcher at the start of a text.

        Raises:
            InputError: the grammar is malformed, nothing is of its form, or it takes too much work.
        """
        with self._lock:
            found = self._compiled.get(grammar)
            reason = self._refused.get(_digest(grammar))
        if reason is not None:
            raise InputError("grammar", WITHIN, reason)
        if found is None:
            self._check_size(grammar)
            self._try(grammar)
            found = self.compiled(grammar)
            with self._lock:
                self._compiled[grammar] = found
                if len(self._compiled) > _REMEMBERED:
                    self._compiled.popitem(last=False)
        return Matcher(found.deep_copy(), self._vocab)

    def knows(self, grammar: Grammar) -> bool:
        """Whether a grammar was compiled, or refused after a trial, not long ago."""
        with self._lock:
            return grammar in self._compiled or _digest(grammar) in self._refused

    def _try(self, grammar: Grammar) -> None:
        try:
            check(TrialRequest(self.tokenizer, self._vocab, self._eos, grammar))
        except InputError as error:
            # Whoever asks again gets the answer without a trial.
            with self._lock:
                self._refused[_digest(grammar)] = error.received
                if len(self._refused) > _MOST_REFUSED:
                    self._refused.popitem(last=False)
            raise

    @staticmethod
    def _check_size(grammar: Grammar) -> None:
        if len(grammar.text) > LONGEST:
            expected = f"a {grammar.kind} of at most {LONGEST} characters"
            raise InputError("grammar", expected, str(len(grammar.text)))

    def compiled(self, grammar: Grammar) -> Any:
        """Compile one in this process, whatever that takes.

        Raises:
            InputError: the grammar is malformed, nothing is of its form, or it takes too much work.
        """
        matcher = self._library.LLMatcher
        try:
            form = self._form(grammar, matcher)
        except (ValueError, TypeError) as e:
            raise _malformed(grammar, str(e)) from e
        is_wrong, messages = matcher.validate_grammar_with_warnings(
            form, self._tokenizer, limits=self._limits
        )
        if is_wrong:
            raise _malformed(grammar, messages[0])
        if messages:
            # A keyword of a schema that is not enforced is not obeyed: better to say so.
            raise _malformed(grammar, "; ".join(messages))
        made = matcher(self._tokenizer, form, log_level=0, limits=self._limits)
        # The first step is the slowest, and belongs to the work that is done once.
        made.compute_bitmask()
        if made.is_error():
            raise _malformed(grammar, made.get_error())
        return made

    def _form(self, grammar: Grammar, matcher: Any) -> str:
        kind, text = grammar.kind, grammar.text
        spaces = {"whitespace_pattern": WHITESPACE}
        if kind == "json":
            text = '{"type": "object"}'
        if kind in ("json", "json_schema"):
            schema = json.loads(text)
            if not isinstance(schema, dict | bool):
                raise ValueError(f"a schema is an object, received {text[:40]!r}")
            if isinstance(schema, bool):
                schema = {} if schema else {"not": {}}
            _check_multiples(json.dumps(schema))
            return str(matcher.grammar_from_json_schema(schema, defaults=spaces))
        if kind == "choice":
            texts = json.loads(text)
            if not isinstance(texts, list) or not texts or not all(_is_text(t) for t in texts):
                raise ValueError(f"expected a JSON list of texts, received {text[:60]!r}")
        if kind == "lark":
            # It may hold schemas.
            _check_multiples(text)
        return str(self._library.grammar_from(kind, text))


def _digest(grammar: Grammar) -> bytes:
    return blake2b(
        f"{grammar.kind} {grammar.text}".encode(errors="replace"), digest_size=16
    ).digest()


def _check_multiples(text: str) -> None:
    """Refuse a schema with more remainders than are looked at in good time.

    Raises:
        ValueError: as said.
    """
    whole = 1
    for given in sorted(set(_MULTIPLE.findall(text))):
        try:
            number = Decimal(given)
        except InvalidOperation:
            continue
        digits = number.normalize().as_tuple().digits
        # Zero is the library's to refuse.
        whole = math.lcm(whole, int("".join(map(str, digits))) or 1)
        if whole > MOST_REMAINDERS:
            raise ValueError(
                f"multipleOf {given[:40]}: the least common multiple of the digits of all "
                f"multipleOf may be {MOST_REMAINDERS} at most (those of 0.25 and 700 are 25 and 7)"
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _malformed(grammar: Grammar, reason: str) -> InputError:
    return InputError("grammar", f"a valid {grammar.kind}", " ".join(reason.split()))


class Matcher:
    """Where one text stands in its grammar."""

    def __init__(self, inner: Any, vocab: int) -> None:
        self._inner = inner
        self._vocab = vocab

    def fork(self) -> Matcher:
        """Return one of its own at the same place."""
        return Matcher(self._inner.deep_copy(), self._vocab)

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, (vocab,) bool; an end of sequence where it may end.

        Raises:
            InputError: the grammar became too complex.
        """
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        if self._inner.is_error():
            why = " ".join(self._inner.get_error().split())
            raise InputError("grammar", "one that can be followed within the limits", why)
        return np.unpackbits(bits, bitorder="little")[: self._vocab].view(np.bool_)

    def take(self, token: int) -> None:
        """Go on by a token that is allowed.

        Raises:
            RunError: it is not allowed.
            InputError: the grammar became too complex.
        """
        if not self._inner.consume_token(token):
            why = " ".join(self._inner.get_error().split())
            if _TOO_MUCH.search(why):
                raise InputError("grammar", "one that can be followed within the limits", why)
            raise RunError(f"grammar: {why}")

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow any more."""
        return bool(self._inner.is_stopped())

    def forced(self) -> list[int]:
        """Return tokens that most likely follow, as the grammar leaves no other text."""
        return list(self._inner.compute_ff_tokens())
