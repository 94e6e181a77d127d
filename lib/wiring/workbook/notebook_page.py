"""Convert an executed notebook to HTML that works offline.

nbconvert's own pages load MathJax, require.js and widgets from the network, and show no plotly figure. Here each
plotly output becomes HTML over one plotly.js of the page, formulas become MathML, a panel of widgets becomes a
sentence, and progress is folded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError
from wiring.workbook import notebook_files as files_notebook
from wiring.workbook.page import figure_html

if TYPE_CHECKING:
    from nbformat import NotebookNode

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
PANEL = (
    '<p class="quiet panel">Here is a panel to try things with. It needs a running notebook and is not shown on this '
    "page: <code>make lab</code> opens the notebook.</p>"
)
# What ipywidgets writes for readers without widgets, and all that is left in a notebook saved without their state.
_WIDGET_TEXT = re.compile(r"(?:VBox|HBox|Box|GridBox|Tab|Accordion)\(")
_BAR_TEXT = re.compile(r"\d+%\|[^|]*\| \S+/\S+ \[|\d+it \[")  # a progress bar of tqdm, which draws it as a widget
# Code first, so that a dollar sign in it is left alone; then display and inline formulas.
_MATH = re.compile(r"```.*?```|`[^`\n]*`|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)", re.S)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def read_notebook(path: Path) -> NotebookNode:
    """Return the executed notebook at `path`. Raises WiringError where it is missing or cannot be read."""
    nbformat = files_notebook.nbformat()
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise WiringError(
            "executed notebook cannot be read",
            code="executed-notebook-unreadable",
            where=path,
            found=str(error).splitlines()[0],
        ) from error


def notebook_html(path: Path) -> str:
    """Return the body of one executed notebook as HTML that needs only plotly.js on the page."""
    notebook = read_notebook(path)
    from nbconvert import HTMLExporter

    notebook.metadata.pop("widgets", None)
    formulas: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _take_math(cell.source, formulas)
        elif cell.cell_type == "code":
            cell.outputs = _offline(cell.outputs, f"{path.stem}-{cell.get('id', cell.execution_count)}")
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    return re.sub(r"FORMULA(\d+)END", lambda match: formulas[int(match[1])], body)


def figures_in(path: Path) -> dict[str, dict]:
    """Return the plotly figures of an executed notebook by cell id; the second figure of a cell gets -2, and so on."""
    found: dict[str, dict] = {}
    for cell in read_notebook(path).cells:
        drawn = [output.data[PLOTLY] for output in cell.get("outputs", ()) if PLOTLY in output.get("data", {})]
        for number, one in enumerate(drawn, start=1):
            found[f"{cell.id}-{number}" if number > 1 else cell.id] = one
    return found


def _offline(outputs: Sequence[NotebookNode], name: str) -> list[NotebookNode]:
    """Return outputs for the page: plotly as HTML, a widget panel as a sentence, stderr folded."""
    told = "".join(output.text for output in outputs if output.get("name") == "stderr")
    shown = []
    for place, output in enumerate(outputs):
        data: dict[str, Any] = output.get("data", {})
        text = data.get("text/plain", "")
        bare = set(data) == {"text/plain"}
        if output.get("name") == "stderr" or ((WIDGET in data or bare) and _BAR_TEXT.search(text)):
            continue
        if WIDGET in data or (bare and _WIDGET_TEXT.match(text)):
            data = {"text/html": PANEL}
            output = files_notebook.nbformat().v4.new_output("display_data", data)
        if PLOTLY in data:
            data["text/html"] = figure_html(data[PLOTLY], f"{name}-{place}")
        shown.append(output)
    if told:
        text = escape(_ESCAPES.sub("", told).strip("\n"))
        lines = text.count("\n") + 1
        folded = f"<details><summary>progress and warnings ({lines} lines)</summary><pre>{text}</pre></details>"
        nbformat = files_notebook.nbformat()
        shown.insert(0, nbformat.v4.new_output("display_data", {"text/html": folded}))
    return shown


def _take_math(source: str, formulas: list[str]) -> str:
    """Replace each formula by a word, so that Markdown does not read its stars and underscores; keep its MathML."""

    def keep(match: re.Match) -> str:
        formula = match["display"] or match["inline"]
        if formula is None:
            return match[0]
        formulas.append(_mathml(formula, "block" if match["display"] else "inline"))
        return f"FORMULA{len(formulas) - 1}END"

    return _MATH.sub(keep, source)


def _mathml(formula: str, display: str) -> str:
    import latex2mathml.converter

    try:
        return latex2mathml.converter.convert(formula.strip(), display=display)
    except Exception:  # whatever a formula trips over, its source is readable
        return f"<code>{escape(formula)}</code>"
