"""Tables and the figure of a verdict: the six types of evidence, the ranking of faults, and the symptoms of a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import pandas as pd
import plotly.graph_objects as go

from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE
from wiring.diagnosis.next_checks import CHECKS
from wiring.diagnosis.symptom_table import SYMPTOMS
from wiring.diagnosis.verdict import NAMED, Diagnosis, WeighedSymptom, judge, score
from wiring.engines.faults import FAULTS
from wiring.figures.fragments import render
from wiring.figures.plot_template import BLUE, GREY, INK, RED, area, captioned, figure
from wiring.logs.evidence import Evidence

# letter -> (what it is, the check of `next_checks` that produces it)
LETTERS = {
    "L": ("lint: files, configs, arguments", "lint"),
    "T": ("accuracy on training states", "alone"),
    "S": ("accuracy on served states", "capture"),
    "C": ("slots, one by one", "capture"),
    "P": ("acceptance in the running server", "counters"),
    "R": ("round cost", "round cost"),
}
_FAULT = """<b>{{ number }} {{ name | code }}</b>: {{ "%+.1f" | format(total) }} bits{{ ", named" if named }}<br>
{{ ("What happens: " ~ fault.mechanism ~ ". Where: " ~ fault.where ~ ".") | code }}<br>
{% if open %}{{ ("Always caused by it, and not checked yet: " ~ open ~ ".") | code }}<br>{% endif %}
{{ ("Check: " ~ fault.check) | code }}<br>{{ ("Remedy: " ~ fault.remedy ~ ".") | code }}"""
_VERDICT = "<b>{{ verdict.summary | code }}</b><br>Next: {{ verdict.next_check | string | code }}"


def verdict_table(verdict: Diagnosis, rows: int = 5) -> pd.DataFrame:
    """Return the first `rows` faults of the ranking and every named fault, with the symptoms for and against."""
    columns = ["fault", "name", "bits", "named", "for", "against"]
    ranked = [
        (one.fault, one.name, round(one.score, 1), one.fault in verdict.named)
        + (_joined(one.speaks_for), _joined(one.speaks_against))
        for one in verdict.shown(rows)
    ]
    return pd.DataFrame(ranked, columns=columns).set_index("fault")


def _joined(symptoms: Sequence[WeighedSymptom]) -> str:
    return "; ".join(f"{one.symptom.letter} {one.symptom.name.replace('_', ' ')} ({one.bits:+.1f})" for one in symptoms)


def evidence_table(evidence: Evidence, verdict: Diagnosis) -> pd.DataFrame:
    """Return one row per type of evidence: its records, its present and absent symptoms, and the check that adds it."""
    records = _records(evidence)
    rows = []
    for letter, (what, check) in LETTERS.items():
        symptoms = [symptom for symptom in verdict.symptoms if symptom.letter == letter]
        present = [symptom.name.replace("_", " ") for symptom in symptoms if symptom.present]
        missing = "" if records[letter] else str(CHECKS[check])
        absent = len(symptoms) - len(present)
        rows.append((letter, what, records[letter], "; ".join(present) or "none", absent, missing))
    columns = ["letter", "evidence", "records", "symptoms present", "symptoms absent", "check that adds it"]
    return pd.DataFrame(rows, columns=columns).set_index("letter")


def _records(evidence: Evidence) -> Counter[str]:
    counted = Counter(fact.letter for fact in evidence.facts)
    counted.update(one.side for one in evidence.accuracy)
    counted["L"] += len(evidence.lint) + len(evidence.arguments)
    counted["C"] += len(evidence.slots)
    counted["P"] += len(evidence.acceptance) + len(evidence.differences) + bool(evidence.log)
    counted["R"] += len(evidence.speed)
    return counted


def fault_ranking(verdict: Diagnosis, rows: int = 8) -> go.Figure:
    """Draw the bits for and against the first `rows` faults and every named fault; dotted: the threshold of a name."""
    ranked = verdict.shown(rows)
    fig = figure("Which fault?", "bits of evidence", "", height=190 + 30 * len(ranked))
    if not ranked:
        looked = f"{len(verdict.symptoms)} symptoms were checked." if verdict.symptoms else "There is no evidence."
        text = f"No fault has more evidence for it than against it.<br>{looked}"
        fig.update_xaxes(visible=False)
        fig.update_yaxes(visible=False)
        return fig.add_annotation(text=text, font_size=14, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    names = [f"{one.fault} {one.name}" + (" (named)" if one.fault in verdict.named else "") for one in ranked]
    for side, symptoms, color in (
        ("for", [one.speaks_for for one in ranked], RED),
        ("against", [one.speaks_against for one in ranked], GREY),
    ):
        fig.add_bar(
            x=[round(sum(each.bits for each in one), 2) for one in symptoms],
            y=names,
            orientation="h",
            name=side,
            marker=area(color),
            hovertext=["<br>".join(f"{each.symptom.text} ({each.bits:+.1f})" for each in one) for one in symptoms],
        )
    mark = dict(symbol="diamond", size=10, color=BLUE)
    fig.add_scatter(x=[one.score for one in ranked], y=names, mode="markers", name="sum", marker=mark)
    fig.add_vline(x=NAMED, line_dash="dot", line_color=INK)
    fig.update_layout(barmode="relative")
    fig.update_yaxes(autorange="reversed", automargin=True)
    return captioned(
        fig,
        f"One bit: twice as likely with the fault as without it. Dotted: {NAMED:g} bits; a fault above it is named if "
        "it exceeds every other explanation of the same symptoms.",
    )


def symptom_table(verdict: Diagnosis, fault: int) -> pd.DataFrame:
    """Return every symptom that counts for or against the fault, strongest first; empty if there is none."""
    weighed = [(score(FAULT_CATALOGUE[fault], (symptom,)), symptom) for symptom in verdict.symptoms]
    rows = [
        ("for" if bits > 0 else "against", round(bits, 2), symptom.letter, symptom.state, symptom.text, symptom.source)
        for bits, symptom in sorted(weighed, key=lambda one: (-abs(one[0]), one[1].name))
        if bits
    ]
    return pd.DataFrame(rows, columns=["side", "bits", "letter", "state", "symptom", "source"])


def fault_html(verdict: Diagnosis, fault: int) -> str:
    """Return a description of the fault: its score, mechanism, symptoms not checked yet, check and remedy."""
    declared, decided = FAULT_CATALOGUE[fault], {symptom.name for symptom in verdict.symptoms}
    return render(
        _FAULT,
        number=fault,
        name=FAULTS[fault],
        fault=declared,
        total=score(declared, verdict.symptoms),
        named=fault in verdict.named,
        open="; ".join(SYMPTOMS[name].text for name in sorted(declared.always) if name not in decided),
    )


def verdict_html(verdict: Diagnosis) -> str:
    """Return the verdict and the next check."""
    return render(_VERDICT, verdict=verdict)


def without_evidence(verdict: Diagnosis, letters: Collection[str]) -> Diagnosis:
    """Return the verdict from the same symptoms except those of the evidence types `letters`."""
    return judge([s for s in verdict.symptoms if s.letter not in letters], verdict.predictions)


def faults_by_rank(verdict: Diagnosis) -> list[tuple[str, int]]:
    """Return all faults as (label, number): first the ranking, then the others by number."""
    ranked = [one.fault for one in verdict.ranking]
    return [(f"{fault} {FAULTS[fault]}", fault) for fault in dict.fromkeys([*ranked, *sorted(FAULT_CATALOGUE)])]
