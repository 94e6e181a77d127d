"""The evidence board: what there is of each of the six kinds of evidence, the ranking, and what speaks for a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pandas as pd
import plotly.graph_objects as go

from wiring.diagnosis.faults import KINDS
from wiring.diagnosis.next_checks import CHECKS
from wiring.diagnosis.symptoms import SYMPTOMS
from wiring.diagnosis.verdict import NAMED, Verdict, judge, score
from wiring.engines.faults import FAULTS
from wiring.figures.page import coded
from wiring.figures.plot_template import BLUE, GREY, INK, RED, area, captioned, figure
from wiring.logs.evidence import Evidence

# letter -> (what it is, the check of `next_checks` that brings it)
LETTERS = {
    "L": ("lint: files, configs, arguments", "lint"),
    "T": ("accuracy on training states", "alone"),
    "S": ("accuracy on served states", "capture"),
    "C": ("slots, one by one", "capture"),
    "P": ("acceptance in the running server", "counters"),
    "R": ("price of a round", "round cost"),
}


def kinds_of_evidence(evidence: Evidence, verdict: Verdict) -> pd.DataFrame:
    """A row for each of the six kinds: its records, the symptoms there and not there, and what would bring it."""
    records = _records(evidence)
    rows = []
    for letter, (what, check) in LETTERS.items():
        symptoms = [symptom for symptom in verdict.symptoms if symptom.letter == letter]
        there = [symptom.name.replace("_", " ") for symptom in symptoms if symptom.present]
        rows.append(
            (
                letter,
                what,
                records[letter],
                "; ".join(there) or "none",
                len(symptoms) - len(there),
                "" if records[letter] else str(CHECKS[check]),
            )
        )
    columns = ["letter", "evidence", "records", "symptoms there", "looked for, not there", "what would bring it"]
    return pd.DataFrame(rows, columns=columns).set_index("letter")


def _records(evidence: Evidence) -> Counter[str]:
    counted = Counter(fact.letter for fact in evidence.facts)
    counted["L"] += len(evidence.lint) + len(evidence.arguments)
    for one in evidence.accuracy:
        counted[one.side] += 1
    counted["C"] += len(evidence.slots)
    counted["P"] += len(evidence.acceptance) + len(evidence.differences) + bool(evidence.log)
    counted["R"] += len(evidence.speed)
    return counted


def ranking(verdict: Verdict, rows: int = 8) -> go.Figure:
    """Bits for and against the first kinds and each named one, best first; a kind is named from the dotted line on."""
    ranked = verdict.shown(rows)
    fig = figure("Which kind of fault?", "bits of evidence", "", height=190 + 30 * len(ranked))
    if not ranked:
        return _nothing_ranked(fig, verdict)
    names = [f"{one.kind} {one.name}" + (" (named)" if one.kind in verdict.named else "") for one in ranked]
    sides = (
        ("speaks for it", [one.speaks_for for one in ranked], RED),
        ("speaks against it", [one.speaks_against for one in ranked], GREY),
    )
    for side, said, colour in sides:
        fig.add_bar(
            x=[round(sum(each.bits for each in one), 2) for one in said],
            y=names,
            orientation="h",
            name=side,
            marker=area(colour),
            hovertext=["<br>".join(f"{each.symptom.text} ({each.bits:+.1f})" for each in one) for one in said],
        )
    fig.add_scatter(
        x=[one.score for one in ranked],
        y=names,
        mode="markers",
        name="together",
        marker=dict(symbol="diamond", size=10, color=BLUE),
    )
    fig.add_vline(x=NAMED, line_dash="dot", line_color=INK)
    fig.update_layout(barmode="relative")
    fig.update_yaxes(autorange="reversed", automargin=True)
    return captioned(
        fig,
        f"One bit: twice as likely with the fault as without it. Dotted: {NAMED:g} bits, from which a kind is named if "
        "it leads every other explanation of the same symptoms.",
    )


def _nothing_ranked(fig: go.Figure, verdict: Verdict) -> go.Figure:
    """A sentence in place of axes that would have no bar."""
    why = f"{len(verdict.symptoms)} symptoms were looked for." if verdict.symptoms else "There is no evidence at all."
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    fig.add_annotation(
        text=f"No kind of fault has more evidence for it than against it.<br>{why}",
        font_size=14,
        showarrow=False,
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
    )
    return fig


def for_and_against(verdict: Verdict, kind: int) -> pd.DataFrame:
    """Every symptom that counts for or against the kind, with its bits, strongest first; empty where none does."""
    said = [(score(KINDS[kind], (symptom,)), symptom) for symptom in verdict.symptoms]
    rows = [
        ("for" if bits > 0 else "against", round(bits, 2), symptom.letter, symptom.state, symptom.text, symptom.source)
        for bits, symptom in sorted(said, key=lambda one: (-abs(one[0]), one[1].name))
        if bits
    ]
    return pd.DataFrame(rows, columns=["speaks", "bits", "letter", "symptom is", "reading", "from"])


def kind_in_words(verdict: Verdict, kind: int) -> str:
    """A kind of fault as HTML: what it is, its score, what was not looked at yet, its check and its remedy."""
    fault = KINDS[kind]
    decided = {symptom.name for symptom in verdict.symptoms}
    opened = [SYMPTOMS[name].text for name in fault.expects if name not in decided]
    total = score(fault, verdict.symptoms)
    lines = [
        f"<b>{kind} {coded(FAULTS[kind])}</b>: {total:+.1f} bits{', named' if kind in verdict.named else ''}",
        coded(f"What happens: {fault.mechanism}. Where: {fault.where}."),
        coded(f"It always causes, and nobody looked yet: {'; '.join(opened)}.") if opened else "",
        coded(f"Check: {fault.check}"),
        coded(f"Remedy: {fault.remedy}."),
    ]
    return "<br>".join(line for line in lines if line)


def without(verdict: Verdict, left_out: Collection[str]) -> Verdict:
    """The verdict that the same symptoms give when the evidence of these letters is set aside."""
    return judge([s for s in verdict.symptoms if s.letter not in left_out], verdict.predictions)


def in_words(verdict: Verdict) -> str:
    """The verdict and what to do next, as HTML."""
    return f"<b>{coded(verdict.summary)}</b><br>Next: {coded(verdict.next_check)}"


def by_rank(verdict: Verdict) -> list[tuple[str, int]]:
    """All kinds as (label, number): those of the ranking first, the others by number."""
    ranked = [one.kind for one in verdict.ranking]
    order = ranked + [kind for kind in sorted(KINDS) if kind not in ranked]
    return [(f"{kind} {FAULTS[kind]}", kind) for kind in order]
