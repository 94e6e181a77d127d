"""What the widgets share: a place that shows figures and tables, and controls whose moves call one function."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from wiring.errors import WiringError
from wiring.figures.page import coded
from wiring.figures.plot_template import INK, RED

_PLOTLY = "application/vnd.plotly.v1+json"


def put(output: ipywidgets.Output, *shown: go.Figure | pd.DataFrame | str) -> None:
    """Show figures, tables and HTML texts in `output`, in place of what was there.

    They are set as its state, not captured while they are displayed: that works in a callback of any process, without
    a browser too. A plain Figure, because a FigureWidget would add 5 MB of metadata to the notebook.
    """
    output.outputs = tuple({"output_type": "display_data", "data": _data(one), "metadata": {}} for one in shown)


def _data(one: go.Figure | pd.DataFrame | str) -> dict[str, Any]:
    if isinstance(one, go.Figure):
        figure = json.loads(one.to_json(validate=False))
        return {_PLOTLY: {**figure, "config": {"plotlyServerURL": ""}}, "text/plain": "figure"}
    if isinstance(one, pd.DataFrame):
        return {"text/html": one.to_html(), "text/plain": one.to_string()}
    return {"text/html": one, "text/plain": one}


def note(text: str) -> str:
    """A line of small print as HTML; what stands in backticks is code."""
    return f'<small style="color:{INK}">{coded(text)}</small>'


def problem(error: Exception) -> str:
    """An error's sentence as HTML: what a callback shows in place of a traceback that nobody would see."""
    style = f"border-left:4px solid {RED};padding:2px 10px;white-space:pre-wrap"
    return f'<div style="{style}">{coded(str(error))}</div>'


def guarded(action: Callable[[], object], error: ipywidgets.HTML, refresh: Callable[[], None]) -> None:
    """Do what a button stands for; show in `error` why it was refused, then `refresh` the panel either way."""
    error.value = ""
    try:
        action()
    except WiringError as refused:
        error.value = problem(refused)
    except KeyboardInterrupt:
        error.value = note("Interrupted.")
    refresh()


class Controls:
    """Widgets by name; `changed(**values)` is called at each move, and once where `set` moves several."""

    def __init__(self, changed: Callable[..., None], **widgets: ipywidgets.ValueWidget):
        self.widgets = widgets
        self._changed, self._quiet = changed, False
        for widget in widgets.values():
            widget.observe(self._moved, names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What each control stands at."""
        return {name: widget.value for name, widget in self.widgets.items()}

    def set(self, **values: Any) -> None:
        """Move several controls, then call `changed` once."""
        self._quiet = True
        try:
            for name, value in values.items():
                self.widgets[name].value = value
        finally:
            self._quiet = False
        self.changed()

    def changed(self) -> None:
        """Call `changed` with the values as they are."""
        self._changed(**self.values)

    def _moved(self, _: dict[str, Any]) -> None:
        if not self._quiet:
            self.changed()
