"""Compare releases, and select the rule of a table that holds for one."""

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
    """Return a release for comparison (0.5.9 < 0.5.10rc1 < 0.5.10 < 0.5.10.post1).

    Raises WiringError for an invalid version.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise WiringError(
            "not a version", code="version-invalid", where=where, expected="a release such as 0.5.23", found=text
        ) from None


def in_force(rules: Iterable[Rule], version: Version) -> Rule | None:
    """Return the rule that holds in this release: the last with an earlier or equal `since`; None before the first."""
    holding = [rule for rule in rules if Version(rule.since) <= version]
    return max(holding, key=lambda rule: Version(rule.since), default=None)
