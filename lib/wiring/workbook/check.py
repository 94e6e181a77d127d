"""Claims that check themselves: expected and actual value, and whether the claim holds.

A claim that does not hold is a finding, not an exception: the notebook goes on, and the verdict shows it.
Take no times into a claim's text: what stands there is compared when notebooks are re-run.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pydantic import BaseModel, ConfigDict


class Claim(BaseModel):
    """One conclusion: what is claimed, what was expected, what was found, and whether it holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str
    expected: str
    actual: str
    holds: bool

    def __repr__(self) -> str:
        return f"{'HOLDS' if self.holds else 'FAILS'}: {self.claim} | expected {self.expected} | actual {self.actual}"

    def _repr_html_(self) -> str:
        mark, colour = ("&#10003;", "#1a7f37") if self.holds else ("&#10007;", "#cf222e")
        return (
            f'<div style="border-left:4px solid {colour};padding:2px 10px"><b style="color:{colour}">{mark}</b> '
            f"{escape(self.claim)}<br>"
            f"<small>expected {escape(self.expected)}; actual {escape(self.actual)}</small></div>"
        )


def _text(value: object, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "(" + ", ".join(_text(v, digits) for v in value) + ")"
    return str(value)


def equals(claim: str, *, expected: object, actual: object, digits: int = 3) -> Claim:
    """Claim that `actual` equals `expected` exactly."""
    return Claim(claim=claim, expected=_text(expected, digits), actual=_text(actual, digits), holds=expected == actual)


def at_most(claim: str, *, bound: float, actual: float, digits: int = 3) -> Claim:
    """Claim that `actual` is `bound` or less. NaN never holds."""
    return Claim(claim=claim, expected=f"<= {bound:g}", actual=_text(actual, digits), holds=bool(actual <= bound))


def at_least(claim: str, *, bound: float, actual: float, digits: int = 3) -> Claim:
    """Claim that `actual` is `bound` or more. NaN never holds."""
    return Claim(claim=claim, expected=f">= {bound:g}", actual=_text(actual, digits), holds=bool(actual >= bound))


def between(claim: str, *, low: float, high: float, actual: float, digits: int = 3) -> Claim:
    """Claim that `actual` is within `low`..`high`, both included."""
    holds = bool(low <= actual <= high)
    return Claim(claim=claim, expected=f"{low:g} to {high:g}", actual=_text(actual, digits), holds=holds)


def close(claim: str, *, expected: float, actual: float, tolerance: float, digits: int = 3) -> Claim:
    """Claim that `actual` is within a share `tolerance` of `expected`."""
    holds = bool(abs(actual - expected) <= tolerance * abs(expected))
    return Claim(
        claim=claim, expected=f"{expected:.{digits}f} +- {tolerance:.0%}", actual=_text(actual, digits), holds=holds
    )
