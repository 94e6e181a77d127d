"""Evaluate the draft alone, on the case's saved training states and on text that the target wrote."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wiring.accuracy.draft_evaluation import DraftEvaluation, open_evaluation
from wiring.accuracy.evaluation_result import EvaluationResult, measure
from wiring.accuracy.replay import Replay, replay, summarize
from wiring.checkpoints.target_files import read_target_config
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.lint.fit import check_fit
from wiring.model.target_reference import ReferenceTarget
from wiring.model.threads import limit_threads_for_small_model
from wiring.workbook.case import Case

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_draft(case: Case) -> DraftEvaluation:
    """Open the case's draft, the target's embedding and head, and the saved states; float32 on the profile's device.

    Raises WiringError when the draft does not fit the target, the states do not fit either, or too few are saved.
    """
    profile = case.profile
    opened = open_evaluation(
        profile.draft,
        profile.states.path,
        profile.target,
        layout=profile.layout,
        stored=tuple(profile.states.boundaries),
        device=profile.engine.device,
    )
    # The checks of fit are those of serving: they know the flat layout that SGLang reads. Others are not served.
    checkpoint = opened.checkpoint
    flat = checkpoint.producer != "speculators"
    limit_threads_for_small_model(opened.target.hidden_size)
    problems = check_fit(opened.target, checkpoint.config, checkpoint.tensors) if flat else []
    if problems:
        raise WiringError(
            "; ".join(map(str, problems)),
            code="draft-does-not-fit",
            where=profile.draft,
            remedy="Check draft and target in the profile",
        )
    if len(opened.states) < profile.accuracy.documents:
        raise WiringError(
            "too few saved documents",
            code="too-few-documents",
            where=profile.states.path,
            expected=f"{profile.accuracy.documents} (accuracy.documents)",
            found=len(opened.states),
            remedy="Lower accuracy.documents in the profile or save more states",
        )
    return opened


def evaluate_draft(case: Case, opened: DraftEvaluation, layout: Layout) -> EvaluationResult:
    """Return accuracy by depth under `layout`, with every control, by the profile's counting rule.

    Raises WiringError when a boundary of `layout` was not saved.
    """
    asked = case.profile.accuracy
    return measure(opened, asked.depths, preset=asked.preset, layout=layout, limit=asked.documents)


def load_reference(case: Case) -> ReferenceTarget:
    """Load the target in transformers, on the profile's device and in its dtype."""
    dtype = _DTYPES.get(case.profile.engine.dtype, torch.bfloat16)
    limit_threads_for_small_model(read_target_config(case.profile.target).hidden_size)
    return ReferenceTarget.load(case.profile.target, device=case.profile.engine.device, dtype=dtype)


def replay_texts(
    opened: DraftEvaluation,
    reference: ReferenceTarget,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    layout: Layout,
    steps: int,
) -> tuple[Replay, ...]:
    """Draft along (prompt, output) texts that the target wrote, without a server: what would be accepted in each.

    A server verifies all drafts of its last round, also beyond the end of the answer; so each text is continued by
    the reference for `steps` tokens, and the counts are then the server's own.
    """
    replays = []
    for prompt, output in texts:
        text = [*prompt, *output]
        longer = [*text, *reference.greedy(text, steps)]
        replays.append(replay(opened.draft, reference, longer, len(prompt), layout, steps, end=len(text)))
    return tuple(replays)


def pool(replays: Sequence[Replay]) -> Replay:
    """Return all rounds of several replays as one."""
    return summarize([accepted for one in replays for accepted in one.rounds], replays[0].steps)
