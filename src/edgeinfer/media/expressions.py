"""How long a stranger's regular expression may take, by its form alone.

Tokenizers split texts by expressions of their file, and the library that runs them (Oniguruma)
goes back over a text as often as an expression lets it: ``(.)*(.)*(?!)`` a number of times that
grows with the third power of its length, for which nothing there has a limit. What counts is how
many repetitions without an end stand in a row before something that may fail.
"""

from __future__ import annotations

import re

STEPS = 3e8
"""Steps back that one text may take, some ten nanoseconds each."""

_MOST = 1 << 16
"""Characters of a file's expressions; published ones have some hundred."""

_MOST_OF_THEM = 64
"""Expressions of one file; published ones have up to five."""

_FEW_WAYS, _MOST_WAYS = 64, 1e7
"""Ways to go through an expression at one place: so few cost nothing, and the library takes no
more before it gives up."""

_DEEPEST = 64

_TOKENS = re.compile(
    r"""
    (?P<set>\[)
    | (?P<option>\(\?[imsnWDSPa-]+\))
    | (?P<open>\((?:\?(?:[imsnWDSPa-]*:|[=!>]|<[=!]|<\w+>|'\w+'|P<\w+>)|(?![?*])))
    | (?P<odd>\([?*].? | \\(?:[pP](?!\{[^}]{0,64}\})|[A-Za-z0](?<![sSdDwWhHnrtfvaebBAzZGpPxuk])).?)
    | (?P<close>\))
    | (?P<or>\|)
    | (?P<times>[*+?](?:[+?])? | \{(?:[0-9]+,?[0-9]*|,[0-9]+)\}\??)
    | (?P<back>\\[1-9] | \\k)
    | (?P<anchor>\^ | \$ | \\[bBAzZG])
    | (?P<class>\\[pP]\{[^}]*\} | \\x\{[^}]{0,64}\} | \\.)
    | (?P<one>.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What Oniguruma has by default. Odd is what may take longer than its form says (graphemes, calls,
absent texts), or moves where the next part begins (blanks and comments of the flag x, ``\\c[``)."""

_NAMED = re.compile(
    r"\[:\^?(?:alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit|word|ascii):\]"
)
"""Sets within sets that have a name."""

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUBLISHED = frozenset(
    {
        # GPT-2, and models after it.
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # GPT-4, Llama 3, Qwen.
        rf"{_SHORT}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"{_SHORT}|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # GPT-4o; Mistral.
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORT}?|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORT}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*"
        rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    }
)
"""Expressions whose time is known to grow with a text: what one way fails at, another takes."""


class TooManySteps(ValueError):  # noqa: N818 - of a file, reported by its reader
    """An expression whose time has no bound, or whose form is not known here."""


def longest_text(expressions: list[str]) -> float:
    """Return how many characters of a text may be given to expressions, one after the other.

    Raises:
        TooManySteps: there is no such number for one of them.
    """
    own = [e for e in expressions if e not in _PUBLISHED]
    if len(own) > _MOST_OF_THEM or sum(map(len, own)) > _MOST:
        raise TooManySteps(
            f"its expressions have more than {_MOST} characters, or are more than {_MOST_OF_THEM}"
        )
    parts = [_Reader(e).whole() for e in own]
    powers = [1 + part.power for part in parts]
    worst = max(powers, default=1)
    ways = sum(part.ways for part in parts if part.ways > _FEW_WAYS)
    if worst < 2 and not ways:
        return float("inf")
    count = powers.count(worst) * max(ways, 1.0)
    below = 1.0
    for number in range(2, worst + 1):
        below *= number
    return float((STEPS * below / count) ** (1 / worst))


