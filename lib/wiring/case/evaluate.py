"""The draft alone, on the case's saved training states and on text that the target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import torch

from wiring.boundary import Layout
from wiring.case.artefacts import AccuracyRow, DepthRow
from wiring.case.store import Case
from wiring.errors import WiringError
from wiring.files.draft import DraftCheckpoint, read_draft
from wiring.files.states import StateSample, iter_states
from wiring.files.target import TargetConfig, read_target_config, read_tensor
from wiring.models.eagle3 import Eagle3Draft
from wiring.models.reference import ReferenceTarget
from wiring.offline.accuracy import RULE, accuracy_by_depth
from wiring.offline.fit import check_fit
from wiring.offline.replay import Replay, replay, summarise

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Pair:
    """A target and its draft, ready to be evaluated; `head` is the target's `lm_head.weight` [V, H]."""

    target: TargetConfig
    draft: DraftCheckpoint
    model: Eagle3Draft
    embedding: torch.Tensor
    head: torch.Tensor
    samples: tuple[StateSample, ...]
    rule: str = RULE


def load_pair(case: Case) -> Pair:
    """Read target parts, draft and saved states; the draft runs in float32 on the profile's device.

    Raises WiringError when the draft does not fit the target, or the states do not fit either.
    """
    profile = case.profile
    target, draft = read_target_config(profile.target), read_draft(profile.draft)
    problems = check_fit(target, draft.config, draft.tensors)
    if problems:
        raise WiringError(
            "; ".join(str(p) for p in problems), where=profile.draft, remedy="Check draft and target in the profile"
        )
    embedding = read_tensor(profile.target, "model.embed_tokens.weight").float()  # [V, H]
    head = read_tensor(profile.target, "lm_head.weight").float()  # [V, H]
    model = Eagle3Draft.from_checkpoint(draft, embedding).float().eval().to(profile.engine.device)
    wanted = profile.accuracy.documents
    samples = tuple(islice(iter_states(profile.states.path, profile.states.boundaries, target.hidden_size), wanted))
    if len(samples) < wanted:
        raise WiringError(
            "too few saved documents",
            where=profile.states.path,
            expected=f"{wanted} (accuracy.documents)",
            found=len(samples),
            remedy="Lower accuracy.documents in the profile or save more states",
        )
    return Pair(target, draft, model, embedding, head, samples)


def evaluate(case: Case, pair: Pair, layout: Layout, control: str = "none") -> AccuracyRow:
    """Accuracy by depth under `layout` and one control ("none", "zeroed", "shifted", "permuted", "other_sequence").

    Raises WiringError when a boundary of `layout` was not saved.
    """
    report = accuracy_by_depth(
        pair.model, pair.samples, layout, case.profile.accuracy.depths, pair.head, control=control
    )
    return AccuracyRow(layout=layout, control=control, depths=tuple(DepthRow(**asdict(d)) for d in report.depths))


def load_reference(case: Case) -> ReferenceTarget:
    """The target in transformers, on the profile's device and in its dtype."""
    dtype = _DTYPES.get(case.profile.engine.dtype, torch.bfloat16)
    return ReferenceTarget.load(case.profile.target, device=case.profile.engine.device, dtype=dtype)


def replay_texts(
    pair: Pair,
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
        replays.append(replay(pair.model, reference, longer, len(prompt), layout, steps, end=len(text)))
    return tuple(replays)


def pool(replays: Sequence[Replay]) -> Replay:
    """All rounds of several replays as one."""
    return summarise([accepted for one in replays for accepted in one.rounds], replays[0].steps)
