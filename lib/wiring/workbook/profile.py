"""The profile of a case: one YAML file, validated before anything runs."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from wiring.accuracy.counting import PRESETS
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.layers import Layout

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
    """The speculation arguments as the user passes them to the server."""

    steps: int = Field(default=5, ge=1)
    topk: int = Field(default=1, ge=1)
    draft_tokens: int = Field(default=8, ge=2)

    def speculation(self) -> Speculation:
        """Return the arguments as `wiring.engines` takes them."""
        return Speculation(self.steps, self.topk, self.draft_tokens)


class EngineAsked(_Strict):
    """How the server is started (`url` empty), or the addresses of running ones (`url`, `plain_url`).

    Nothing but HTTP passes between the workbook and a server that runs already, so that it may run on another machine
    or on several: `url` is then the near end of a tunnel.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    extra_flags: tuple[str, ...] = ()
    startup_timeout_s: float = Field(default=300, gt=0)
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
    """Settings of the benchmark: prompts x repeats requests per arm, one at a time, temperature 0."""

    prompts: int = Field(default=8, ge=1)
    new_tokens: int = Field(default=96, ge=8)
    repeats: int = Field(default=1, ge=1)
    warmup_tokens: int = Field(default=16, ge=1)
    arms: Literal["interleaved", "sequential"] = "interleaved"
    cost_steps: tuple[int, int] = (3, 7)  # chains at which the round cost is measured, to predict it at `steps`
    cost_prompts: int = Field(default=3, ge=1)


class CaptureAsked(_Strict):
    """Settings of the capture: the first `prompts` prompts, `new_tokens` tokens each."""

    prompts: int = Field(default=2, ge=1)
    new_tokens: int = Field(default=32, ge=4)


class AccuracyAsked(_Strict):
    """Settings of the evaluation: saved documents, depths (TTT steps), and the counting rule."""

    documents: int = Field(default=64, ge=2)
    depths: int = Field(default=5, ge=1)
    preset: str = "specforge"  # a name of wiring.accuracy.counting

    @field_validator("preset")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"no counting preset of that name; there are {', '.join(PRESETS)}")
        return name


class Expected(_Strict):
    """Bounds of the claims. The defaults suit a user's own pair."""

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
    """A profile. Paths in the file are relative to the file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    target: Path
    draft: Path
    prompts: Path
    states: States
    trained_layout: tuple[Boundary, ...] = Field(min_length=1)
    validation_accuracy: Share  # the accuracy at depth 0 that the trainer reported
    speculation: SpeculationAsked = SpeculationAsked()
    engine: EngineAsked = EngineAsked()
    benchmark: Benchmark = Benchmark()
    capture: CaptureAsked = CaptureAsked()
    accuracy: AccuracyAsked = AccuracyAsked()
    expected: Expected = Expected()

    @field_validator("trained_layout")
    @classmethod
    def _trained_states_are_saved(cls, layout: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if states := info.data.get("states"):  # absent where it is wrong itself, and told
            absent = [b for b in layout if b not in states.boundaries]
            if absent:
                raise ValueError(f"boundary {absent[0]} is not in states.boundaries {states.boundaries}")
        return layout

    @property
    def layout(self) -> Layout:
        """Return the layout that the draft was trained on."""
        return tuple(self.trained_layout)


def profile_path(name_or_path: str | Path) -> Path:
    """Return the YAML file of a profile given by name ("cpu-tiny") or by path.

    Raises WiringError when there is no such file.
    """
    text = str(name_or_path)
    path = Path(text) if text.endswith((".yaml", ".yml")) else PROFILES / f"{text}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        expected = f"a YAML file or one of: {known}"
        if not text:
            raise WiringError("no profile is named", code="no-profile-named", expected=expected)
        raise WiringError("no such profile", code="profile-missing", where=path, expected=expected, found=text)
    return path.resolve()


def load_profile(name_or_path: str | Path) -> Profile:
    """Read and validate a profile; return it with absolute paths.

    Raises WiringError naming the file and the field for anything missing, unknown, mistyped or out of range,
    and for paths that do not exist.
    """
    path, profile = profile_path(name_or_path), read_profile(name_or_path)
    absolute = {name: _existing(path, name, getattr(profile, name)) for name in ("target", "draft", "prompts")}
    states = profile.states.model_copy(update={"path": _existing(path, "states.path", profile.states.path)})
    return profile.model_copy(update={**absolute, "states": states})


def read_profile(name_or_path: str | Path) -> Profile:
    """Read and validate a profile as `load_profile` does, but keep its paths as written, without checking them.

    For what is known before a file is touched: is this machine one for the profile?
    """
    path = profile_path(name_or_path)
    raw = _read_yaml(path)
    if not isinstance(raw, dict):
        raise WiringError(
            "profile is not a mapping of fields", code="profile-not-mapping", where=path, found=type(raw).__name__
        )
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        # A misspelt field makes two errors where it was required: the misspelling tells more.
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        first, field = errors[0], ".".join(str(part) for part in errors[0]["loc"]) or "profile"
        problem, found = first["msg"].removeprefix("Value error, "), repr(first["input"])[:120]
        if first["type"] == "extra_forbidden":
            problem = _unknown(first["loc"])
        elif first["type"] == "missing":
            found = ""
        others = sorted({".".join(map(str, e["loc"])) for e in errors[1:]} - {field})
        also = f"Also wrong: {', '.join(others)}; " if others else ""
        raise WiringError(
            problem,
            code="profile-field",
            where=f"{path}, field {field}",
            found=found,
            remedy=f"{also}data/profiles/gpu-example.yaml lists the fields",
        ) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, in which a key that occurs twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader: makes plain values only
    except UnicodeDecodeError as error:
        raise WiringError(
            "profile is not UTF-8 text",
            code="profile-not-utf8",
            where=path,
            found=str(error),
            remedy="Save it as UTF-8",
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise WiringError(
            "profile is not valid YAML", code="profile-unreadable", where=path, found=f"{error.problem}{at}"
        ) from None
    except yaml.YAMLError as error:
        raise WiringError(
            "profile is not valid YAML", code="profile-unreadable", where=path, found=str(error).replace("\n", " ")
        ) from None


def _unknown(where: tuple[int | str, ...]) -> str:
    """Return the remedy for an unknown field, with the closest known name."""
    model: Any = Profile
    for part in where[:-1]:
        model = model.model_fields[part].annotation
    near = get_close_matches(str(where[-1]), model.model_fields, 1)
    return "unknown field" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(model.model_fields)}")


def _existing(profile: Path, field: str, value: Path) -> Path:
    path = (profile.parent / value.expanduser()).resolve()
    if not path.exists():
        raise WiringError(
            "no such file or folder",
            code="profile-path-missing",
            where=f"{profile}, field {field}",
            expected="an existing path",
            found=path,
        )
    return path