class _Part:
    """A sequence that is read: how often it may be gone back over, and what stands at its end.

    Attributes:
        power: repetitions without end before something that may fail.
        pending: those behind which nothing may fail yet.
        endless: whether any repetition in it has no end.
        ways: number of ways to go through it that choices and counted repetitions give.
    """

    __slots__ = ("endless", "pending", "power", "ways")

    def __init__(
        self, power: int = 0, pending: int = 0, *, endless: bool = False, ways: float = 1.0
    ) -> None:
        self.power, self.pending, self.endless, self.ways = power, pending, endless, ways

    def then(self, other: _Part, *, fails: bool) -> None:
        """Go on with a part that may fail, or takes nothing if need be."""
        if fails:
            self.power += self.pending
            self.pending = 0
        self.power += other.power
        self.pending += other.pending
        self.endless = self.endless or other.endless
        self.ways = min(self.ways * other.ways, _MOST_WAYS)

    def repeated(self, most: int, counts: int) -> None:
        """Take it up to so many times, whose number is a choice of ``counts``."""
        if self.ways > 1:
            self.ways = min(self.ways ** min(most, 64), _MOST_WAYS)
        self.ways = min(self.ways * counts, _MOST_WAYS)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = self._read(text)
        self._at = 0

    @staticmethod
    def _read(text: str) -> list[tuple[str, str]]:
        found, at = [], 0
        while at < len(text):
            token = _TOKENS.match(text, at)
            if token is None:
                raise TooManySteps(f"an expression cannot be read at {text[at : at + 20]!r}")
            kind, at = str(token.lastgroup), token.end()
            if kind == "set":
                at = _after_set(text, at)
            found.append((kind, token.group()))
        return found

    def whole(self) -> _Part:
        part = self._either(0)
        if self._at < len(self._tokens):
            raise TooManySteps("an expression has a bracket too many")
        return part

    def _either(self, depth: int) -> _Part:
        """Read alternatives: one after the other is tried, so the worst counts."""
        if depth > _DEEPEST:
            raise TooManySteps(f"an expression has more than {_DEEPEST} levels")
        ways = [self._sequence(depth)]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "or":
            self._at += 1
            ways.append(self._sequence(depth))
        power = max(way.power for way in ways)
        pending = max(way.pending for way in ways)
        count = sum(way.ways for way in ways)
        endless = any(way.endless for way in ways)
        return _Part(power, pending, endless=endless, ways=min(count, _MOST_WAYS))

    def _sequence(self, depth: int) -> _Part:
        made = _Part()
        while self._at < len(self._tokens):
            kind, token = self._tokens[self._at]
            if kind in ("or", "close"):
                break
            self._at += 1
            if kind == "odd":
                raise TooManySteps(f"an expression has {token!r}, whose time is not known")
            inner = self._inner(kind, token, depth)
            least, most, counts, is_endless, keeps = self._times()
            if not is_endless:
                inner.repeated(most, counts)
            if is_endless:
                if inner.endless:
                    raise TooManySteps("an expression repeats a repetition without an end")
                # A plus behind braces repeats what they repeat.
                if inner.ways * counts > 1:
                    raise TooManySteps("an expression repeats a choice without an end")
                inner.pending += 0 if keeps else 1
                inner.endless = True
            made.then(inner, fails=least > 0 and kind != "nothing")
        return made

    def _inner(self, kind: str, token: str, depth: int) -> _Part:
        if kind == "back":
            return _Part(1)
        if kind == "option":
            # It holds to the end of the bracket around it, choices included.
            return self._either(depth + 1)
        if kind != "open":
            return _Part()
        part = self._either(depth + 1)
        if self._at >= len(self._tokens):
            raise TooManySteps("an expression lacks a bracket")
        self._at += 1
        if token in ("(?=", "(?!", "(?<=", "(?<!", "(?>"):
            # What is inside is not gone back into, but tried anew at each place.
            return _Part(part.power + part.pending, ways=part.ways)
        return part

    def _times(self) -> tuple[int, int, int, bool, bool]:
        """Return what says how often something is taken.

        Least and most times, of how many numbers that is a choice, whether it has no end, and
        whether none are given back.
        """
        least, most, counts, endless, keeps = 1, 1, 1, False, False
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "times":
            token = self._tokens[self._at][1]
            self._at += 1
            if token[0] == "{":
                low, comma, high = token.strip("+?{}").partition(",")
                # The library takes them the other way round as well.
                bounds = sorted((int(low or 0), int(high or low)))
                # Behind one number a question mark makes it a choice.
                is_choice = not comma and token.endswith("?")
                least = min(least, bounds[0])
                most *= max(1, bounds[1])
                endless = endless or bool(comma and not high)
                # A count of many is as good as none.
                if bounds[1] > 100:
                    endless = True
                else:
                    counts *= bounds[1] - bounds[0] + 1 + is_choice
            else:
                least = min(least, int(token[0] == "+"))
                counts *= 1 + (token[0] == "?")
                endless = endless or token[0] in "*+"
                keeps = token[1:] == "+"
        return least, max(most, least), counts, endless, keeps


def _after_set(text: str, at: int) -> int:
    """Return where a set of characters ends that begins before a place."""
    depth, first = 1, True
    at += text.startswith("^", at)
    while at < len(text):
        char = text[at]
        if char == "\\":
            # What moves where the next character begins is odd outside of sets too.
            if text[at + 1 : at + 2] in ("c", "C", "M"):
                raise TooManySteps(f"an expression has {text[at : at + 2]!r} in a set")
            at += 1
        elif char == "[" and (named := _NAMED.match(text, at)):
            at = named.end() - 1
        elif char == "[":
            if text.startswith("[:", at):
                raise TooManySteps("an expression has a set of an unknown name")
            depth += 1
            first = True
            at += 1 + text.startswith("^", at + 1)
            continue
        elif char == "]" and not first:
            depth -= 1
            if not depth:
                return at + 1
        first = False
        at += 1
    raise TooManySteps("an expression lacks a bracket")
