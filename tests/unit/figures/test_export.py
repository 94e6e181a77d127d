"""Figures become files through a browser; without one, or with a bad one, a sentence says so."""

from __future__ import annotations

import base64
import os
import struct
import time
from pathlib import Path

import plotly.graph_objects as go
import psutil
import pytest

from wiring.errors import WiringError
from wiring.figures import export_images as export
from wiring.figures.plot_template import figure

PNG = b"\x89PNG\r\n\x1a\n"
FIGURE = figure("What <is> left", "step", "tokens per second", width=400, height=300).add_scatter(y=[1.5, 2.5])


def has_browser() -> bool:
    try:
        return bool(export.find_browser())
    except WiringError:
        return False


@pytest.fixture
def browser(tmp_path, monkeypatch):
    """Stand in for a browser by a shell script: `browser(commands)`."""

    def stand_in(commands: str) -> Path:
        path = tmp_path / "browser"
        path.write_text(f"#!/bin/sh\n{commands}\n")
        path.chmod(0o755)
        monkeypatch.setenv("BROWSER_PATH", str(path))
        return path

    return stand_in


def test_without_a_browser_it_is_said_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    with pytest.raises(WiringError, match="no browser was found.*apt install chromium.*report.html"):
        export.write_images({tmp_path / "one.png": FIGURE})
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert export.find_browser() == str(tmp_path / "chromium")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(WiringError, match="BROWSER_PATH: this is no program"):
        export.find_browser()
    assert list(tmp_path.iterdir()) == [tmp_path / "chromium"]


def test_what_the_browser_drew_is_written_as_bytes(tmp_path, browser):
    drawn = f'["data:image/png;base64,{base64.b64encode(PNG).decode()}", "data:image/svg+xml,%3Csvg%3E&amp;%C3%A9"]'
    browser(f'echo "$@" > {tmp_path}/asked\necho \'<html><body><pre id="images">DONE{drawn}</pre></body></html>\'')
    paths = [tmp_path / "figures" / "one.png", tmp_path / "figures" / "two.svg"]
    assert export.write_images(dict.fromkeys(paths, FIGURE)) == paths
    assert paths[0].read_bytes() == PNG
    assert paths[1].read_text() == "<svg>&é"
    asked = (tmp_path / "asked").read_text().split()
    assert "--headless" in asked and "--dump-dom" in asked and asked[-1].startswith("file://")
    assert ("--no-sandbox" in asked) == (os.geteuid() == 0)
    assert not Path(asked[-1].removeprefix("file://")).exists()  # the page went with its folder


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ("echo '<pre id=\"images\">FAILEDError: no such trace</pre>'", "Error: no such trace"),
        ("echo 'no display' >&2; exit 1", "no display"),
        ("exit 1", "nothing was drawn"),
    ],
)
def test_a_browser_that_does_not_draw_is_told(tmp_path, browser, commands, said):
    path = browser(commands)
    with pytest.raises(WiringError, match=f"{path}: the browser did not draw the figures.*{said}"):
        export.write_images({tmp_path / "one.png": FIGURE})
    assert not (tmp_path / "one.png").exists()


def test_a_browser_that_hangs_is_ended(tmp_path, browser, monkeypatch):
    monkeypatch.setattr(export, "_START_S", 4)
    monkeypatch.setattr(export, "_EACH_S", 0)
    browser(f"sleep 300 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(WiringError, match="did not draw the figures in time"):
        export.write_images({tmp_path / "one.png": FIGURE})
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the browser's child lives on"
        time.sleep(0.05)


def test_another_format_is_refused_before_anything_is_started(tmp_path, browser):
    browser(f"touch {tmp_path}/started")
    with pytest.raises(WiringError, match=r"one\.pdf: figures are written as PNG or SVG"):
        export.write_images({tmp_path / "one.pdf": FIGURE})
    with pytest.raises(WiringError, match="--images: .*expected png or svg, found pdf"):
        export.write_figures(tmp_path, "pdf")
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(not has_browser(), reason="no browser on this machine")
def test_a_real_browser_draws_png_and_svg(tmp_path):
    png, svg = export.write_images(
        {tmp_path / "one.png": FIGURE, tmp_path / "two.svg": go.Figure(FIGURE).to_plotly_json()}
    )
    content = png.read_bytes()
    assert content.startswith(PNG)
    assert struct.unpack(">II", content[16:24]) == (800, 600)  # twice the figure's pixels
    assert "tokens per second" in svg.read_text() and svg.read_text().startswith("<svg")
