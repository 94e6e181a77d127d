"""The picker of the index: a case is chosen, its state is shown, notebooks are written for it. Callbacks only call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import ipywidgets

from wiring.errors import WiringError

_WIDE = {"description_width": "initial"}


class Picker(ipywidgets.VBox):
    """Choose a profile, see what `draw(profile)` says in Markdown, have `write(profile, measure)` write notebooks.

    `options` maps what is shown to a profile's file, `chosen` is the first one chosen. What a WiringError says is shown
    in place of the answer. Nothing is drawn into the cell itself, so a run without a browser leaves one fixed line.
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
        self._offer(chosen)
        self.case = ipywidgets.Dropdown(
            options=list(self._options.items()), value=chosen, description="Case", style=_WIDE
        )
        self.other = ipywidgets.Text(
            description="or another profile",
            placeholder="path of a YAML file",
            continuous_update=False,
            style=_WIDE,
            layout={"width": "32em"},
        )
        self.refresh = ipywidgets.Button(description="Look again", icon="refresh")
        self.measure = ipywidgets.Dropdown(
            options=[("on the server, now", "live"), ("read what was recorded", "recorded")],
            description="Measure",
            style=_WIDE,
        )
        self.write = ipywidgets.Button(
            description="Write notebooks for this case",
            icon="edit",
            layout={"width": "auto"},
            tooltip="Copies with the parameters set, in the run folder; copies that are there stay as they are",
        )
        self.shown, self.told = ipywidgets.Output(), ipywidgets.Output()
        super().__init__(
            [
                ipywidgets.HBox([self.case, self.other, self.refresh]),
                self.shown,
                ipywidgets.HBox([self.measure, self.write]),
                self.told,
            ]
        )
        self.case.observe(lambda change: self._another(), names="value")
        self.other.observe(lambda change: self._choose(change["new"]), names="value")
        self.refresh.on_click(lambda button: self.look())
        self.write.on_click(lambda button: self._write_now())
        self.look()

    def __repr__(self) -> str:
        return "Picker: run this cell in JupyterLab to choose a case and see its steps"

    def look(self) -> None:
        """Show the chosen case as it is now."""
        self.write.disabled = not _show(self.shown, lambda: self._draw(self.case.value))

    def _write_now(self) -> None:
        _show(self.told, lambda: self._write(self.case.value, self.measure.value))
        self.look()

    def _another(self) -> None:
        self.told.outputs = ()  # it spoke of the case before
        self.look()

    def _choose(self, text: str) -> None:
        if not text.strip():
            self.look()
            return
        path = Path(text.strip()).expanduser().resolve()
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            _show(self.shown, lambda: f"There is no YAML file `{path}`.")
            self.write.disabled = True  # it would write for the case that is no longer shown
            return
        if path not in self._options.values():
            self._offer(path)
            self.case.options = list(self._options.items())
        if self.case.value == path:
            self.look()
        else:
            self.case.value = path

    def _offer(self, path: Path) -> None:
        if path not in self._options.values():
            self._options[path.name if path.name not in self._options else str(path)] = path


def _show(output: ipywidgets.Output, say: Callable[[], str]) -> bool:
    """Put Markdown into an Output; False where it is an error. Not through its context: without a browser that would
    end up in the cell."""
    fine = True
    try:
        text = say()
    except WiringError as error:
        text, fine = f"**{error}**", False
    data = {"text/markdown": text, "text/plain": text}
    output.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
    return fine
