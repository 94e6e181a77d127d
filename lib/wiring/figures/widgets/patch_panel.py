"""Patch panel: plan, side-by-side diff, apply, prove, undo, each with its state."""

from __future__ import annotations

import ipywidgets

from wiring.figures.page import coded
from wiring.figures.patch_session import PatchSession, Question, Step
from wiring.figures.plot_template import BLUE, INK, RED
from wiring.figures.widgets.controls import guarded, note, put
from wiring.patch.fix_kinds import Form

_NEED = (
    "Needs no server: files are written and read again. The proof by capture needs one, on the CPU or on a GPU; the "
    "state of `prove` says how."
)
_COLOURS = {"not yet": INK, "done": BLUE, "failed": RED}
_TOP = "vertical-align:top"
_WIDE = ipywidgets.Layout(width="600px")


def patch_panel(bench: PatchSession) -> ipywidgets.VBox:
    """Buttons over `bench`. Outside the run folder nothing is touched before its question was answered with yes."""
    if not bench.forms:
        return ipywidgets.VBox([ipywidgets.HTML(note(bench.plan.advice))])
    states, diff, asked, error = ipywidgets.HTML(), ipywidgets.Output(), ipywidgets.HTML(), ipywidgets.HTML()
    form = ipywidgets.ToggleButtons(options=[(str(one), one) for one in bench.forms], description="form")
    where = ipywidgets.Dropdown(
        options=[("a copy in the run folder", False), ("outside the run folder (asks first)", True)],
        description="apply to",
        layout=_WIDE,
    )
    folder = ipywidgets.Text(description="copy in", placeholder="folder for the cured copy of the draft", layout=_WIDE)
    buttons = {name: ipywidgets.Button(description=name.capitalize()) for name in ("apply", "prove", "undo")}
    yes = ipywidgets.Button(description="Yes, write these", button_style="danger")
    no = ipywidgets.Button(description="No")
    question = ipywidgets.VBox([asked, ipywidgets.HBox([yes, no])])
    pending: list[Question] = []

    def refresh() -> None:
        states.value = states_html(tuple(bench.steps.values()))
        question.layout.display = "" if pending else "none"
        asked.value = f'<b style="white-space:pre-wrap">{coded(str(pending[0]))}</b>' if pending else ""
        buttons["apply"].disabled = bench.applied or bool(pending)
        buttons["prove"].disabled = buttons["undo"].disabled = not bench.applied
        form.disabled = where.disabled = bench.applied or bool(pending)
        folder.disabled = form.disabled or not where.value

    def apply() -> None:
        if where.value:
            pending[:] = [bench.question(form.value, folder.value.strip())]
        else:
            error.value = note("copying SGLang takes some seconds ..." if form.value is Form.SOURCE else "copying ...")
            bench.apply_to_scratch(form.value)
            error.value = ""

    def agreed() -> None:
        bench.apply_outside(pending.pop())

    actions = {
        buttons["apply"]: apply,
        buttons["prove"]: bench.prove,
        buttons["undo"]: bench.undo,
        yes: agreed,
        no: pending.clear,
    }
    for button, action in actions.items():
        button.on_click(lambda _, action=action: guarded(action, error, refresh))
    form.observe(lambda move: put(diff, bench.diff(move["new"])), names="value")
    where.observe(lambda _: refresh(), names="value")
    put(diff, bench.diff(form.value))
    refresh()
    row = ipywidgets.HBox(list(buttons.values()))
    below = ipywidgets.HTML(note(_NEED))
    return ipywidgets.VBox([form, diff, where, folder, row, question, error, states, below])


def states_html(steps: tuple[Step, ...]) -> str:
    """The steps with their states as an HTML table."""
    rows = "".join(
        f'<tr><th style="text-align:left;{_TOP}">{step.name}</th>'
        f'<td style="color:{_COLOURS[step.state]};{_TOP};white-space:nowrap;padding:0 10px">{step.state}</td>'
        f'<td style="white-space:pre-wrap;text-align:left">{coded(step.text)}</td></tr>'
        for step in steps
    )
    return f"<table>{rows}</table>"
