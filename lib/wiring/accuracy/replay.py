"""Replay a served text without a server: count what a chain of draft steps would have accepted.

At temperature 0 every served token is the target's choice, so a proposal is accepted exactly when it equals the next
token of the text. As long as all proposals of a round are right, the draft's input is the text, so the teacher-forced
unroll equals free drafting; after the first wrong proposal nothing of the round counts.

A round starts with the text known up to token p (the last one emitted) and the target's states up to p-1; its step k
proposes token p+1+k. With a right proposals in a row it emits a+1 tokens (the last one, the target's
own, is the bonus), and the next round starts at p+a+1. The first round starts at p = prompt_len: the first generated
token comes from the prefill.

An engine verifies all drafts of its last round and counts the right ones, even beyond the last token that it returns.
To equal its counts, pass `tokens` with at least `steps` tokens more than were served, and `end` = the served length.
Otherwise a round with right proposals up to the end of the text is open: it is left out of `rounds` and of all means,
and `open_round` holds its right proposals so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget


@dataclass(frozen=True)
class Replay:
    """`rounds[i]` = drafts accepted in the i-th round; without the bonus token.

    accept_length = 1 + mean of rounds. acceptance_by_position[k-1] = share of rounds that accepted at least k drafts,
    k = 1..steps; conditional[k-1] = the same among the rounds that accepted at least k-1 (None where there are none).
    open_round: right proposals of the round that is cut by the end of the text, or None.
    """

    rounds: tuple[int, ...]
    steps: int
    accept_length: float
    acceptance_by_position: tuple[float, ...]
    conditional: tuple[float | None, ...]
    open_round: int | None


@torch.no_grad()
def replay(
    draft: Eagle3Draft,
    reference_or_states: ReferenceTarget | StateSample | Tensor,
    tokens: Sequence[int] | Tensor,
    prompt_len: int,
    layout: Layout,
    steps: int,
    end: int | None = None,
) -> Replay:
    """Replay one text (prompt and continuation, N ids) with chains of `steps` drafts, top-k 1.

    States come from the reference target (run on the tokens), a StateSample, or a tensor [N, n, H] with slots in the
    order of `layout` (e.g. captured from a server). Rounds start before token `end`; see the module.
    Raises WiringError when the text leaves no whole round, or states and tokens differ in length.
    """
    ids = torch.as_tensor(tokens, dtype=torch.int64).cpu()
    states = states_of(reference_or_states, ids, layout)
    if steps < 1 or not 1 <= prompt_len < len(ids):
        raise WiringError(
            "there is no text to replay",
            code="no-text",
            where="replay",
            expected="steps >= 1 and a prompt of at least one token, shorter than the text",
            found=f"{steps} steps, a prompt of {prompt_len} in {len(ids)} tokens",
        )
    right = right_proposals(draft, ids, states, steps)
    rounds, open_round = _walk(right, prompt_len, len(ids) if end is None else min(end, len(ids)))
    if not rounds:
        raise WiringError(
            "the text is too short for one whole round",
            code="text-too-short",
            expected="a longer continuation",
            found=f"{len(ids)} tokens",
        )
    return summarize(rounds, steps, open_round)


def right_proposals(draft: Eagle3Draft, ids: Tensor, states: Tensor, steps: int) -> Tensor:
    """Return whether step k of row t proposes token t+2+k of the text: int8 [N-1, steps], 1 yes, 0 no, -1 unknown."""
    device, rows = draft.fc.weight.device, len(ids) - 1
    right = torch.full((rows, steps), -1, dtype=torch.int8)
    for k, logits in enumerate(draft.unrolled(ids[None].to(device), states[None].to(device), steps)):
        known = max(rows - 1 - k, 0)
        proposed = draft.to_target_ids(logits[0, :known].argmax(-1)).cpu()
        right[:known, k] = (proposed == ids[2 + k :]).to(torch.int8)
    return right


def summarize(rounds: Sequence[int], steps: int, open_round: int | None = None) -> Replay:
    """Return accept length and acceptance by position of accepted counts; pool texts by joining their rounds."""
    reached = [sum(a >= k for a in rounds) for k in range(steps + 1)]
    return Replay(
        rounds=tuple(rounds),
        steps=steps,
        accept_length=1 + sum(rounds) / len(rounds),
        acceptance_by_position=tuple(n / len(rounds) for n in reached[1:]),
        conditional=tuple(reached[k] / reached[k - 1] if reached[k - 1] else None for k in range(1, steps + 1)),
        open_round=open_round,
    )


def _walk(right: Tensor, start: int, end: int) -> tuple[list[int], int | None]:
    """Return accepted counts of the rounds that start before the last served token, and of an open round."""
    table = right.tolist()
    rounds: list[int] = []
    p = start
    while p < end - 1:
        row = table[p - 1]
        accepted = next((k for k, mark in enumerate(row) if mark != 1), len(row))
        if accepted < len(row) and row[accepted] == -1:
            return rounds, accepted
        rounds.append(accepted)
        p += accepted + 1
    return rounds, None


def states_of(source: ReferenceTarget | StateSample | Tensor, ids: Tensor, layout: Layout) -> Tensor:
    """Return states [N, n, H] of a text of N `ids` in the order of `layout`. Raises WiringError for another shape."""
    if isinstance(source, ReferenceTarget):
        boundaries = source.forward(ids[None]).boundaries
        states = boundaries[list(layout), 0].transpose(0, 1)  # [N, n, H]
    elif isinstance(source, StateSample):
        states = source.select(layout)
    else:
        states = source
    if states.shape[0] != len(ids) or states.shape[1] != len(layout):
        raise WiringError(
            "the states do not belong to this text",
            code="states-of-another-text",
            where="replay",
            expected=f"[{len(ids)}, {len(layout)}, H] for {len(ids)} tokens and the layout {tuple(layout)}",
            found=list(states.shape),
        )
    return states.float()
