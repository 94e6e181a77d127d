"""Evidence in a line: accuracies of a draft alone, acceptance under a condition, and what was read from it."""

from wiring.diagnosis.find_symptoms import symptoms_of
from wiring.logs.evidence import AcceptanceRecord, AccuracyRecord, Evidence


def states(evidence: Evidence) -> dict[str, bool]:
    """Symptom name -> present."""
    return {s.name: s.present for s in symptoms_of(evidence)}


def measured(length=None, rounds=1000, positions=(), proposed=5, **condition) -> AcceptanceRecord:
    """Acceptance of `rounds` rounds under a condition."""
    return AcceptanceRecord(
        source=f"run {sorted(condition.items())}",
        accept_length=length,
        rounds=rounds,
        by_position=positions,
        proposed=proposed,
        condition=condition,
    )


def alone(accuracy, rows=4000, side="T", depths=5, text="held_out", **more) -> tuple[AccuracyRecord, ...]:
    """The same accuracy at every depth."""
    return tuple(
        AccuracyRecord(source=f"{side} {text}", side=side, depth=k, accuracy=accuracy, rows=rows, text=text, **more)
        for k in range(depths)
    )
