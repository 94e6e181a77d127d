"""What SGLang 0.5.23 does with a draft's layer ids and with the speculation arguments.

Read from sglang 0.5.23 (`srt/models/deepseek_v2.py`, `set_eagle3_layers_to_capture`;
`srt/model_executor/model_runner_components/spec_aux_hidden_state.py`; `srt/arg_groups/speculative_hook.py`).
Another release numbers layers differently, so every rule here names the release it holds for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from wiring.engines.sglang_layers import Ids
from wiring.engines.sglang_resolve import EMBEDDING_ID, requested_ids, rule_of
from wiring.errors import WiringError

__all__ = [
    "ACCEPT_RULE",
    "EMBEDDING_ID",
    "SUPPORTED",
    "Speculation",
    "config_ids_for",
    "requested_ids",
    "resolve_speculation",
]

SUPPORTED = "0.5.23"


@dataclass(frozen=True)
class Speculation:
    """The three numbers that shape an EAGLE-3 round.

    `steps` draft steps per round, `topk` branches per step, `draft_tokens` tokens verified per round (the
    already sampled token included, so a chain of `steps` needs steps + 1).
    """

    steps: int
    topk: int
    draft_tokens: int

    def __post_init__(self):
        for name in ("steps", "topk", "draft_tokens"):
            if getattr(self, name) < 1:
                raise WiringError(
                    "speculation needs whole numbers from 1", where=name, expected=">= 1", found=getattr(self, name)
                )


def config_ids_for(architecture: str, layout: Sequence[int]) -> tuple[int, ...] | None:
    """The ids that make SGLang 0.5.23 serve `layout` as it is, or None where no ids do."""
    try:
        rule = rule_of(architecture, Version(SUPPORTED))
    except WiringError:
        return None
    if rule is None:
        return None
    if rule.ids is not Ids.FIRST_IS_ONE:
        return tuple(b - 1 for b in layout)
    if layout[0] != 1:
        return tuple(layout)
    return None  # a first id of 1 would be read as an output id, and boundary 1 has no other spelling


def resolve_speculation(asked: Speculation) -> Speculation:
    """What SGLang makes of the asked numbers: with top-k 1 the draft tokens become steps + 1.

    All releases read (0.4.6 to 0.5.23) do this; the log warns without naming either value.
    """
    if asked.topk == 1 and asked.draft_tokens != asked.steps + 1:
        return Speculation(asked.steps, 1, asked.steps + 1)
    return asked


ACCEPT_RULE = (
    "accept length = 1 + accepted drafts / verify rounds (bonus token included, prefill token not), "
    f"from spec_num_correct_drafts and spec_verify_ct of SGLang {SUPPORTED}"
)
