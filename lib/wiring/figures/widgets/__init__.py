"""Widgets: thin callbacks over functions of `wiring.figures` that draw a figure or a table.

Draw the figure by itself first: widgets die with a kernel. None of them needs a server; each says what it would need
for more.
"""

from wiring.figures.widgets.calculator_panel import speculation_calculator
from wiring.figures.widgets.evidence_panel import evidence_board
from wiring.figures.widgets.explorer_panel import layout_explorer
from wiring.figures.widgets.patch_panel import patch_panel
from wiring.figures.widgets.server_panel import server_panel

__all__ = ["evidence_board", "layout_explorer", "patch_panel", "server_panel", "speculation_calculator"]
