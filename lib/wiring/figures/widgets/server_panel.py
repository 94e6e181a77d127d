"""Server panel: attach to a URL or start one, its arguments, live accept length and tok/s, stop."""

from __future__ import annotations

from html import escape

import ipywidgets

from wiring.figures.server_session import ServerSession, readings_table
from wiring.figures.widgets.controls import guarded, note, put

_WIDE = ipywidgets.Layout(width="480px")
_EVERY_MS = 2000


def server_panel(bench: ServerSession) -> ipywidgets.VBox:
    """Buttons over `bench`. Starting takes up to a minute on the CPU; interrupting the kernel gives it up."""
    url = ipywidgets.Text(
        value=bench.case.profile.engine.url, placeholder="http://127.0.0.1:30000", description="URL", layout=_WIDE
    )
    key = ipywidgets.Password(description="API key", placeholder="empty: SGLANG_API_KEY, if set", layout=_WIDE)
    may = ipywidgets.Checkbox(description="may be sent requests, not only read", indent=False)
    kind = ipywidgets.ToggleButtons(
        options=[("with the draft as served", True), ("plain", False)], style={"button_width": "auto"}
    )
    buttons = {name: ipywidgets.Button(description=name.capitalize()) for name in ("attach", "start", "read", "send")}
    buttons["send"].description = "Send a prompt"
    stop = ipywidgets.Button(description="Stop", button_style="warning")
    live = ipywidgets.Play(interval=_EVERY_MS, min=0, max=1_000_000, show_repeat=False)  # the browser's clock
    state, error, output = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.Output()
    shown: list = []  # the arguments, asked for once

    def refresh() -> None:
        state.value = f"<b>{escape(bench.state)}</b>"
        stop.description = "Stop" if bench.ours or not bench.running else "Detach"
        for button in (buttons["read"], buttons["send"], stop, live):
            button.disabled = not bench.running
        for widget in (buttons["attach"], buttons["start"], url, key, kind):
            widget.disabled = bench.running
        if not bench.running:
            live.playing = False
        tables = [*shown, readings_table(bench.readings)] if bench.running else []
        put(output, *tables)

    def begin() -> bool:
        """Whether a server can be had: a second press while the first one worked comes after it, and is none."""
        for widget in (buttons["attach"], buttons["start"], url, key, kind):
            widget.disabled = True  # shown at once; `refresh` has the last word
        return not bench.running

    def attach() -> None:
        if not begin():
            return
        bench.attach(url.value.strip(), key.value)
        shown[:] = [bench.arguments()]

    def start() -> None:
        if not begin():
            return
        bench.start(kind.value, progress=lambda text: setattr(error, "value", note(text)))
        error.value = ""
        shown[:] = [bench.arguments()]

    def allow(move: dict) -> None:
        bench.may_send = move["new"]
        refresh()

    actions = {
        buttons["attach"]: attach,
        buttons["start"]: start,
        buttons["read"]: bench.read,
        buttons["send"]: bench.send,
        stop: bench.stop,
    }
    for button, action in actions.items():
        button.on_click(lambda _, action=action: guarded(action, error, refresh))
    live.observe(lambda _: guarded(bench.read, error, refresh) if bench.running else None, names="value")
    may.observe(allow, names="value")
    refresh()
    reading = ipywidgets.HBox([buttons["read"], live, ipywidgets.HTML(note("read every 2 s")), buttons["send"], stop])
    below = ipywidgets.HTML(note(bench.needs()))
    first = ipywidgets.HBox([url, buttons["attach"], may])
    second = ipywidgets.HBox([kind, buttons["start"]])
    return ipywidgets.VBox([first, key, second, reading, error, state, output, below])
