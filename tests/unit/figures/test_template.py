"""The template can be read on both of JupyterLab's pages and by color-blind readers, and carries captions."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from wiring.figures import claim_figures as figures
from wiring.figures.plot_template import (
    ARM_COLORS,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    SYMBOLS,
    TEMPLATE,
    area,
    captioned,
    figure,
)

THEMES = Path(sys.prefix, "share/jupyter/lab/themes/@jupyterlab")
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB: what a protanope and a deuteranope see.
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
APART = 20  # distance in CIE Lab; 2.3 is just noticeable side by side


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb (IEC 61966-2-1)."""
    srgb = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Contrast ratio by WCAG 2.1."""
    light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab (D65) of linear RGB."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(one: str, other: str, matrix) -> float:
    return float(np.linalg.norm(lab(np.array(matrix) @ linear(one)) - lab(np.array(matrix) @ linear(other))))


@pytest.fixture(params=["light", "dark"])
def page(request) -> str:
    """The page behind figures in JupyterLab's own theme."""
    style = THEMES / f"theme-{request.param}-extension" / "index.css"
    if not style.is_file():
        pytest.skip("JupyterLab is not installed here")
    color = re.search(r"--jp-layout-color0:\s*([^;]+);", style.read_text())[1].strip()
    return {"white": "#ffffff"}.get(color, re.sub(r"^#(.)(.)(.)$", r"#\1\1\2\2\3\3", color))


def test_text_and_series_have_contrast_on_both_pages(page):
    assert contrast(INK, page) >= 4.3  # no one color has more than 4.35 on both
    for color in (BLUE, RED, GREEN, PURPLE, GREY, *SERIES, *ARM_COLORS.values()):
        assert contrast(color, page) >= 3.0, color
    assert contrast(str(TEMPLATE.layout.modebar.activecolor), page) >= 3.0


def test_every_line_of_a_figure_with_six_has_contrast_on_both_pages(page):
    fig = figures.acceptance({name: [0.5, 0.25] for name in (*ARM_COLORS, "replayed", "promised", "by search")})
    colors = [trace.marker.color for trace in fig.data]
    assert len(set(colors)) == 6 and min(contrast(color, page) for color in colors) >= 3.0


def test_the_last_line_color_differs_from_the_others_for_everyone():
    for matrix in (*BLIND.values(), np.eye(3)):
        assert min(apart(SERIES[-1], other, matrix) for other in SERIES[:-1]) > APART


def test_the_figure_is_transparent_and_its_text_is_ink():
    assert TEMPLATE.layout.paper_bgcolor == TEMPLATE.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert TEMPLATE.layout.font.color == TEMPLATE.layout.xaxis.linecolor == TEMPLATE.layout.yaxis.tickcolor == INK
    assert len(figure("title", "x", "y").to_json()) < 1500


@pytest.mark.parametrize("kind", BLIND)
def test_colors_with_a_meaning_differ_for_color_blind_readers(kind):
    for one, other in (*itertools.combinations(ARM_COLORS.values(), 2), (GREEN, ORANGE)):
        assert apart(one, other, BLIND[kind]) > APART, (one, other)


def test_a_red_and_a_green_of_one_lightness_would_not_be():
    assert apart("#c00000", "#546e00", np.eye(3)) > APART > apart("#c00000", "#546e00", BLIND["deuteranopia"])


def test_lines_differ_in_more_than_their_color():
    assert len(set(SYMBOLS)) == len(set(SERIES)) == len(SYMBOLS)


def test_a_caption_is_broken_into_lines_that_fit_and_the_figure_grows_with_it():
    text = "counted " * 40 + "<br>and last"
    fig = captioned(figure("title", "x", "y", height=300), text)
    note = fig.layout.annotations[-1]
    lines = note.text.split("<br>")
    assert " ".join(lines).split() == text.replace("<br>", " ").split()
    assert lines[-1] == "and last" and max(map(len, lines)) <= 108
    grown = fig.layout.height - 300
    assert grown == fig.layout.margin.b - TEMPLATE.layout.margin.b >= 15 * (len(lines) - 1)
    narrow = captioned(figure("title", "x", "y", width=380), text)
    assert max(len(line) for line in narrow.layout.annotations[-1].text.split("<br>")) <= 54


def test_a_bar_is_a_light_fill_with_a_full_outline():
    assert area("#0072B2", 0.5) == {"color": "rgba(0,114,178,0.5)", "line": {"color": "#0072B2", "width": 2}}
