"""Panels with state: the server panel over a ServerSession, the patch panel over a PatchSession."""

from __future__ import annotations

from typing import Any

import ipywidgets

from wiring.figures.fragments import note, render
from wiring.figures.panel_controls import WIDE, connect, put, run_action
from wiring.figures.patch_session import PatchSession
from wiring.figures.plot_template import BLUE, INK, RED
from wiring.figures.server_session import ServerSession
from wiring.patch.fix_kinds import FixKind

_CLOCK_MS = 2000
_PATCH_NOTE = (
    "Needs no server: files are written and read again. The proof by capture needs one, on the CPU or on a GPU; "
    "the state of `prove` shows the command."
)
_COLORS = {"not yet": INK, "done": BLUE, "failed": RED}
_STEPS = """<table>{% for step in steps %}<tr style="vertical-align:top;text-align:left"><th>{{ step.name }}</th>
<td style="color:{{ colors[step.state] }};white-space:nowrap;padding:0 10px">{{ step.state }}</td>
<td style="white-space:pre-wrap;text-align:left">{{ step.text | code }}</td></tr>{% endfor %}</table>"""
_QUESTION = """<b style="white-space:pre-wrap">{{ question | code }}</b>"""


def server_panel(session: ServerSession) -> ipywidgets.VBox:
    """Return the controls of the session. Starting takes up to a minute on the CPU; a kernel interrupt cancels it."""
    address = dict(value=session.case.profile.engine.url, placeholder="http://127.0.0.1:30000")
    url = ipywidgets.Text(description="URL", layout=WIDE, **address)
    key = ipywidgets.Password(description="API key", placeholder="empty: SGLANG_API_KEY, if set", layout=WIDE)
    allowed = ipywidgets.Checkbox(description="may be sent requests, not only read", indent=False)
    arms = [("with the draft as served", True), ("plain", False)]
    arm: Any = ipywidgets.ToggleButtons(options=arms, style={"button_width": "auto"})
    attach, start, read = (ipywidgets.Button(description=text) for text in ("Attach", "Start", "Read"))
    send, stop = ipywidgets.Button(description="Send a prompt"), ipywidgets.Button(button_style="warning")
    clock = ipywidgets.Play(interval=_CLOCK_MS, min=0, max=1_000_000, show_repeat=False)  # runs in the browser
    state, error, output = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.Output()
    arguments: list = []  # the table of the present server, read once

    def disable_start(disabled: bool) -> None:
        for widget in (attach, start, url, key, arm):
            widget.disabled = disabled

    def refresh() -> None:
        state.value = render("<b>{{ state }}</b>", state=session.state)
        stop.description = "Stop" if session.started_here or not session.running else "Detach"
        for widget in (read, send, stop, clock):
            widget.disabled = not session.running
        disable_start(session.running)
        if not session.running:
            clock.playing = False
        put(output, *([*arguments, session.readings_table()] if session.running else []))

    def attach_server() -> None:
        disable_start(True)
        if not session.running:  # a second click during the first one runs after it
            session.attach(url.value.strip(), key.value)
            arguments[:] = [session.arguments()]

    def launch_server() -> None:
        disable_start(True)
        if not session.running:
            session.start(arm.value, progress=lambda text: setattr(error, "value", note(text)))
            error.value = ""
            arguments[:] = [session.arguments()]

    def allow(change: dict) -> None:
        session.requests_allowed = change["new"]
        refresh()

    actions = {attach: attach_server, start: launch_server, read: session.read, send: session.send, stop: session.stop}
    connect(actions, error, refresh)
    clock.observe(lambda _: session.running and run_action(session.read, error, refresh), names="value")
    allowed.observe(allow, names="value")
    refresh()
    reading = ipywidgets.HBox([read, clock, ipywidgets.HTML(note("read every 2 s")), send, stop])
    below = ipywidgets.HTML(note(session.requirements()))
    first, second = ipywidgets.HBox([url, attach, allowed]), ipywidgets.HBox([arm, start])
    return ipywidgets.VBox([first, key, second, reading, error, state, output, below])


def patch_panel(session: PatchSession) -> ipywidgets.VBox:
    """Return the controls of the session; the user confirms before anything is written outside the run folder."""
    if not session.forms:
        return ipywidgets.VBox([ipywidgets.HTML(note(session.plan.advice))])
    states, diff, asked, error = ipywidgets.HTML(), ipywidgets.Output(), ipywidgets.HTML(), ipywidgets.HTML()
    form: Any = ipywidgets.ToggleButtons(options=[(str(one), one) for one in session.forms], description="form")
    places = [("a copy in the run folder", False), ("outside the run folder (asks first)", True)]
    where = ipywidgets.Dropdown(options=places, description="apply to", layout=WIDE)
    folder = ipywidgets.Text(description="copy in", placeholder="a new folder", layout=WIDE)
    apply, prove, undo = (ipywidgets.Button(description=text) for text in ("Apply", "Prove", "Undo"))
    yes = ipywidgets.Button(description="Yes, write these", button_style="danger")
    no = ipywidgets.Button(description="No")
    question = ipywidgets.VBox([asked, ipywidgets.HBox([yes, no])])
    pending: list[str] = []  # the question that waits for an answer

    def refresh() -> None:
        states.value = render(_STEPS, steps=tuple(session.steps.values()), colors=_COLORS)
        question.layout.display = "" if pending else "none"
        asked.value = render(_QUESTION, question=pending[0]) if pending else ""
        prove.disabled = undo.disabled = not session.applied
        apply.disabled = form.disabled = where.disabled = session.applied or bool(pending)
        folder.disabled = form.disabled or not where.value

    def write_copies(to: str = "") -> None:
        pending.clear()
        error.value = note("copying SGLang takes some seconds ..." if form.value is FixKind.SOURCE else "copying ...")
        session.apply(form.value, to)
        error.value = ""

    def apply_fix() -> None:
        if where.value:
            pending[:] = [session.question(form.value, folder.value.strip())]
        else:
            write_copies()

    actions = {
        apply: apply_fix,
        prove: session.prove,
        undo: session.undo,
        yes: lambda: write_copies(folder.value.strip()),
        no: pending.clear,
    }
    connect(actions, error, refresh)
    form.observe(lambda change: put(diff, session.diff(change["new"])), names="value")
    where.observe(lambda _: refresh(), names="value")
    put(diff, session.diff(form.value))
    refresh()
    row, below = ipywidgets.HBox([apply, prove, undo]), ipywidgets.HTML(note(_PATCH_NOTE))
    return ipywidgets.VBox([form, diff, where, folder, row, question, error, states, below])
