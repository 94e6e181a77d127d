"""Describe an SGLang server and build its command line and environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.model.threads import NARROW
from wiring.server.cpu.launcher import cpu_command, cpu_environment
from wiring.server.ports import HOST

# Room for a few short requests: a CPU server takes its KV cache from the memory of this machine.
_CPU_SIZES = ("--max-total-tokens", "8192", "--max-running-requests", "4", "--mem-fraction-static", "0.3")
# Environment variable -> the plugin that it switches on. A server gets them from its ServerSpec only.
_PLUGIN_OF = {
    "WIRING_SGLANG_CPU": "wiring_cpu",
    "WIRING_CAPTURE_DIR": "wiring_capture",
    "WIRING_EMBEDDING_ID": "wiring_embedding_id",
}
# Unless the environment of this process has other values.
_DEFAULTS = {
    "HF_HUB_OFFLINE": "1",  # target and draft are folders
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",  # a health check must not generate
    # A failing server would otherwise wait 65 s for dumps of its workers before it ends.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",
}


@dataclass(frozen=True)
class ServerSpec:
    """One server to start.

    Attributes:
        target: model folder of the target.
        draft, speculation: the draft's folder and its round parameters; both or neither.
        device: "cpu" starts the CPU kit, "cuda" the installed SGLang.
        dtype: SGLang's --dtype ("float32", "bfloat16", "auto").
        extra_flags: further SGLang flags, which override those derived from the other fields.
        env: environment variables of this server only, such as the switches of the plugins.
        sglang: folder with a patched package `sglang`, put first on this server's PYTHONPATH.

    Raises:
        WiringError: one of `draft` and `speculation` is missing ("draft-without-speculation").
    """

    target: Path
    draft: Path | None = None
    speculation: Speculation | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"
    extra_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sglang: Path | None = None

    def __post_init__(self):
        if (self.draft is None) != (self.speculation is None):
            raise WiringError(
                "a server needs a draft and speculation parameters together, or neither",
                code="draft-without-speculation",
                where="server",
                found=f"draft {self.draft}, speculation {self.speculation}",
            )


def server_command(spec: ServerSpec, port: int) -> list[str]:
    """Return the argument list that starts `spec` on `port`."""
    flags = ["--model-path", str(spec.target), "--host", HOST, "--port", str(port), "--dtype", spec.dtype]
    # An idle server must not spin: another one may need the cores.
    flags += ["--random-seed", "0", "--enable-metrics", "--sleep-on-idle"]
    if spec.draft is not None and spec.speculation is not None:
        # As requested, even where SGLang is known to override the values: the override is part of the result.
        speculation = spec.speculation
        flags += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(spec.draft)]
        flags += ["--speculative-num-steps", str(speculation.steps), "--speculative-eagle-topk", str(speculation.topk)]
        flags += ["--speculative-num-draft-tokens", str(speculation.draft_tokens)]
    if spec.device == "cpu":
        return cpu_command(sys.executable, [*flags, *_CPU_SIZES, *spec.extra_flags])
    return [sys.executable, "-m", "sglang.launch_server", *flags, *spec.extra_flags]


def server_environment(spec: ServerSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: `base` without plugin switches, what the device needs, then `spec.env`."""
    environment = _DEFAULTS | {name: value for name, value in base.items() if name not in _PLUGIN_OF}
    if spec.device == "cpu":
        environment = cpu_environment(environment)
        if _is_narrow(spec.target):
            environment.setdefault("OMP_NUM_THREADS", "1")
    if spec.sglang is not None:
        path = [str(spec.sglang), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    environment.update(spec.env)
    if allowed := environment.get("SGLANG_PLUGINS"):  # a list that restricts the plugins
        wanted = [plugin for switch, plugin in _PLUGIN_OF.items() if environment.get(switch)]
        names = [name.strip() for name in allowed.split(",") if name.strip()]
        environment["SGLANG_PLUGINS"] = ",".join(dict.fromkeys([*names, *wanted]))
    return environment


def _is_narrow(target: Path) -> bool:
    """Return whether one thread serves the target at least as fast as two.

    Threads synchronize after every operation. On a busy machine with two cores a verify round of 61 layers of width 64
    took 40 s with two threads and 1 s with one.
    """
    try:
        width = json.loads((target / "config.json").read_text(encoding="utf-8")).get("hidden_size")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(width, int) and width <= NARROW
