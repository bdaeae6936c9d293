"""Recipes by name; those that no device here has are refused in one line."""

import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.convert.quantize.recipe import ALIASES, RECIPES, lowered_as, recipe, spelled_out
from edgeinfer.errors import UsageError


def refusal(precision: str, *targets: str) -> str:
    with pytest.raises(UsageError) as caught:
        edgeinfer.export("m.onnx", "o.edge", targets=targets, precision=precision)
    return str(caught.value)


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_floats_that_no_target_has_are_refused_with_what_is_as_small(name: str) -> None:
    assert not recipe(name).is_integer
    assert recipe(name).is_static == (name == "fp8")
    assert lowered_as(name) == {"bf16": "bf16", "fp8": "fp16"}[name]
    for target in profiles.names():
        if name not in profiles.load(target).precisions:
            text = refusal(name, target)
            assert text.startswith(
                f"precision {name!r}: not possible on {target}; all requested targets"
            )
            assert "\n" not in text


def test_the_refusal_says_what_is_as_small() -> None:
    assert refusal("bf16", "cpu").endswith("; as small: fp16")
    assert refusal("fp8", "cpu").endswith("; as small: static_wi8_ai8")
    # Nothing is advised that the target has not.
    assert "as small" not in refusal("fp8", "cuda")


def test_integers_and_floats_are_told_apart() -> None:
    integers = {r.name for r in RECIPES.values() if r.is_integer}
    assert all("wi" in name for name in integers)
    assert {"fp32", "fp16", "bf16", "tf32", "fp8"} == RECIPES.keys() - integers


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'int3' is unknown; known: fp32, fp16, bf16, tf32, fp8"):
        recipe("int3")


@pytest.mark.parametrize(
    ("typed", "able", "name"),
    [
        ("int8", {"static_wi8_ai8"}, "static_wi8_ai8"),
        ("int8", {"static_wi8_ai8+fp16"}, "static_wi8_ai8+fp16"),
        ("w4", {"weight_only_wi4b32_afp16"}, "weight_only_wi4b32_afp16"),
        ("w4", {"fp32"}, "weight_only_wi4b32_afp32"),
        ("half", {"fp16"}, "fp16"),
        ("auto", set(), "auto"),
        ("weight_only_wp4_afp16", set(), "weight_only_wp4_afp16"),
    ],
)
def test_short_names_stand_for_what_the_targets_can_do(
    typed: str, able: set[str], name: str
) -> None:
    assert spelled_out(typed, lambda wanted: wanted.name in able) == name


def test_no_alias_hides_a_recipe() -> None:
    assert not set(ALIASES) & set(RECIPES)
    assert {n for names in ALIASES.values() for n in names} <= set(RECIPES)
