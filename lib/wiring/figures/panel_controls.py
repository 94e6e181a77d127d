"""Shared parts of the panels: show figures and tables in an Output, connect controls and buttons to functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from wiring.errors import WiringError
from wiring.figures.fragments import note, problem

_PLOTLY = "application/vnd.plotly.v1+json"
WIDE = ipywidgets.Layout(width="600px")


def put(output: ipywidgets.Output, *shown: go.Figure | pd.DataFrame | str) -> None:
    """Replace the contents of `output` by figures, tables and HTML texts.

    They are set as state, not captured while displayed: that works in any callback, also without a browser. Figures
    are plain, because a FigureWidget would add 5 MB of metadata to the notebook.
    """
    output.outputs = tuple({"output_type": "display_data", "data": _data(one), "metadata": {}} for one in shown)


def _data(one: go.Figure | pd.DataFrame | str) -> dict[str, Any]:
    if isinstance(one, go.Figure):
        figure = json.loads(str(one.to_json(validate=False)))
        return {_PLOTLY: {**figure, "config": {"plotlyServerURL": ""}}, "text/plain": "figure"}
    if isinstance(one, pd.DataFrame):
        return {"text/html": one.to_html(), "text/plain": one.to_string()}
    return {"text/html": one, "text/plain": one}


def run_action(action: Callable[[], object], error: ipywidgets.HTML, refresh: Callable[[], None]) -> None:
    """Run the action of a button, show a WiringError or an interrupt in `error`, then refresh the panel."""
    error.value = ""
    try:
        action()
    except WiringError as refused:
        error.value = problem(refused)
    except KeyboardInterrupt:
        error.value = note("Interrupted.")
    refresh()


def connect(
    actions: Mapping[ipywidgets.Button, Callable[[], object]], error: ipywidgets.HTML, refresh: Callable[[], None]
) -> None:
    """Run the action of each button when it is clicked, as `run_action` does."""
    for button, action in actions.items():
        button.on_click(lambda _, action=action: run_action(action, error, refresh))


class Controls:
    """Widgets by name; `changed(**values)` is called after each change, and once for several changes by `set`."""

    def __init__(self, changed: Callable[..., None], **widgets: ipywidgets.ValueWidget):
        self.widgets = widgets
        self._changed, self._quiet = changed, False
        for widget in widgets.values():
            widget.observe(lambda _: self._quiet or self.changed(), names="value")

    def set(self, **values: Any) -> None:
        """Set several controls, then call `changed` once."""
        self._quiet = True
        try:
            for name, value in values.items():
                self.widgets[name].value = value
        finally:
            self._quiet = False
        self.changed()

    def changed(self) -> None:
        """Call `changed` with the present values."""
        self._changed(**{name: widget.value for name, widget in self.widgets.items()})
