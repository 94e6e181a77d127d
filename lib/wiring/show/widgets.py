"""Widgets: sliders over a function that draws a figure. Draw the figure by itself first: widgets die with a kernel."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
import plotly.graph_objects as go
from IPython.display import display


def over(draw: Callable[..., go.Figure], **sliders: ipywidgets.Widget) -> ipywidgets.VBox:
    """Sliders above the figure that `draw(**values)` makes at each move; before the first move there is none.

    A plain Figure in an Output: a FigureWidget would add 5 MB of metadata to the notebook. Nothing is put into the
    Output at the start, because a headless run that keeps no widget state cannot capture it.
    """
    output = ipywidgets.Output()

    def update(_):
        figure = draw(**{name: slider.value for name, slider in sliders.items()})
        with output:
            output.clear_output(wait=True)
            display(figure)

    for slider in sliders.values():
        slider.observe(update, names="value")
    return ipywidgets.VBox([*sliders.values(), output])


def acceptance_slider(value: float) -> ipywidgets.FloatSlider:
    """A slider for the acceptance of one draft, 0 to 1."""
    style = {"description_width": "initial"}
    return ipywidgets.FloatSlider(
        value=round(value, 2), min=0.0, max=1.0, step=0.01, description="acceptance", style=style
    )
