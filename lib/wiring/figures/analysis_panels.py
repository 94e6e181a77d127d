"""Panels that compute and need no server: layout explorer, speculation calculator, evidence board.

Each calls the functions that the notebook's own cells call to draw the same figures without a widget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ipywidgets

from wiring.diagnosis.verdict import diagnose
from wiring.figures import evidence_board as board
from wiring.figures.fragments import note
from wiring.figures.layout_explorer import LayoutExplorer, accuracy_by_layout, named_layout
from wiring.figures.panel_controls import WIDE, Controls, put
from wiring.figures.speculation_calculator import (
    LONGEST,
    Assumed,
    break_even_by_steps,
    outcome_text,
    tok_per_s_by_steps,
)
from wiring.layers import Layout
from wiring.logs.evidence import Evidence

_LABELS = {"description_width": "190px"}
_SETTINGS = ("steps", "draft_tokens", "resolved", "draft", "verify", "token", "plain_tok_per_s")
_CALCULATOR_NOTE = (
    "Needs no server. Measured values come from the benchmark of this notebook; for your own server set "
    'measure = "live". Without the prefill, and only for chains (top-k 1).'
)
_BOARD_NOTE = (
    "Needs no server. Clear a letter to see the verdict without that evidence. A row without records names the command "
    "that adds them; `wiring diagnose` weighs a file with evidence of your own."
)


def explorer_panel(explorer: LayoutExplorer, marks: Mapping[str, Layout]) -> ipywidgets.VBox:
    """Return a slider per slot and a button per marked layout ("trained", "served") above the accuracy figure."""
    output, words = ipywidgets.Output(), ipywidgets.HTML()

    def changed(**slots: int) -> None:
        layout, begin = tuple(slots.values()), time.perf_counter()
        figure = accuracy_by_layout(explorer, marks, layout)
        spent = note(f"computed in {1000 * (time.perf_counter() - begin):.0f} ms")
        words.value = f"{named_layout(layout, explorer.num_layers)} {spent}"
        put(output, figure)

    start = next(iter(marks.values()))
    common = dict(options=range(explorer.num_layers + 1), continuous_update=False, layout=WIDE)
    sliders = {
        f"slot_{slot}": ipywidgets.SelectionSlider(value=start[slot], description=f"slot {slot}", **common)
        for slot in range(explorer.slots)
    }
    controls = Controls(changed, **sliders)
    buttons = []
    for name, layout in marks.items():
        button = ipywidgets.Button(description=f"{name} {layout}", layout=ipywidgets.Layout(width="auto"))
        button.on_click(lambda _, to=layout: controls.set(**dict(zip(sliders, to, strict=True))))
        buttons.append(button)
    controls.changed()
    need = ipywidgets.HTML(note("Needs no server: the draft, saved documents and the target in transformers."))
    return ipywidgets.VBox([ipywidgets.HBox(buttons), *sliders.values(), words, output, need])


def calculator_panel(presets: Mapping[str, Assumed]) -> ipywidgets.VBox:
    """Return sliders over the named `presets`, the first of them loaded, above tok/s and break-even by steps."""
    start = next(iter(presets.values()))
    positions = max(len(preset.conditional) for preset in presets.values())
    output, words = ipywidgets.Output(), ipywidgets.HTML()

    def changed(**values: Any) -> None:
        loaded = presets[preset.value]
        if values == control_values(loaded, positions):
            assumed = loaded
        else:  # a preset's measured rate holds only at its own values; its bend has no slider
            conditional = tuple(values.pop(f"accept_{k + 1}") for k in range(positions))
            assumed = replace(loaded, conditional=conditional, measured=None, note="set by hand", **values)
        words.value = f"{outcome_text(assumed)} {note(assumed.note)}"
        put(output, tok_per_s_by_steps(assumed), break_even_by_steps(assumed))

    preset: Any = ipywidgets.Dropdown(options=list(presets), description="load", style=_LABELS, layout=WIDE)
    largest_draft_cost = max(1.0, *(2 * one.draft for one in presets.values()))
    acceptance = {f"accept_{k}": _slider(f"draft {k} accepted, if reached", 1.0, 0.01) for k in range(1, positions + 1)}
    others = _setting_controls(largest_draft_cost)
    controls = Controls(changed, **acceptance, **others)
    preset.observe(lambda move: controls.set(**control_values(presets[move["new"]], positions)), names="value")
    controls.set(**control_values(start, positions))
    columns = [ipywidgets.VBox(list(column.values())) for column in (acceptance, others)]
    below = ipywidgets.HTML(note(_CALCULATOR_NOTE))
    return ipywidgets.VBox([preset, ipywidgets.HBox(columns), words, output, below])


def control_values(assumed: Assumed, positions: int) -> dict[str, Any]:
    """Return the values of the calculator's controls for `assumed`; acceptance is constant beyond its last position."""
    known = assumed.conditional
    shares = {f"accept_{k + 1}": float(known[min(k, len(known) - 1)]) for k in range(positions)}
    return shares | {name: getattr(assumed, name) for name in _SETTINGS}


