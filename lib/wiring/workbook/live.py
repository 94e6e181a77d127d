"""Start, attach to and measure servers for a case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wiring.bench.benchmark import Arm, BenchmarkServer, measure
from wiring.bench.measurement import Machine, Measurement, this_machine
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server.arguments import ArgumentRow, asked_vs_resolved
from wiring.server.launch import RunningServer, attach, check_attached, start
from wiring.server.preflight import check_gpus
from wiring.server.server_spec import ServerSpec
from wiring.workbook.artefacts import Throughput
from wiring.workbook.case import Case
from wiring.workbook.profile import Profile

Progress = Callable[[str], None]
PLAIN, AS_SERVED, CURED = "plain", "as served", "cured"
API_KEY = "SGLANG_API_KEY"  # the environment variable with the key of attached servers; a profile holds no secrets


def read_prompts(path: Path, count: int, *, asked_by: str = "benchmark.prompts in the profile") -> list[list[int]]:
    """Return the first `count` prompts of a JSON list of {"input_ids": [...]}; `asked_by` names what set the count.

    Raises WiringError when the file cannot be read, is of another shape or holds fewer.
    """
    shape = '[{"input_ids": [1, 2, ...]}, ...]'
    try:
        text = path.read_text(encoding="utf-8")
        prompts = [[int(i) for i in entry["input_ids"]] for entry in json.loads(text)]
    except OSError as error:
        raise WiringError(
            "prompts cannot be read",
            code="prompts-unreadable",
            where=path,
            expected="a JSON file",
            found=error.strerror,
            remedy=f"Name a file that holds {shape}",
        ) from None
    except UnicodeDecodeError:
        raise WiringError(
            "not a list of prompts", code="prompts-not-a-list", where=path, expected=shape, found="no UTF-8 text"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        found = repr(error) if text.strip() else "an empty file"
        raise WiringError(
            "not a list of prompts", code="prompts-not-a-list", where=path, expected=shape, found=found
        ) from None
    if len(prompts) < count:
        remedy = f"Add prompts or lower {asked_by}" if prompts else "Add prompts"
        raise WiringError(
            "too few prompts",
            code="too-few-prompts",
            where=path,
            expected=f"{count} or more",
            found=len(prompts),
            remedy=remedy,
        )
    return prompts[:count]


def server_spec(
    profile: Profile,
    *,
    draft: Path | None = None,
    speculation: Speculation | None = None,
    env: Mapping[str, str] | None = None,
    sglang: Path | None = None,
) -> ServerSpec:
    """Return the server spec of this profile: plain without a draft, else with its speculation or `speculation`.

    `sglang`: a folder with a copy of the package to be served instead of the installed one.
    """
    if draft is not None and speculation is None:
        speculation = profile.speculation.speculation()
    return ServerSpec(
        target=profile.target,
        draft=draft,
        speculation=speculation,
        device=profile.engine.device,
        dtype=profile.engine.dtype,
        extra_flags=profile.engine.extra_flags,
        env=dict(env or {}),
        sglang=sglang,
    )


def start_server(case: Case, spec: ServerSpec, name: str, progress: Progress | None = None, *, wait: bool = True):
    """Return a context manager that starts `spec` with its log at logs/<name>.log of the run and yields the server.

    Without `wait` it is yielded while it starts.
    """
    log = case.logs() / f"{name.replace(' ', '_')}.log"
    if progress:
        progress(f"starting the server of arm {name!r} (usually 20 to 60 s on the CPU; log: {log})")
    return start(spec, log, timeout_s=case.profile.engine.startup_timeout_s, progress=progress, wait=wait)


def attach_server(url: str, read_only: bool = True) -> RunningServer:
    """Attach to a running server, with the API key in SGLANG_API_KEY."""
    return attach(url, api_key=os.environ.get(API_KEY, ""), read_only=read_only)


def check_ready(profile: Profile, where: Path) -> None:
    """Check that this machine has the GPUs of a profile and that its running servers can be used; `where` is its file.

    The run starts servers of its own even where two run already, so a profile for CUDA needs its GPUs here.
    Raises WiringError as `check_gpus` and `check_attached`.
    """
    engine = profile.engine
    if engine.device == "cuda":
        check_gpus(engine.extra_flags, f"{where}, field engine.device")
    for field, drafts in (("url", True), ("plain_url", False)):
        if url := getattr(engine, field):
            check_attached(url, f"{where}, field engine.{field}", drafts=drafts, api_key=os.environ.get(API_KEY, ""))


def plain_arm(case: Case, step: str, progress: Progress | None = None) -> Arm:
    """Return the baseline arm: the target without a draft."""
    url = case.profile.engine.plain_url
    return Arm(PLAIN, _opener(case, url, server_spec(case.profile), f"{step}-{PLAIN}", progress))


def draft_arm(
    case: Case,
    step: str,
    name: str = AS_SERVED,
    *,
    draft: Path | None = None,
    speculation: Speculation | None = None,
    env: Mapping[str, str] | None = None,
    sglang: Path | None = None,
    progress: Progress | None = None,
) -> Arm:
    """Return the arm of EAGLE-3 with the profile's draft or `draft`, and the profile's speculation or another.

    `sglang`: a folder with a patched copy of the package, served instead of the installed one.
    """
    url = case.profile.engine.url if draft is None and speculation is None else ""
    spec = server_spec(case.profile, draft=draft or case.profile.draft, speculation=speculation, env=env, sglang=sglang)
    return Arm(name, _opener(case, url, spec, f"{step}-{name}", progress))


def measure_arms(
    case: Case, arms: Sequence[Arm], *, prompts: int | None = None, closing: int = 0, progress: Progress = print
) -> Measurement:
    """Benchmark the arms with the profile's settings; the first is the baseline. Resolved arguments are recorded.

    `prompts` overrides the profile's number of prompts; the baseline closes the run on `closing` prompts.
    """
    bench, asked = case.profile.benchmark, case.profile.speculation.speculation()
    ids = read_prompts(case.profile.prompts, prompts or bench.prompts)
    arguments: dict[str, tuple[ArgumentRow, ...]] = {}

    def watch(arm: str, server: BenchmarkServer) -> None:
        if arm != PLAIN:
            arguments[arm] = asked_vs_resolved(asked, server.client.server_info())

    trials = measure(
        arms,
        ids,
        new_tokens=bench.new_tokens,
        repeats=bench.repeats,
        warmup_tokens=bench.warmup_tokens,
        interleaved=bench.arms == "interleaved",
        closing_prompts=closing,
        progress=progress,
        watch=watch,
    )
    return Measurement(
        machine=this_machine(),
        order=bench.arms,
        new_tokens=bench.new_tokens,
        prompt_ids=tuple(map(tuple, ids)),
        trials=trials,
        arguments=arguments,
    )


def machine_of(case: Case) -> Machine:
    """Return the machine of the measurement: this one if the case is live, else that of the recorded run."""
    return this_machine() if case.live else case.read_recorded("01_throughput", Throughput).machine


def _opener(case: Case, url: str, spec: ServerSpec, log: str, progress: Progress | None):
    if url:
        return lambda: attach_server(url, case.profile.engine.read_only)
    wait = spec.device != "cpu"  # on a GPU SGLang takes a share of the memory that it finds free: one after the other
    return lambda: start_server(case, spec, log, progress, wait=wait)
