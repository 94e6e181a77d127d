"""The supported release of SGLang, and what it does with the speculation arguments.

Read from sglang 0.5.23 (`srt/arg_groups/speculative_hook.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from wiring.engines.sglang_resolve import EMBEDDING_ID, requested_ids
from wiring.errors import WiringError

__all__ = ["ACCEPT_RULE", "EMBEDDING_ID", "SUPPORTED", "Speculation", "requested_ids", "resolve_speculation"]

SUPPORTED = "0.5.23"  # the release that is installed, patched, captured from and served on the CPU


@dataclass(frozen=True)
class Speculation:
    """The three numbers of an EAGLE-3 round.

    `steps` draft steps per round, `topk` branches per step, `draft_tokens` tokens verified per round (the
    already sampled token included, so a chain of `steps` needs steps + 1).
    """

    steps: int
    topk: int
    draft_tokens: int

    def __post_init__(self):
        for name in ("steps", "topk", "draft_tokens"):
            if (value := getattr(self, name)) < 1:
                raise WiringError(
                    "speculation needs whole numbers from 1", code="speculation-not-positive", where=name, found=value
                )


def resolve_speculation(asked: Speculation) -> Speculation:
    """Return the numbers that SGLang uses: with top-k 1 the draft tokens become steps + 1.

    All releases read (0.4.6 to 0.5.23) do this; the log warns without naming either value.
    """
    return Speculation(asked.steps, 1, asked.steps + 1) if asked.topk == 1 else asked


ACCEPT_RULE = (
    "accept length = 1 + accepted drafts / verify rounds (bonus token included, prefill token not), "
    f"from spec_num_correct_drafts and spec_verify_ct of SGLang {SUPPORTED}"
)