def _setting_controls(largest_draft_cost: float) -> dict[str, ipywidgets.ValueWidget]:
    common = dict(style=_LABELS, layout=WIDE, continuous_update=False)
    return dict(
        steps=ipywidgets.IntSlider(min=1, max=LONGEST, description="draft steps", **common),
        draft_tokens=ipywidgets.IntSlider(min=2, max=2 * LONGEST, description="draft tokens (asked)", **common),
        resolved=ipywidgets.Checkbox(description="as SGLang resolves them (top-k 1)", indent=False),
        draft=_slider("draft step, in plain steps", largest_draft_cost),
        verify=_slider("verify, in plain steps", 4.0),
        token=_slider("each further token verified", 1.0),
        plain_tok_per_s=ipywidgets.BoundedFloatText(
            min=0.01, max=1e6, description="plain decoding, tok/s", style=_LABELS, layout=WIDE
        ),
    )


def _slider(label: str, largest: float, step: float = 0.001) -> ipywidgets.FloatSlider:
    digits = ".3f" if step < 0.01 else ".2f"
    common = dict(readout_format=digits, style=_LABELS, layout=WIDE, continuous_update=False)
    return ipywidgets.FloatSlider(min=0.0, max=largest, step=step, description=label, **common)


def evidence_panel(cases: Mapping[str, Evidence]) -> ipywidgets.VBox:
    """Return a board over named evidence ("as served", "cured"); the first and its top fault are shown."""
    verdicts = {name: diagnose(evidence) for name, evidence in cases.items()}
    output, words = ipywidgets.Output(), ipywidgets.HTML()

    def changed(case: str, fault: int, **letters: bool) -> None:
        ignored = [letter for letter, counted in letters.items() if not counted]
        verdict = board.without_evidence(verdicts[case], ignored) if ignored else verdicts[case]
        remark = note(f"set aside: {', '.join(sorted(ignored))}") if ignored else ""
        words.value = f"{board.verdict_html(verdict)} {remark}"
        put(
            output,
            board.evidence_table(cases[case], verdict),
            board.fault_ranking(verdict),
            board.fault_html(verdict, fault),
            board.symptom_table(verdict, fault),
        )

    first = next(iter(cases))
    faults = board.faults_by_rank(verdicts[first])
    boxes = {
        letter: ipywidgets.Checkbox(value=True, description=f"{letter}: {what}", indent=False)
        for letter, (what, _) in board.LETTERS.items()
    }
    case = ipywidgets.ToggleButtons(options=list(cases), value=first, description="evidence")
    fault = ipywidgets.Dropdown(options=faults, value=faults[0][1], description="fault", layout=WIDE)
    Controls(changed, case=case, fault=fault, **boxes).changed()
    grid = ipywidgets.GridBox(list(boxes.values()), layout=ipywidgets.Layout(grid_template_columns="repeat(3, 300px)"))
    return ipywidgets.VBox([case, grid, words, fault, output, ipywidgets.HTML(note(_BOARD_NOTE))])
