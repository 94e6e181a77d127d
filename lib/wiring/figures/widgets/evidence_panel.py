"""Evidence board: the six kinds of evidence, the ranking, and for each kind of fault what speaks for and against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets

from wiring.diagnosis.verdict import diagnose
from wiring.figures import evidence_board as board
from wiring.figures.widgets.controls import Controls, note, put
from wiring.logs.evidence import Evidence

_NEED = (
    "Needs no server. Untick a letter to see what the verdict rests on. A row without records says which command would "
    "bring them; `wiring diagnose` weighs a file with evidence of your own."
)
_WIDE = ipywidgets.Layout(width="480px")


def evidence_board(cases: Mapping[str, Evidence]) -> ipywidgets.VBox:
    """A board over named evidence ("as served", "cured"); the first is shown, with its best kind of fault."""
    verdicts = {name: diagnose(evidence) for name, evidence in cases.items()}
    output, words = ipywidgets.Output(), ipywidgets.HTML()

    def changed(case: str, kind: int, **letters: bool) -> None:
        left_out = {letter for letter, counted in letters.items() if not counted}
        verdict = board.without(verdicts[case], left_out) if left_out else verdicts[case]
        aside = note(f"set aside: {', '.join(sorted(left_out))}") if left_out else ""
        words.value = f"{board.in_words(verdict)} {aside}"
        put(
            output,
            board.kinds_of_evidence(cases[case], verdict),
            board.ranking(verdict),
            board.kind_in_words(verdict, kind),
            board.for_and_against(verdict, kind),
        )

    first = next(iter(cases))
    kinds = board.by_rank(verdicts[first])
    boxes: dict[str, Any] = {
        letter: ipywidgets.Checkbox(value=True, description=f"{letter}: {what}", indent=False)
        for letter, (what, _) in board.LETTERS.items()
    }
    controls = Controls(
        changed,
        case=ipywidgets.ToggleButtons(options=list(cases), value=first, description="evidence"),
        kind=ipywidgets.Dropdown(options=kinds, value=kinds[0][1], description="fault", layout=_WIDE),
        **boxes,
    )
    controls.changed()
    three = ipywidgets.Layout(grid_template_columns="repeat(3, 300px)")
    letters = ipywidgets.GridBox(list(boxes.values()), layout=three)
    chosen = [controls.widgets["case"], letters, words, controls.widgets["kind"], output, ipywidgets.HTML(note(_NEED))]
    return ipywidgets.VBox(chosen)
