"""What SGLang's figures of acceptance mean, by release: the rate of its log and gauge, and the counts of `meta_info`.

Read from the wheels of 53 releases, 0.4.6 to 0.5.23: `srt/managers/scheduler.py`, from 0.4.10 on
`scheduler_metrics_mixin.py`, from 0.5.13 on `scheduler_components/metrics_reporter.py` (log lines and gauges), and
`srt/managers/tokenizer_manager.py` (`meta_info`). The accept length of the log, of the gauge and of `/server_info`
holds the bonus token in all of them: (accepted drafts + rounds) / rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from packaging.version import Version

from wiring.engines.versions import in_force, parse_version


@dataclass(frozen=True)
class RateRule:
    """How the log's `accept rate` is counted from release `since` on.

    `bonus`: the numerator holds the bonus token of every round. The denominator is rounds times `per`.
    """

    since: str
    bonus: bool
    per: str

    @property
    def text(self) -> str:
        counted = "accepted drafts + bonus token" if self.bonus else "accepted drafts only"
        return f"accept rate = {counted} / (rounds x {self.per}) from {self.since} on"

    def length(self, rate: float, per_round: int) -> float:
        """Accept length (bonus included) of a rate whose denominator counts `per_round` tokens per round."""
        return rate * per_round + (0 if self.bonus else 1)

    def per_round(self, steps: int | None, draft_tokens: int | None, topk: int | None = None) -> int | None:
        """Tokens per round in the denominator, or None where that is not known.

        `draft_tokens` counts the root, as SGLang does; without it a chain of `steps` is taken, unless `topk` says tree.
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
    """The rule of this release; None where the version is not known, or prints no rate (0.5.3 and before).

    Raises WiringError on what is no version.
    """
    return None if version is None else in_force(RATE_RULES, parse_version(version))


def prints_quantisation(version: str) -> bool:
    """Whether "Load weight end" names the checkpoint's quantisation, so that no word means none (0.5.10 on)."""
    return parse_version(version) >= Version("0.5.10")


@dataclass(frozen=True)
class MetaCounts:
    """Names in `meta_info` from release `since` on. All count drafts alone; index of the histogram: drafts accepted."""

    since: str
    accepted: str
    proposed: str
    histogram: str | None


# Newest first. Up to 0.5.5.post2 there are no counts, only `spec_verify_ct` beside `completion_tokens`; 0.5.12 to
# 0.5.20 carry the names of 0.5.11 as well. `proposed` is rounds x steps in 0.5.5.post3, after that rounds x
# (draft tokens - 1).
META_COUNTS = (
    MetaCounts("0.5.12", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    MetaCounts("0.5.11", "spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    MetaCounts("0.5.9", "spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    MetaCounts("0.5.5.post3", "spec_accept_token_num", "spec_draft_token_num", None),
)
