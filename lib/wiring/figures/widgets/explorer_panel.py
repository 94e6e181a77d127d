"""Layout explorer: choose the boundary of each slot and see accuracy by depth move."""

from __future__ import annotations

import time
from collections.abc import Mapping

import ipywidgets

from wiring.figures.layout_explorer import LayoutExplorer, accuracy_by_layout, in_words
from wiring.figures.widgets.controls import Controls, note, put
from wiring.layers import Layout


def layout_explorer(explorer: LayoutExplorer, marks: Mapping[str, Layout]) -> ipywidgets.VBox:
    """A slider for each slot and a button for each marked layout ("trained", "served"), above the figure.

    It starts at the first mark. Needs no server.
    """
    output, told = ipywidgets.Output(), ipywidgets.HTML()

    def changed(**slots: int) -> None:
        layout, begin = tuple(slots.values()), time.perf_counter()
        figure = accuracy_by_layout(explorer, marks, layout)
        spent = 1000 * (time.perf_counter() - begin)
        words = in_words(layout, explorer.num_layers)
        told.value = f"{words} {note(f'computed in {spent:.0f} ms')}"
        put(output, figure)

    start = next(iter(marks.values()))
    sliders = {
        f"slot_{slot}": ipywidgets.SelectionSlider(
            options=explorer.boundaries,
            value=start[slot],
            description=f"slot {slot}",
            continuous_update=False,
            layout=ipywidgets.Layout(width="600px"),
        )
        for slot in range(explorer.slots)
    }
    controls = Controls(changed, **sliders)
    buttons = []
    for name, layout in marks.items():
        button = ipywidgets.Button(description=f"{name} {layout}", layout=ipywidgets.Layout(width="auto"))
        button.on_click(lambda _, to=layout: controls.set(**dict(zip(sliders, to, strict=True))))
        buttons.append(button)
    controls.changed()
    need = "Needs no server: saved states and the draft."
    if len(explorer.boundaries) <= explorer.num_layers:
        need += " For every boundary it would need the target, loaded in transformers."
    below = ipywidgets.HTML(note(need))  # on what rows the accuracies stand is in the figure's caption
    return ipywidgets.VBox([ipywidgets.HBox(buttons), *sliders.values(), told, output, below])
