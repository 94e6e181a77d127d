"""Compare captured requests with the reference: slots by phase, and the draft's accuracy on captured states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from wiring.accuracy.target_head import TargetHead
from wiring.capture.matching import LayoutDifference, Norm, PhaseComparison, TextRows, compare_slots, diff_layouts
from wiring.capture.served_accuracy import ServedText, ServingAccuracy, from_the_start, serving_accuracy
from wiring.checkpoints.target_files import final_norm
from wiring.errors import WiringError
from wiring.layers import Layout, Phase
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget
from wiring.workbook.captured_states import CapturedRequest
from wiring.workbook.case import Case

# What the draft is fed at a position: in the prompt by the prefill, later after each verify. What verify itself put out
# stands in where that was not captured.
FED = (Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.PREFILL)  # later ones count


def compare_phases(
    captured: Sequence[CapturedRequest], reference: ReferenceTarget, norm: Norm | None = None, **settings
) -> dict[Phase, PhaseComparison]:
    """Compare every captured phase with every boundary, shift and transform; the reference runs on the whole texts.

    `norm` is the target's final norm (`wiring.checkpoints.target_files.final_norm`); `settings`: see
    `compare_slots`.
    """
    whole = [reference.forward(request.tokens[None]).boundaries[:, 0] for request in captured]  # [L+1, N, H] each
    rows = TextRows.whole([len(request.tokens) for request in captured])
    stack = torch.cat(whole, 1)
    del whole
    found = {}
    for phase in Phase:
        having = [i for i, request in enumerate(captured) if phase in request.states]
        if not having:
            continue
        positions = torch.cat([captured[i].positions[phase] for i in having])
        texts = torch.cat([torch.full((len(captured[i].positions[phase]),), i) for i in having])
        states = torch.cat([captured[i].states[phase] for i in having])  # [M, n*H]
        found[phase] = compare_slots(
            states.view(len(states), -1, reference.hidden_size),
            stack,
            served_rows=TextRows(positions, texts),
            reference_rows=rows,
            norm=norm,
            **settings,
        )
    return found


def compare_with_reference(
    case: Case, captured: Sequence[CapturedRequest], reference: ReferenceTarget
) -> dict[Phase, PhaseComparison]:
    """Compare every captured phase with the boundaries of the case's target, also after its final norm."""
    weight, eps = final_norm(case.profile.target)
    return compare_phases(captured, reference, None if weight is None else Norm(weight, eps))


def phase_differences(
    trained: Layout, comparisons: Mapping[Phase, PhaseComparison], num_layers: int | None = None
) -> dict[Phase, LayoutDifference]:
    """Return the difference of each phase's slots to the trained layout."""
    return {phase: diff_layouts(trained, one.matches, num_layers) for phase, one in comparisons.items()}


def served_texts(
    captured: Sequence[CapturedRequest],
    reference: ReferenceTarget,
    layout: Layout,
    count: Literal["output", "all"] = "output",
) -> tuple[ServedText, ...]:
    """Each request with what the draft was fed and the reference's states in the trained layout.

    count: "output" counts the generated tokens, as trainers count the assistant's; "all" the prompt's too.
    Raises WiringError when a request has no state at position 0, or slots of another number than the layout.
    """
    texts = []
    for i, request in enumerate(captured):
        phases = [phase for phase in FED if phase in request.states]
        positions = torch.cat([request.positions[phase] for phase in phases])
        states = torch.cat([request.states[phase] for phase in phases])  # [M, n*H]
        served = from_the_start(positions, states.view(len(states), -1, reference.hidden_size))
        if served.shape[1] != len(layout):
            raise WiringError(
                "the server feeds another number of slots than the draft was trained on",
                code="served-slot-count",
                where=f"request {i}",
                expected=f"{len(layout)} for the layout {tuple(layout)}",
                found=served.shape[1],
            )
        seen = reference.forward(request.tokens[None])
        mask = torch.ones(len(request.tokens), dtype=torch.int64)
        if count == "output":
            mask[: request.prompt_len] = 0
        trained = seen.boundaries[list(layout), 0].transpose(0, 1).cpu()  # [N, n, H]
        parts = (request.tokens, mask, served, trained, seen.last_hidden[0].cpu())
        texts.append(ServedText(f"request {i}", *(part[: len(served)] for part in parts)))
    return tuple(texts)


def accuracy_on_captured(
    draft: Eagle3Draft,
    captured: Sequence[CapturedRequest],
    reference: ReferenceTarget,
    layout: Layout,
    depths: int,
    *,
    count: Literal["output", "all"] = "output",
    seed: int = 0,
) -> ServingAccuracy:
    """The draft on the captured states beside the reference's states of the trained layout, on the same rows.

    The labels are the reference target's own choices. Raises WiringError as `served_texts` and `serving_accuracy`.
    """
    texts = served_texts(captured, reference, layout, count)
    head = TargetHead(reference.head.weight.detach())
    return serving_accuracy(draft, texts, depths, head, seed=seed)
