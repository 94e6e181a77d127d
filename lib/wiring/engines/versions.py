"""Releases: how their names compare, and which rule of a table holds for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from packaging.version import InvalidVersion, Version

from wiring.errors import WiringError


class Dated(Protocol):
    """A rule that holds from release `since` on, until the next rule of its table."""

    @property
    def since(self) -> str: ...


Rule = TypeVar("Rule", bound=Dated)


def parse_version(text: str, where: str = "version") -> Version:
    """A release as packaging.version compares it (0.5.9 < 0.5.10rc1 < 0.5.10 < 0.5.10.post1).

    Raises WiringError on what is no version.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise WiringError(
            "not a version", where=where, expected="a release such as 0.5.23", found=text, remedy="Write the number"
        ) from None


def in_force(rules: Iterable[Rule], version: Version) -> Rule | None:
    """The rule that holds in this release: the last whose `since` is not later; None before the first."""
    holding = [rule for rule in rules if Version(rule.since) <= version]
    return max(holding, key=lambda rule: Version(rule.since), default=None)


def within(version: Version, since: str, until: str) -> bool:
    """Whether the release lies in since..until, both included."""
    return Version(since) <= version <= Version(until)
