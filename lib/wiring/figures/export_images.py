"""Figures as PNG or SVG files, drawn by a Chromium that is on this machine: offline, one start for all of them.

The browser opens one page with plotly.js and the figures in it, draws each with `Plotly.toImage`, and prints the page
with the images in the place of the scripts (`--dump-dom`). No package of its own is needed for that.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from wiring.checkpoints.atomic import replacing
from wiring.errors import WiringError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FORMATS = (".png", ".svg")
_SCALE = 2  # PNG pixels per figure pixel
_START_S, _EACH_S = 60, 5
_PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><script>{plotly}</script></head><body><script>
(async () => {{
  const said = document.createElement("pre");
  said.id = "images";
  try {{
    const images = [];
    for (const one of {wanted}) images.push(await Plotly.toImage(one.figure, one.options));
    said.textContent = "DONE" + JSON.stringify(images);
  }} catch (error) {{ said.textContent = "FAILED" + error; }}
  document.head.remove();
  document.body.replaceChildren(said);
}})();
</script></body></html>"""
_SAID = re.compile(r'<pre id="images">(DONE|FAILED)(.*?)</pre>', re.S)


def find_browser() -> str:
    """The browser to draw with: $BROWSER_PATH, else the first of BROWSERS on the PATH.

    Raises WiringError where there is none: figures are then seen in JupyterLab and in report.html only.
    """
    named = os.environ.get("BROWSER_PATH", "")
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise WiringError("this is no program", where="BROWSER_PATH", expected="a Chromium or Chrome", found=named)
        return named
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise WiringError(
        "no browser was found that could draw figures into files",
        expected=f"one of {', '.join(BROWSERS)} on the PATH",
        remedy="Install one (Debian: apt install chromium) or name it in BROWSER_PATH; without one the figures are in "
        "report.html, whose camera button saves each as a file",
    )


def write_images(figures: Mapping[Path, Mapping | object]) -> list[Path]:
    """Write each figure (plotly figure or its JSON) to its path, whose suffix, .png or .svg, says the format.

    Raises WiringError for another suffix, where there is no browser, and where it does not draw.
    """
    paths = list(figures)
    for path in paths:
        if path.suffix not in FORMATS:
            raise WiringError("figures are written as PNG or SVG", where=path, expected=" or ".join(FORMATS))
    browser = find_browser()
    images = _draw(browser, [_wanted(figures[path], path.suffix[1:]) for path in paths]) if paths else []
    for path, image in zip(paths, images, strict=True):
        with replacing(path) as temporary:
            temporary.write_bytes(_content(image))
    return paths


def _wanted(figure: Mapping | object, form: str) -> dict:
    plain = json.loads(figure.to_json()) if hasattr(figure, "to_json") else figure
    layout = plain.get("layout", {})
    sizes = {"width": layout.get("width", 760), "height": layout.get("height", 400)}
    return {"figure": plain, "options": {"format": form, "scale": _SCALE if form == "png" else 1, **sizes}}


def _draw(browser: str, wanted: list[dict]) -> list[str]:
    """The images as data URLs, in order."""
    import plotly.offline

    seconds = _START_S + _EACH_S * len(wanted)
    with tempfile.TemporaryDirectory(prefix="wiring-figures-") as folder:
        page = Path(folder, "figures.html")
        text = json.dumps(wanted).replace("</", "<\\/")
        page.write_text(_PAGE.format(plotly=plotly.offline.get_plotlyjs(), wanted=text), encoding="utf-8")
        command = [browser, "--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}/profile"]
        command += [f"--virtual-time-budget={1000 * seconds}", "--dump-dom", page.as_uri()]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses its sandbox to root
        shown, errors = _run(command, seconds)
    said = _SAID.search(shown)
    if said is None or said[1] == "FAILED":
        last = said[2] if said else (errors.strip().splitlines() or ["nothing was drawn"])[-1]
        raise WiringError("the browser did not draw the figures", where=browser, found=last)
    return json.loads(unescape(said[2]))


def _run(command: list[str], seconds: int) -> tuple[str, str]:
    """Run the browser in a process group of its own, which goes with it; what it wrote."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise WiringError(
            "the browser did not draw the figures in time", where=command[0], expected=f"within {seconds} s"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _content(image: str) -> bytes:
    """The bytes behind a data URL, of base64 or percent encoding."""
    head, _, data = image.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else unquote(data).encode("utf-8")


def write_figures(run: Path, form: str) -> list[Path]:
    """Write every figure of a run's executed notebooks to run/figures/NN-cell.FORM; the paths.

    Raises WiringError for a format that is neither "png" nor "svg", and as `write_images` does.
    """
    from wiring.figures.notebook_page import figures_in

    if f".{form}" not in FORMATS:
        raise WiringError("figures are written as PNG or SVG", where="--images", expected="png or svg", found=form)
    return write_images(
        {
            run / "figures" / f"{path.stem[:2]}-{cell}.{form}": figure
            for path in sorted((run / "notebooks").glob("*.ipynb"))
            for cell, figure in figures_in(path).items()
        }
    )
