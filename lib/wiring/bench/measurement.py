"""Records of a benchmark run: one per request, with everything needed to recompute every figure."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict

from wiring.server.arguments import ArgumentRow

RATE_RULE = "output tokens / wall seconds of the request at the client, prefill included, batch 1, temperature 0"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trial(_Record):
    """One request of one arm, measured at the client.

    `seconds` covers the whole request, `prefill_s` a request for one token on the same prompt just before it.
    `rounds` are verify forwards, `correct_drafts` the drafts accepted in them (bonus token not counted), and
    `histogram[a]` the rounds that accepted `a` drafts; 0 and empty without speculation.
    """

    arm: str
    prompt: int
    repeat: int
    order: int
    seconds: float
    prefill_s: float
    output_ids: tuple[int, ...]
    rounds: int = 0
    correct_drafts: int = 0
    histogram: tuple[int, ...] = ()


class Machine(_Record):
    """The machine, date and package versions of a measurement."""

    date: str
    processor: str
    cores: int
    python: str
    versions: dict[str, str]

    def __str__(self) -> str:
        return f"{self.date} on {self.processor}, {self.cores} cores, sglang {self.versions.get('sglang', '?')}"


class Measurement(_Record):
    """A benchmark run: the trials of all arms, the machine, and what each server resolved its arguments to."""

    machine: Machine
    rate_rule: str = RATE_RULE
    order: str
    new_tokens: int
    prompt_ids: tuple[tuple[int, ...], ...]
    trials: tuple[Trial, ...]
    arguments: dict[str, tuple[ArgumentRow, ...]] = {}

    def arm(self, name: str) -> tuple[Trial, ...]:
        """Return the trials of one arm, in the order they ran."""
        return tuple(sorted((t for t in self.trials if t.arm == name), key=lambda t: t.order))

    def baseline(self, name: str) -> tuple[Trial, ...]:
        """Return the baseline trials: in a sequential run those of both ends, which cancels a linear drift."""
        return self.arm(name) + (self.arm(f"{name} again") if self.order == "sequential" else ())


def this_machine() -> Machine:
    """Return the machine, the date and the versions of the packages that figures depend on."""
    versions = {}
    for package in ("sglang", "torch", "transformers", "eagle3-wiring-workbook"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        versions=versions,
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
