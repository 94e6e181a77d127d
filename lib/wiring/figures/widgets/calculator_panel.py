"""Speculation calculator: sliders for acceptance and costs; tok/s and break-even as curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ipywidgets

from wiring.figures.speculation_calculator import LONGEST, Assumed, break_even_by_steps, tok_per_s_by_steps, told
from wiring.figures.widgets.controls import Controls, note, put

_STYLE = {"description_width": "190px"}
_WIDE = ipywidgets.Layout(width="480px")
_NEED = (
    "Needs no server. Measured values come from the benchmark of this notebook: for a server of yours "
    'measure = "live". The prefill is left out, and only chains (top-k 1) are computed.'
)


def speculation_calculator(presets: Mapping[str, Assumed]) -> ipywidgets.VBox:
    """Sliders over the named `presets`, the first of which is loaded; a preset's measured point goes with any move."""
    start = next(iter(presets.values()))
    positions = max(len(preset.conditional) for preset in presets.values())
    top = max(1.0, *(2 * preset.draft for preset in presets.values()))
    output, words = ipywidgets.Output(), ipywidgets.HTML()

    def changed(**values: Any) -> None:
        loaded = presets[preset.value]
        assumed = replace(assumed_of(values, positions), wide=loaded.wide, bend=loaded.bend)  # they have no slider
        if values == values_of(loaded, positions):
            assumed = loaded
        words.value = f"{told(assumed)} {note(assumed.note)}"
        put(output, tok_per_s_by_steps(assumed), break_even_by_steps(assumed))

    preset = ipywidgets.Dropdown(options=list(presets), description="load", style=_STYLE, layout=_WIDE)
    controls = Controls(changed, **_sliders(positions, top))
    preset.observe(lambda move: controls.set(**values_of(presets[move["new"]], positions)), names="value")
    controls.set(**values_of(start, positions))
    acceptance = [widget for name, widget in controls.widgets.items() if name.startswith("accept_")]
    others = [widget for name, widget in controls.widgets.items() if not name.startswith("accept_")]
    columns = ipywidgets.HBox([ipywidgets.VBox(acceptance), ipywidgets.VBox(others)])
    return ipywidgets.VBox([preset, columns, words, output, ipywidgets.HTML(note(_NEED))])


def values_of(assumed: Assumed, positions: int) -> dict[str, Any]:
    """Where the controls stand for `assumed`; beyond its last position the acceptance is held."""
    known = assumed.conditional
    shares = {f"accept_{k + 1}": float(known[min(k, len(known) - 1)]) for k in range(positions)}
    return shares | dict(
        steps=assumed.steps,
        draft_tokens=assumed.draft_tokens,
        resolved=assumed.resolved,
        draft=float(assumed.draft),
        verify=float(assumed.verify),
        token=float(assumed.token),
        plain_tok_per_s=round(float(assumed.plain_tok_per_s), 3),
    )


def assumed_of(values: Mapping[str, Any], positions: int) -> Assumed:
    """The other way round: what the controls say."""
    others = {name: value for name, value in values.items() if not name.startswith("accept_")}
    conditional = tuple(values[f"accept_{k + 1}"] for k in range(positions))
    return Assumed(conditional=conditional, note="set by hand", **others)


def _sliders(positions: int, top: float) -> dict[str, ipywidgets.ValueWidget]:
    common = dict(style=_STYLE, layout=_WIDE, continuous_update=False)

    def share(text: str, most: float, step: float = 0.01) -> ipywidgets.FloatSlider:
        return ipywidgets.FloatSlider(
            min=0.0, max=most, step=step, description=text, readout_format=".3f" if step < 0.01 else ".2f", **common
        )

    sliders = {f"accept_{k}": share(f"draft {k} accepted, if reached", 1.0) for k in range(1, positions + 1)}
    return sliders | dict(
        steps=ipywidgets.IntSlider(min=1, max=LONGEST, description="draft steps", **common),
        draft_tokens=ipywidgets.IntSlider(min=2, max=2 * LONGEST, description="draft tokens (asked)", **common),
        resolved=ipywidgets.Checkbox(description="as SGLang resolves them (top-k 1)", indent=False),
        draft=share("draft step, in plain steps", top, 0.001),
        verify=share("verify, in plain steps", 4.0, 0.001),
        token=share("each further token verified", 1.0, 0.001),
        plain_tok_per_s=ipywidgets.BoundedFloatText(
            min=0.01, max=1e6, description="plain decoding, tok/s", style=_STYLE, layout=_WIDE
        ),
    )
