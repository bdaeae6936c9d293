"""How long an expression may take is told by its form, before it is given a text."""

import time

import pytest

from edgeinfer.media.expressions import _PUBLISHED, TooManySteps, _Reader, longest_text

SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("expression", "power"),
    [
        (r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", 1),
        (r" ?[^(\s|[.,!?])]+", 1),
        (r" {2,}", 1),
        (r"\p{N}++", 1),
        (r"[^\]\[]+x?", 1),
        (r".*(?!)", 2),
        (SPACES, 2),
        (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", 2),
        (r"(?m:(.)*(.)*(?!))", 3),
        (r"(?m:[^\x00]*[^\x00]*\x00)", 3),
        (r"(?i:a*|b*c*d*)e", 4),
        (r"a{0,1000}a{0,1000}b", 3),
        (r"(.*)\1b", 3),
        (r"(?>a*)a*b", 3),
        # A set may begin with its own end; behind one ^ alone.
        (r"[^^](.)*(.)*(?!)|]", 3),
        (r"[]|](.)*(?!)", 2),
        (r"[^[^]|](.)*(.)*(?!)]", 1),
        # Sets within sets that have a name.
        (r"(.)*[[:alpha:]|](.)*(?!)", 3),
        # A flag holds to the end, choices included.
        (r"(.)*(?i)|(.)*(?i)|(.)*(?!)", 4),
        # Braces without a number are themselves.
        (r"(.)*{}(.)*{,}", 3),
    ],
)
def test_powers(expression: str, power: int) -> None:
    assert 1 + _Reader(expression).whole().power == power


@pytest.mark.parametrize(
    "expression", [r"(a+)+$", r"(?:a|b*)*c", r"(?:(?:a*b)?){2,}", r"((a{5,})b)+"]
)
def test_repetitions_of_repetitions_are_refused(expression: str) -> None:
    with pytest.raises(TooManySteps, match="repeats a repetition"):
        _Reader(expression).whole()


@pytest.mark.parametrize(
    "expression",
    [
        *("(?x)(.)*#|\n", r"(?ix:a)", r"\X*", r"\R", r"\c[|]", r"[\c]|]", r"\p[|]"),
        *(r"[[:x]|]", r"(?#\)|)", r"(?y{g})a"),
    ],
)
def test_what_the_library_reads_otherwise_is_refused(expression: str) -> None:
    """Graphemes take longer than a character; the others move where the next part begins."""
    with pytest.raises(TooManySteps, match=r"time is not known|in a set|unknown name"):
        _Reader(expression).whole()


def test_digits_of_other_scripts_are_letters() -> None:
    """As the library takes them; as a count of none, nothing here could fail, and no bound held."""
    assert longest_text(["(.)*(.)*!{\N{ARABIC-INDIC DIGIT ZERO}}"]) == longest_text(
        ["(.)*(.)*(?!)"]
    )


def test_a_choice_of_one_number_counts_twice() -> None:
    assert _Reader(r"(?:a{1}?){20}").whole().ways >= 1 << 20


@pytest.mark.parametrize(
    "expression",
    [
        r"(?m:(?:.|.)*(?!))",
        r"(a|ab)+",
        r"(?:[a-z]|[a-z]){2,}",
        r"(?:a?b?)*c",
        r"(?:a{1,3}){200}",
        r"[a-z]{1,2}+(?!)",
    ],
)
def test_choices_that_are_repeated_without_an_end_are_refused(expression: str) -> None:
    """Twenty letters are 2^20 ways at each place, below what the library itself refuses."""
    with pytest.raises(TooManySteps, match="repeats a choice"):
        _Reader(expression).whole()


def test_published_ones_take_any_text() -> None:
    assert longest_text([*_PUBLISHED]) == float("inf")
    assert longest_text([]) == float("inf")
    assert longest_text([r"\p{L}+"] * 8) == float("inf")
    assert 20_000 < longest_text([SPACES]) < 30_000
    assert longest_text([SPACES] * 4) == pytest.approx(longest_text([SPACES]) / 2)


def test_ways_that_counted_choices_give_bound_a_text() -> None:
    assert longest_text([r"(?m:(?:.|.){20}(?!))"]) < 300
    assert longest_text([r".{1,50}.{1,50}.{1,50}.{1,50}(?!)"]) < 100
    assert longest_text([r"(?:.|.){3}x", r"\p{N}{1,3}|a|b| ?\w+"]) == float("inf")


def test_a_files_expressions_have_a_bound_together() -> None:
    start = time.process_time()
    with pytest.raises(TooManySteps, match="more than 65536 characters"):
        longest_text([r"\p{" * 20_000] * 30)
    with pytest.raises(TooManySteps, match="more than 65536 characters"):
        longest_text(["a"] * 65)
    with pytest.raises(TooManySteps, match=r"cannot be read|lacks"):
        longest_text([r"\p{" * 20_000 + "["])
    assert time.process_time() - start < 5


@pytest.mark.sweep
@pytest.mark.parametrize("expression", [r".*(?!)", r"(.)*(.)*(?!)", r".*.*.*(?=\x00)"])
def test_the_longest_text_takes_seconds(expression: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    rule = tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")
    text = "x" * int(longest_text([expression]))
    start = time.process_time()
    rule.pre_tokenize_str(text)
    assert time.process_time() - start < 10
