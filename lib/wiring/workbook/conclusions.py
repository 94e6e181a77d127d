"""The five conclusions of a case, one per notebook: question, finding in a sentence, and checks."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.workbook.artefacts import Accuracy, LayoutDiff, Patch, Rebenchmark, Throughput
from wiring.workbook.check import Claim


@dataclass(frozen=True)
class Conclusion:
    """The conclusion of notebook `number` ("01" to "05"); the finding states figures only."""

    number: str
    question: str
    finding: str
    checks: tuple[Claim, ...]

    @property
    def failing(self) -> int:
        """Return the number of failing checks."""
        return sum(not check.holds for check in self.checks)


def conclude(
    throughput: Throughput, accuracy: Accuracy, layout: LayoutDiff, patch: Patch, rebenchmark: Rebenchmark
) -> tuple[Conclusion, ...]:
    """Return the conclusions in the order of the notebooks."""
    asked = (
        ("Is the server slower with the draft than without?", _symptom(throughput), throughput),
        ("Is the draft any good by itself?", _alone(accuracy), accuracy),
        ("Which states does the server feed the draft?", layout.conclusion, layout),
        ("What cures it, and is the cure proved?", _cure(patch, layout), patch),
        ("Did it help, as much as it should?", _result(rebenchmark), rebenchmark),
    )
    return tuple(
        Conclusion(f"{number:02d}", question, finding, artefact.conclusions)
        for number, (question, finding, artefact) in enumerate(asked, start=1)
    )


def _symptom(found: Throughput) -> str:
    text = (
        f"{found.as_served.tok_per_s:.1f} tok/s with the draft as served against {found.plain.tok_per_s:.1f} without: "
        f"{found.as_served.speedup:.2f}x"
    )
    length = found.as_served.accept_length
    return f"{text}." if length is None else f"{text}, at an accept length of {length:.2f}."


def _alone(found: Accuracy) -> str:
    def said(name: str) -> str:
        report = getattr(found, name)
        return f"{100 * report.depths[0].accuracy:.0f} % under the {name} layout {report.layout}"

    return f"Accuracy of its first step, without a server: {said('trained')}, {said('served')}."


def _cure(found: Patch, layout: LayoutDiff) -> str:
    chosen = next(cure for cure in found.cures if cure.form == found.chosen)
    proof = f"Under the {chosen.form} cure verify feeds {chosen.captured.verify}; trained on {layout.trained}"
    if 0 in layout.trained:
        proof += f"; {chosen.embedding_rows_bit_equal} of {chosen.embedding_rows} rows hold the embedding bit for bit"
    undone = "taken back" if found.undone else "NOT taken back"
    return f"{proof}. Forms tried: {', '.join(cure.form for cure in found.cures)}; {undone} after the proof."


def _result(found: Rebenchmark) -> str:
    text = (
        f"Cured: {found.cured.tok_per_s:.1f} tok/s, {found.cured.speedup:.2f}x plain decoding; predicted "
        f"{found.prediction.speedup:.2f}x."
    )
    if found.verdict is not None:
        text += f" As served: {found.verdict.summary}"
    if found.verdict_cured is not None:
        text += f" Cured: {found.verdict_cured.summary}"
    return text
