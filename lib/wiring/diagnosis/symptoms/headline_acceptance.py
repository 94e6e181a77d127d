"""The acceptance that the case is about, out of all records of it: splits joined, other arms left out."""

from __future__ import annotations

from collections import defaultdict

from wiring.diagnosis.symptoms.estimates import OTHER_PROMPTS, Accepted, pool
from wiring.logs.evidence import Acceptance, Evidence

# Conditions by which one measurement is split; any other one is an arm of its own.
SPLITS = frozenset(
    {"cached", "prompt_tokens", "hours", "after_chunk", "first_round", "domain", "images", "prompts", "batch"}
)

OWN_SHAPE = frozenset({"steps", "topk", "draft_tokens", "engine", "head"})  # an arm with another shape of speculation
_CHAINS = ("vllm", "llama.cpp")  # engines whose EAGLE drafts are chains


def main(evidence: Evidence, design: float = OTHER_PROMPTS) -> Accepted | None:
    """Acceptance without a condition where it is given, else the splits joined, else the worst arm (the complaint)."""
    plain = [record for record in evidence.acceptance if not record.condition]
    if plain and (pooled := pool(plain, design)) is not None:
        return pooled
    arms: dict[str, list[Acceptance]] = defaultdict(list)
    for record in evidence.acceptance:
        arm = {name: value for name, value in record.condition.items() if name not in SPLITS}
        arms[repr(sorted(arm.items()))].append(record)
    found = [
        (*_other_text(records[0]), pooled)
        for _, records in sorted(arms.items())
        if (pooled := pool(records, design)) is not None
    ]
    return min(found, key=lambda one: (*one[:-1], one[-1].drafts.value))[-1] if found else None


def _other_text(record: Acceptance) -> tuple[bool, float]:
    """What other text an arm decodes: raw prompts and sampled tokens are taken only where there is nothing else."""
    return record.condition.get("template") is False, float(record.condition.get("temperature", 0.0))


def steps_of(evidence: Evidence, accepted: Accepted | None = None) -> int | None:
    """Drafts per round along one path: as measured, as resolved, or as set."""
    if accepted is not None and accepted.proposed:
        return accepted.proposed
    for row in sorted(evidence.arguments, key=lambda a: a.name):
        if "steps" in row.name and isinstance(row.resolved, int) and not isinstance(row.resolved, bool):
            return row.resolved
    if evidence.setting.steps:
        return evidence.setting.steps
    return len(accepted.by_position) if accepted is not None and len(accepted.by_position) > 1 else None


def is_chain(evidence: Evidence, steps: int) -> bool:
    """Whether it is known that one draft stands for each place: by topk, draft tokens, or an engine without trees."""
    setting = evidence.setting
    if setting.topk is not None:
        return setting.topk == 1
    return setting.draft_tokens == steps + 1 or setting.engine in _CHAINS
