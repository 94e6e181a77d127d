"""How SGLang computes its acceptance metrics, by release: the rate of its log and gauge, the counts of `meta_info`.

Read from the wheels of 53 releases, 0.4.6 to 0.5.23: `srt/managers/scheduler.py`, from 0.4.10 on
`scheduler_metrics_mixin.py`, from 0.5.13 on `scheduler_components/metrics_reporter.py` (log lines and gauges), and
`srt/managers/tokenizer_manager.py` (`meta_info`). The accept length of the log, of the gauge and of `/server_info`
includes the bonus token in all of them: (accepted drafts + rounds) / rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from packaging.version import Version

from wiring.engines.versions import in_force, parse_version


@dataclass(frozen=True)
class RateRule:
    """How the log's `accept rate` is computed from release `since` on.

    `bonus`: whether the numerator includes the bonus token of every round. The denominator is rounds times `per`.
    """

    since: str
    bonus: bool
    per: str

    @property
    def text(self) -> str:
        counted = "accepted drafts + bonus token" if self.bonus else "accepted drafts only"
        return f"accept rate = {counted} / (rounds x {self.per}) from {self.since} on"

    def length(self, rate: float, per_round: int) -> float:
        """Return the accept length (bonus included) for a rate with `per_round` tokens per round in the denominator."""
        return rate * per_round + (0 if self.bonus else 1)

    def per_round(self, steps: int | None, draft_tokens: int | None, topk: int | None = None) -> int | None:
        """Return the tokens per round in the denominator; None if unknown.

        `draft_tokens` includes the root, as in SGLang; without it a chain of `steps` is assumed if `topk` is 1.
        """
        if self.per == "(steps + 1)":
            return None if steps is None else steps + 1
        chain = None if steps is None or (topk or 1) > 1 else steps + 1
        tokens = chain if draft_tokens is None else draft_tokens
        return None if tokens is None else tokens - (0 if self.bonus else 1)


RATE_RULES = (
    RateRule("0.5.3.post3", True, "(steps + 1)"),
    RateRule("0.5.5.post3", True, "draft tokens"),
    RateRule("0.5.11", False, "(draft tokens - 1)"),
)


@lru_cache(maxsize=64)
def rate_rule(version: str | None) -> RateRule | None:
    """Return the rule of this release; None for an unknown version and for releases without a rate (up to 0.5.3).

    Raises WiringError for an invalid version.
    """
    return None if version is None else in_force(RATE_RULES, parse_version(version))


def prints_quantization(version: str) -> bool:
    """Return whether "Load weight end" names the checkpoint's quantization, if there is one (0.5.10 on)."""
    return parse_version(version) >= Version("0.5.10")


@dataclass(frozen=True)
class MetaCounts:
    """Names in `meta_info` from release `since` on. All count drafts only; accepted drafts index the histogram."""

    since: str
    accepted: str
    proposed: str
    histogram: str | None


# Newest first. Up to 0.5.5.post2 there are no counts, only `spec_verify_ct` and `completion_tokens`; 0.5.12 to
# 0.5.20 have the names of 0.5.11 as well. `proposed` is rounds x steps in 0.5.5.post3, after that rounds x
# (draft tokens - 1).
META_COUNTS = (
    MetaCounts("0.5.12", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    MetaCounts("0.5.11", "spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    MetaCounts("0.5.9", "spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    MetaCounts("0.5.5.post3", "spec_accept_token_num", "spec_draft_token_num", None),
)
