"""What two or more symptoms say together, of which each alone leaves it open."""

from __future__ import annotations

from collections.abc import Iterator

from wiring.diagnosis.symptoms.catalogue import SYMPTOMS
from wiring.diagnosis.symptoms.symptom import Symptom

# Absent where every one of these is: a fault that shows in one of them at least is then ruled out.
ONE_OF = {
    # positions are off everywhere (in the checkpoint's own config: without a server as well), beyond some length, or
    # behind an image
    "positions_tell": (
        "first_round_below_training",
        "falls_with_prompt_length",
        "falls_with_images",
        "accuracy_low",
        "accuracy_below_claim",
    ),
    # rows are mixed up where a graph is replayed, or where there are several requests
    "graph_or_batch_tells": ("falls_with_cuda_graphs", "falls_with_batch"),
}


def symptoms(found: tuple[Symptom, ...]) -> Iterator[Symptom]:
    """Further symptoms of those that were found, one of each name."""
    known = {symptom.name: symptom for symptom in found}
    for name, parts in ONE_OF.items():
        there = [known[part] for part in parts if part in known and known[part].present]
        if there:
            yield _joined(name, True, there[:1])
        elif all(part in known for part in parts):
            yield _joined(name, False, [known[part] for part in parts])
    first, below = known.get("first_round_below_training"), known.get("accept_below_training")
    if first is not None and first.present:
        yield _joined("later_rounds_low", False, [first])
    elif first is not None and below is not None and below.present:
        yield _joined("later_rounds_low", True, [first, below])


def _joined(name: str, present: bool, parts: list[Symptom]) -> Symptom:
    """As certain as the least certain part."""
    least = min(part.certainty for part in parts)
    text = "; ".join(part.text for part in parts)
    return Symptom(name, present, least, SYMPTOMS[name].letter, text, parts[0].source)
