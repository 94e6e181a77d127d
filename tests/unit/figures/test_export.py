"""Figures are written to files by a browser; without one, or with a broken one, the error says what to do."""

from __future__ import annotations

import struct

import plotly.graph_objects as go
import pytest

from wiring.errors import WiringError
from wiring.figures import export_images as export
from wiring.figures.plot_template import figure

pytest.importorskip("kaleido")
FIGURE = figure("What <is> left", "step", "tokens per second", width=400, height=300).add_scatter(y=[1.5, 2.5])


def has_browser() -> bool:
    try:
        return bool(export.find_browser())
    except WiringError:
        return False


@pytest.mark.parametrize("named", ["none", "."])
def test_a_missing_browser_is_an_error_with_a_remedy(tmp_path, monkeypatch, named):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / named))
    with pytest.raises(WiringError) as error:
        export.write_images({tmp_path / "one.png": FIGURE})
    assert error.value.code == "browser-missing" and error.value.found == str(tmp_path / named)
    assert "apt install chromium" in error.value.remedy and not (tmp_path / "one.png").exists()


def test_a_broken_browser_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    broken = tmp_path / "browser"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(broken))
    with pytest.raises(WiringError) as error:
        export.write_images({tmp_path / "one.png": FIGURE})
    assert (error.value.code, error.value.where) == ("figures-not-drawn", str(broken))
    assert not (tmp_path / "one.png").exists()


def test_another_format_is_refused_before_a_browser_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_browser", lambda: pytest.fail("a browser was looked for"))
    for write, where in (
        (lambda: export.write_images({tmp_path / "one.pdf": FIGURE}), tmp_path / "one.pdf"),
        (lambda: export.write_figures(tmp_path, "pdf"), "--images"),
    ):
        with pytest.raises(WiringError) as error:
            write()
        assert (error.value.code, error.value.where, error.value.found) == ("image-format-unknown", str(where), "pdf")
    assert export.write_images({}) == [] and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not has_browser(), reason="no browser on this machine")
def test_a_browser_draws_png_and_svg(tmp_path):
    asked = {tmp_path / "figures" / "one.png": FIGURE, tmp_path / "two.svg": go.Figure(FIGURE).to_plotly_json()}
    png, svg = export.write_images(asked)
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (800, 600)  # twice the pixels of the figure
    assert "tokens per second" in svg.read_text() and svg.read_text().startswith("<svg")
