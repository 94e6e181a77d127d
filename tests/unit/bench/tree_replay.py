"""What a draft tree would have accepted on a served text, without a server: any steps, top-k and number of tokens.

The tree is SGLang's (0.5.23, `srt/speculative/spec_utils.py` select_top_k_tokens, `eagle_utils.py`
organize_draft_results): level 1 holds the `topk` likeliest drafts, each later level the topk x topk children of the
topk best of the level before, a draft scoring the product of the probabilities along its path. The draft_tokens - 1
best of all levels are verified, below the root. At temperature 0 the target walks from the root along the drafts that
are its own next tokens, so a round accepts the longest path of the tree that the text goes on with.

A second choice leads the draft on where the text does not go; so each path is drafted as if it were the text, and the
rows before it are the text's own. The rounds are walked as in `wiring.accuracy.replay`; top-k 1 gives the same counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wiring.accuracy.replay import Replay, states_of, summarize
from wiring.checkpoints.states import StateSample
from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget

Path = tuple[int, ...]


@torch.no_grad()
def tree_replay(
    draft: Eagle3Draft,
    reference_or_states: ReferenceTarget | StateSample | Tensor,
    tokens: Sequence[int] | Tensor,
    prompt_len: int,
    layout: Layout,
    speculation: Speculation,
    end: int | None = None,
) -> Replay:
    """Walk one text (prompt and continuation, N ids) with the trees of `speculation`, as the server resolves it.

    The arguments are those of `wiring.accuracy.replay.replay`. Raises WiringError when the text leaves no whole round,
    when states and tokens differ in length, and for a draft whose positions depend on the length of its text, which
    a path that is tried out does not have.
    """
    asked = resolve_speculation(speculation)
    ids = torch.as_tensor(tokens, dtype=torch.int64).cpu()
    if draft.depends_on_length:
        raise WiringError("trees are not replayed for a draft with dynamic RoPE", where="rope_scaling", found="dynamic")
    if not 1 <= prompt_len < len(ids):
        raise WiringError(
            "there is no text to replay",
            expected="a prompt of at least one token, shorter than the text",
            found=f"a prompt of {prompt_len} in {len(ids)} tokens",
        )
    states = states_of(reference_or_states, ids, layout)
    fused = draft.project(states[None].to(draft.fc.weight.device))[0]  # [N, H]
    text, last = ids.tolist(), len(ids) if end is None else min(end, len(ids))
    rounds: list[int] = []
    open_round, p = None, prompt_len
    while p < last - 1:
        paths = draft_tree(draft, fused[:p], text[: p + 1], asked)
        accepted = 0
        while tuple(text[p + 1 : p + 2 + accepted]) in paths and p + 1 + accepted < len(text):
            accepted += 1
        if accepted < asked.steps and p + 1 + accepted >= len(text):
            open_round = accepted  # the text ended before it could show a draft to be wrong
            break
        rounds.append(accepted)
        p += accepted + 1
    if not rounds:
        raise WiringError(
            "the text is too short for one whole round", expected="a longer continuation", found=f"{len(ids)} tokens"
        )
    return summarize(rounds, asked.steps, open_round)


@torch.no_grad()
def draft_tree(draft: Eagle3Draft, fused: Tensor, tokens: Sequence[int], speculation: Speculation) -> frozenset[Path]:
    """The drafts of one round, each as its path of target ids from the root (not included).

    `fused` [T, H] is what the draft's fc made of the states of rows 0..T-1, `tokens` the T + 1 ids up to the root. A
    draft whose parent was not taken is left out: the target never reaches it.
    """
    topk, steps = speculation.topk, speculation.steps
    beams: list[Path] = [()]
    beam_scores = fused.new_ones(1)
    paths: list[Path] = []
    scores: list[Tensor] = []
    for step in range(steps):
        probabilities = _after(draft, fused, tokens, beams).softmax(-1)  # [beams, Vd]
        best, chosen = probabilities.topk(topk, dim=-1)
        level = (beam_scores[:, None] * best).flatten()
        children = draft.to_target_ids(chosen).tolist()
        grown = [(*beam, token) for beam, row in zip(beams, children, strict=True) for token in row]
        paths += grown
        scores.append(level)
        if step < steps - 1:
            beam_scores, kept = level.topk(min(topk, len(grown)))
            beams = [grown[i] for i in kept.tolist()]
    every = torch.cat(scores)
    taken = {paths[i] for i in every.topk(min(speculation.draft_tokens - 1, len(every))).indices.tolist()}
    return frozenset(path for path in taken if all(path[:k] in taken for k in range(1, len(path))))


def _after(draft: Eagle3Draft, fused: Tensor, tokens: Sequence[int], beams: Sequence[Path]) -> Tensor:
    """Logits [beams, Vd] of the draft after each path, all of one length: row T-1 with the path as the text."""
    depth, rows = len(beams[0]), len(fused)
    texts = torch.tensor([[*tokens, *path] for path in beams], device=fused.device)  # [B, T + 1 + depth]
    # Rows behind T-1 belong to no text: attention looks back only, so what they hold is not seen.
    hidden = torch.cat([fused, fused.new_zeros(depth, fused.shape[1])]).expand(len(beams), -1, -1)
    wanted = torch.zeros(texts.shape[0], texts.shape[1] - 1, dtype=torch.bool, device=fused.device)
    wanted[:, rows - 1] = True
    *_, last = draft.steps_of(hidden, texts, depth + 1, keep=lambda step: wanted)
    return draft.logits(last[:, rows - 1])
