"""Options whose value is one of several names: help lists them, Tab completes them.

The names are read when they are needed, so that a command starts without reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from edgeinfer.errors import UsageError

Listed = Callable[[], Sequence[str]]
Checked = Callable[[str], str]
F = TypeVar("F", bound=Callable[..., Any])


class Names(click.Choice[Any]):
    """One of several names that are not known before they are requested."""

    name = "choice"

    def __init__(
        self, listed: Listed, checked: Checked | None = None, also: Listed = tuple, files: str = ""
    ) -> None:
        """Store the arguments; no name is read yet.

        Args:
            listed: gives the names that help lists.
            checked: returns the name that a value stands for, or raises what is wrong with it;
                without it only listed names are taken.
            also: gives further names, such as aliases, that Tab completes and help leaves out.
            files: suffix of files that may be given instead.
        """
        self._listed, self._checked, self._also, self._files = listed, checked, also, files
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override] # click sets it once, eagerly
        """The names that help lists."""
        return tuple(self._listed())

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what stands for a value in the usage line."""
        return "NAME"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what is added to the message that a value is missing: the help has the names."""
        return ""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | None:
        """Return the name that a value stands for.

        Raises:
            UsageError: it is none of them.
        """
        if not value:
            return str(value)
        if self._checked is not None:
            return self._checked(str(value))
        if value not in self.choices:
            what = param.opts[-1].lstrip("-") if param is not None else "name"
            raise UsageError(f"{what} {value!r} is unknown; known: {', '.join(self.choices)}")
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin as what was typed; files where it looks like a path."""
        if self._files and ("/" in incomplete or incomplete.startswith(".")):
            return [CompletionItem(incomplete, type="file")]
        known = dict.fromkeys((*self.choices, *self._also()))
        return [CompletionItem(n) for n in known if n.startswith(incomplete)]


class _Option(click.Option):
    """An option whose help ends with the names that it takes."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or not isinstance(self.type, Names):
            return record
        option, text = record
        return option, f"{text}  One of: {', '.join(self.type.choices)}"


def named(*declarations: str, type: Names, help: str, **more: Any) -> Callable[[F], F]:
    """Declare an option that takes one of several names."""
    return click.option(*declarations, cls=_Option, type=type, metavar="NAME", help=help, **more)


def _targets() -> tuple[str, ...]:
    from edgeinfer import profiles

    return (*profiles.names(), "all")


def _other_targets() -> tuple[str, ...]:
    from edgeinfer import profiles

    return tuple(alias for name in profiles.names() for alias in profiles.load(name).aliases)


def _target(value: str) -> str:
    from edgeinfer import profiles

    return value if value == "all" or value.endswith(".toml") else profiles.load(value).name


def _precisions() -> tuple[str, ...]:
    from edgeinfer.convert.quantize.recipe import AUTO, RECIPES

    return (*RECIPES, AUTO)


def _other_precisions() -> tuple[str, ...]:
    from edgeinfer.convert.quantize.recipe import ALIASES, STORED

    return (*ALIASES, STORED)


def _precision(value: str) -> str:
    from edgeinfer.convert.quantize.recipe import STORED, recipe

    # What an alias stands for depends on the targets.
    if value != STORED:
        recipe(value)
    return value


def _calibrators() -> tuple[str, ...]:
    from edgeinfer.convert.quantize.recipe import COREMLTOOLS, METHODS

    return (*METHODS, COREMLTOOLS)


def _backends() -> tuple[str, ...]:
    from edgeinfer.backends import registry

    return registry.names()


def _backend(value: str) -> str:
    from edgeinfer.backends import registry

    if value != "all":
        registry.get(value)
    return value


def _policies() -> tuple[str, ...]:
    from edgeinfer.runtime.select import POLICIES

    return POLICIES


def _machine_code() -> tuple[str, ...]:
    from edgeinfer.profiles.schema import MACHINE_CODE

    return (*MACHINE_CODE, "all")


def _deployments() -> tuple[str, ...]:
    from edgeinfer.convert.lower.coreml.deployment import DEPLOYMENTS

    return tuple(name for d in DEPLOYMENTS for name in (d.ios, d.macos))


def _deployment(value: str) -> str:
    from edgeinfer.convert.lower.coreml.deployment import deployment

    deployment(value)
    return value


def _budgets() -> tuple[str, ...]:
    from edgeinfer.metrics import BUDGETS

    return tuple(BUDGETS)


def _budget(value: str) -> str:
    from edgeinfer.metrics import budget_for

    budget_for(value)
    return value


def _as_typed(value: str) -> str:
    return value


TARGET = Names(_targets, _target, _other_targets, files=".toml")
TARGET_OF_BUNDLE = Names(_targets, _as_typed, _other_targets)
"""A bundle may have targets that are unknown here."""
PRECISION = Names(_precisions, _precision, _other_precisions)
BUDGET = Names(_budgets, _budget)
CALIBRATOR = Names(_calibrators)
BACKEND = Names(_backends, _backend)
POLICY = Names(_policies)
DEPLOYMENT = Names(_deployments, _deployment)
KINDS: dict[str, Any] = {
    "target": TARGET,
    "precision": PRECISION,
    "calibrator": CALIBRATOR,
    "deployment": DEPLOYMENT,
    "machine_code": Names(_machine_code),
    "backend": BACKEND,
    "policy": POLICY,
    "device": click.Choice(["cpu", "gpu", "npu"]),
    "on_crash": click.Choice(["raise", "next"]),
    "threads": click.IntRange(1, 1024),
    "count": click.IntRange(1),
    "seconds": click.FloatRange(0, min_open=True),
    "flag": click.BOOL,
}
"""By the names that declarations of options have for them."""
