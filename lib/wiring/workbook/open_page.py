"""Open a page in the browser, or print its path."""

from __future__ import annotations

import webbrowser
from pathlib import Path


def show(page: Path) -> None:
    """Open the page; where no browser can be started (a remote machine), print its path instead."""
    try:
        shown = webbrowser.open(page.resolve().as_uri())
    except webbrowser.Error:
        shown = False
    if not shown:
        print(f"No browser could be started here. Open this file yourself: {page.resolve()}")
