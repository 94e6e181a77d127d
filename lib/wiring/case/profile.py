"""A profile: everything that a case needs to know, read from one YAML file and validated before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from wiring.boundary import Layout
from wiring.errors import WiringError
from wiring.offline.counting import PRESETS
from wiring.rules.sglang import Speculation

REPOSITORY = Path(__file__).resolve().parents[3]
PROFILES = REPOSITORY / "data" / "profiles"

Boundary = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class States(_Strict):
    """Saved training states: a folder in SpecForge's offline format and the boundary of each stored slot."""

    path: Path
    boundaries: tuple[Boundary, ...] = Field(min_length=1)


class SpeculationAsked(_Strict):
    """The speculation arguments as the reader passes them to the server."""

    steps: int = Field(5, ge=1)
    topk: int = Field(1, ge=1)
    draft_tokens: int = Field(8, ge=2)

    def speculation(self) -> Speculation:
        """The same numbers as the engine rooms take them."""
        return Speculation(self.steps, self.topk, self.draft_tokens)


class Engine(_Strict):
    """How the server is started (`url` empty) or where it already runs (`url`, `plain_url`).

    Nothing but HTTP passes between the workbook and a server that runs already, so that it may run on another machine
    or on several: `url` is then the near end of a tunnel.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    extra_flags: tuple[str, ...] = ()
    startup_timeout_s: float = Field(300, gt=0)
    url: str = ""  # a server that runs with the draft as served; empty: start one
    plain_url: str = ""  # a server that runs without a draft; empty: start one
    read_only: bool = True  # running servers serve others too: their prefix caches are not emptied

    @field_validator("url", "plain_url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        if url and not re.match(r"https?://[^/\s]+", url):
            raise ValueError("not the address of a server; write http://HOST:PORT")
        return url


class Benchmark(_Strict):
    """What is measured: prompts x repeats requests per arm, one at a time, temperature 0."""

    prompts: int = Field(8, ge=1)
    new_tokens: int = Field(96, ge=8)
    repeats: int = Field(1, ge=1)
    warmup_tokens: int = Field(16, ge=1)
    arms: Literal["interleaved", "sequential"] = "interleaved"
    cost_steps: tuple[int, int] = (3, 7)  # chains at which the round cost is measured, to predict it at `steps`
    cost_prompts: int = Field(3, ge=1)


class Capture(_Strict):
    """How much is captured in the running server: the first `prompts` prompts, `new_tokens` tokens each."""

    prompts: int = Field(2, ge=1)
    new_tokens: int = Field(32, ge=4)


class AccuracyAsked(_Strict):
    """How much of the saved training states is evaluated, how deep (TTT steps), and by whose counting rule."""

    documents: int = Field(64, ge=2)
    depths: int = Field(5, ge=1)
    preset: str = "specforge"  # a name of wiring.offline.counting

    @field_validator("preset")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"no counting preset of that name; there are {', '.join(PRESETS)}")
        return name


class Expected(_Strict):
    """Bounds that the conclusions are held against. The defaults suit a reader's own pair."""

    trained_accuracy: tuple[Share, Share] = (0.5, 1.0)
    served_accuracy_max: Share = 0.5
    zeroed_accuracy_max: Share = 0.5
    as_served_speedup_max: float = 1.0
    as_served_accept_length_max: float = 2.0
    cured_speedup_min: float = 1.0
    prediction_tolerance: float = 0.2
    faults: tuple[int, ...] | None = None  # kinds of fault that the verdict must name as served; null: any
    faults_cured: tuple[int, ...] = ()  # the same once cured


class Profile(_Strict):
    """One setting of the workbook. Paths in the file are relative to the file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    target: Path
    draft: Path
    prompts: Path
    states: States
    trained_layout: tuple[Boundary, ...] = Field(min_length=1)
    validation_accuracy: Share  # the accuracy at depth 0 that the trainer reported
    speculation: SpeculationAsked = SpeculationAsked()
    engine: Engine = Engine()
    benchmark: Benchmark = Benchmark()
    capture: Capture = Capture()
    accuracy: AccuracyAsked = AccuracyAsked()
    expected: Expected = Expected()

    @model_validator(mode="after")
    def _trained_states_are_saved(self) -> Profile:
        absent = [b for b in self.trained_layout if b not in self.states.boundaries]
        if absent:
            raise ValueError(
                f"trained_layout names boundary {absent[0]}, which is not in states.boundaries {self.states.boundaries}"
            )
        return self

    @property
    def layout(self) -> Layout:
        """The layout that the draft was trained on."""
        return tuple(self.trained_layout)


def profile_path(name_or_path: str | Path) -> Path:
    """The YAML file of a profile given by name ("cpu-tiny") or by path.

    Raises WiringError when there is no such file.
    """
    text = str(name_or_path)
    path = Path(text) if text.endswith((".yaml", ".yml")) else PROFILES / f"{text}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        raise WiringError("no such profile", where=path, expected=f"a YAML file or one of: {known}", found=text)
    return path.resolve()


def load_profile(name_or_path: str | Path) -> Profile:
    """Read and validate a profile; its paths come back absolute.

    Raises WiringError naming the file and the field for anything missing, unknown, mistyped or out of range,
    and for paths that do not exist.
    """
    path, profile = profile_path(name_or_path), read_profile(name_or_path)
    absolute = {name: _existing(path, name, getattr(profile, name)) for name in ("target", "draft", "prompts")}
    states = profile.states.model_copy(update={"path": _existing(path, "states.path", profile.states.path)})
    return profile.model_copy(update={**absolute, "states": states})


def read_profile(name_or_path: str | Path) -> Profile:
    """Read and validate a profile as `load_profile` does, but leave its paths as they are written, there or not.

    For what is known before a file is touched: is this machine one for the profile?
    """
    path = profile_path(name_or_path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise WiringError("not readable as YAML", where=path, found=str(error).replace("\n", " ")) from None
    if not isinstance(raw, dict):
        raise WiringError("a profile is a mapping of fields", where=path, found=type(raw).__name__)
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "profile"
        raise WiringError(
            first["msg"].removeprefix("Value error, "),
            where=f"{path}, field {field}",
            found=repr(first["input"])[:120],
            remedy=f"{len(error.errors())} field(s) to correct; README.md lists them",
        ) from None


def _existing(profile: Path, field: str, value: Path) -> Path:
    path = (profile.parent / value.expanduser()).resolve()
    if not path.exists():
        raise WiringError(
            "no such file or folder", where=f"{profile}, field {field}", expected="an existing path", found=path
        )
    return path
