"""The widget of the index notebook: choose a case, see its steps, write notebooks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets

from wiring.errors import WiringError
from wiring.workbook.case_index import cases, markdown, overview
from wiring.workbook.notebook_copies import copy_notebooks
from wiring.workbook.profile import profile_path
from wiring.workbook.workbook_run import RUNS, plan_workbook

_WIDE = {"description_width": "initial"}


class Picker(ipywidgets.VBox):
    """Choose a profile, show the Markdown of `draw(profile)`, and write notebooks with `write(profile, measure)`.

    `options` maps labels to profile files; `chosen` is selected first. A WiringError is shown instead of the result.
    The cell output itself is one fixed line, so executing the notebook without a browser gives the same bytes.
    """

    def __init__(
        self,
        options: Mapping[str, Path],
        chosen: Path,
        draw: Callable[[Path], str],
        write: Callable[[Path, str], str],
    ):
        self._draw, self._write = draw, write
        self._options = dict(options)
        self._add_option(chosen)
        choices = list(self._options.items())
        self.case: Any = ipywidgets.Dropdown(options=choices, value=chosen, description="Case", style=_WIDE)
        self.other = ipywidgets.Text(
            description="or another profile",
            placeholder="path of a YAML file",
            continuous_update=False,
            style=_WIDE,
            layout={"width": "32em"},
        )
        self.refresh = ipywidgets.Button(description="Refresh", icon="refresh")
        measures = [("live, on the server", "live"), ("recorded", "recorded")]
        self.measure: Any = ipywidgets.Dropdown(options=measures, description="Measure", style=_WIDE)
        tooltip = "Copies with the parameters set, in the run folder; existing copies are kept"
        label, auto = "Write notebooks for this case", {"width": "auto"}
        self.write = ipywidgets.Button(description=label, icon="edit", layout=auto, tooltip=tooltip)
        self.steps, self.result = ipywidgets.Output(), ipywidgets.Output()
        first = ipywidgets.HBox([self.case, self.other, self.refresh])
        super().__init__([first, self.steps, ipywidgets.HBox([self.measure, self.write]), self.result])
        self.case.observe(lambda change: self._case_changed(), names="value")
        self.other.observe(lambda change: self._choose(change["new"]), names="value")
        self.refresh.on_click(lambda button: self.update())
        self.write.on_click(lambda button: self._write_notebooks())
        self.update()

    def __repr__(self) -> str:
        return "Picker: run this cell in JupyterLab to choose a case and see its steps"

    def update(self) -> None:
        """Show the present state of the chosen case."""
        self.write.disabled = not _show(self.steps, lambda: self._draw(self.case.value))

    def _write_notebooks(self) -> None:
        _show(self.result, lambda: self._write(self.case.value, self.measure.value))
        self.update()

    def _case_changed(self) -> None:
        self.result.outputs = ()  # it was about the previous case
        self.update()

    def _choose(self, text: str) -> None:
        if not text.strip():
            self.update()
            return
        path = Path(text.strip()).expanduser().resolve()
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            _show(self.steps, lambda: f"There is no YAML file `{path}`.")
            self.write.disabled = True  # the selected case is not the one named in the text field
            return
        if path not in self._options.values():
            self._add_option(path)
            self.case.options = list(self._options.items())
        if self.case.value == path:
            self.update()
        else:
            self.case.value = path

    def _add_option(self, path: Path) -> None:
        if path not in self._options.values():
            self._options[path.name if path.name not in self._options else str(path)] = path


def _show(output: ipywidgets.Output, text_of: Callable[[], str]) -> bool:
    """Show Markdown in an Output, and return whether there was no error.

    Sets the output as state: captured by its context manager, it would land in the cell without a browser.
    """
    try:
        text, ok = text_of(), True
    except WiringError as error:
        text, ok = f"**{error}**", False
    data = {"text/markdown": text, "text/plain": text}
    output.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
    return ok


def open_index(profile: str = "cpu-tiny", runs: str = "") -> Picker:
    """Return the picker of the index notebook with `profile` (a name in data/profiles or a file) chosen.

    `runs` is the folder of the run folders ("" = runs/). Raises WiringError for a missing profile.
    """
    root = Path(runs).expanduser().resolve() if runs else RUNS

    def write(chosen: Path, measure: Any) -> str:
        copies = copy_notebooks(plan_workbook(chosen, root), measure)
        written, kept = len(copies.written), ", ".join(copies.kept)
        existing = (
            f" These exist already and keep their parameters: {kept}. Delete one to write it again." if kept else ""
        )
        return f"{written} of {written + len(copies.kept)} notebooks written to `{copies.folder}`.{existing}"

    return Picker(cases(root), profile_path(profile), lambda chosen: markdown(overview(chosen, root)), write)
