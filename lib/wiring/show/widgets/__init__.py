"""Widgets: thin callbacks over functions of `wiring.show` that draw a figure or a table.

Draw the figure by itself first: widgets die with a kernel. None of them needs a server; each says what it would need
for more.
"""

from wiring.show.widgets.calculator import speculation_calculator
from wiring.show.widgets.evidence import evidence_board
from wiring.show.widgets.explorer import layout_explorer
from wiring.show.widgets.patch import patch_panel
from wiring.show.widgets.server import server_panel

__all__ = ["evidence_board", "layout_explorer", "patch_panel", "server_panel", "speculation_calculator"]
