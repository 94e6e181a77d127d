"""The capture's hooks in the SGLang server: where the target's states pass by, outside every CUDA graph.

Loaded by SGLang through the entry point `wiring_capture`, and only where WIRING_CAPTURE_DIR is set. It stands around
a few functions, reads their arguments and calls them unchanged (SGLang 0.5.23, `srt/plugins/hook_registry.py`):

- `ModelRunner.forward` (`srt/model_executor/model_runner.py`) of the draft, whose `forward_batch.spec_info` holds what
  `fc` is fed: in PREFILL always, in DRAFT_EXTEND where no graph is replayed. It stands outside the prefill graphs,
  which are on by default on a GPU and put a replay in the place of the draft model's own forward;
- `EAGLEDraftExtendCudaGraphRunner.execute`, which DRAFT_EXTEND goes through where a graph is replayed;
- `eagle_sample` (`srt/speculative/eagle_utils.py`), which is handed what the target's verify forward put out, for all
  nodes of the tree and before the accepted path is moved to the front: VERIFY;
- with WIRING_CAPTURE_DRAFTS=1 `EagleDraftWorker.draft`, whose result is the round's tree as the target will verify it.

All of them were seen to work on a CPU server, except the graph runner, which a CPU server does not have. On a GPU they
are read from the source only: should a phase be missing there, `capture_summary` says so and why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wiring.capture.recorder import Recorder
from wiring.capture.records import BYTES, DEFAULT_BYTES, DEFAULT_ROWS, DRAFTS, FOLDER, NAMES, PREFIX, ROWS

FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
REPLAY = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute"
SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"
DRAFT = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft"


def register() -> None:
    """Hook the forwards by SGLang's own hook registry. A bad setting ends the capture, not the server."""
    recorder = _recorder()
    if recorder is None:
        return

    def forward(original: Callable, runner: Any, forward_batch: Any, *rest: Any, **more):
        recorder.see(getattr(forward_batch, "rids", None), lambda: _facts(runner))
        if runner.is_draft_worker:
            recorder.record(forward_batch)
        return original(runner, forward_batch, *rest, **more)

    def replay(original: Callable, runner: Any, forward_batch: Any, *rest: Any, **more):
        recorder.record(forward_batch)
        return original(runner, forward_batch, *rest, **more)

    def sample(original: Callable, verify_input: Any, batch: Any, logits_output: Any, *rest: Any, **more):
        sampled = original(verify_input, batch, logits_output, *rest, **more)
        recorder.record_verified(verify_input, batch, logits_output, sampled)
        return sampled

    def draft(original: Callable, worker: Any, batch: Any, *rest: Any, **more):
        drafted = original(worker, batch, *rest, **more)
        recorder.record_drafts(batch, drafted)
        return drafted

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FORWARD, forward, HookType.AROUND)
    HookRegistry.register(SAMPLE, sample, HookType.AROUND)
    if os.environ.get(DRAFTS) == "1":
        HookRegistry.register(DRAFT, draft, HookType.AROUND)
    if os.environ.get("WIRING_SGLANG_CPU") != "1":
        HookRegistry.register(REPLAY, replay, HookType.AROUND)


def _recorder() -> Recorder | None:
    """The recorder that the environment asks for; None for a setting that says nothing, which its folder then tells."""
    folder, prefix = Path(os.environ[FOLDER]), os.environ.get(PREFIX, "")
    bounds = {ROWS: DEFAULT_ROWS, BYTES: DEFAULT_BYTES}
    for name in bounds:
        asked = os.environ.get(name) or str(bounds[name])
        if not asked.isdecimal():
            Recorder(folder, 0).fail(f"{name} is not a whole number: {asked!r}")
            return None
        bounds[name] = int(asked)
    try:
        names = json.loads(os.environ.get(NAMES) or "[]")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        Recorder(folder, 0).fail(f"{NAMES} is not a JSON list of request ids: {os.environ[NAMES]!r}")
        return None
    return Recorder(folder, bounds[ROWS], prefix, names=names, max_bytes=bounds[BYTES])


def _facts(runner: Any) -> dict[str, Any]:
    """What decides which forwards can be seen: device, speculative algorithm, and the CUDA graphs of both halves.

    `graphs` gives the backend of decode and prefill by name, "disabled" where there is none; empty if not known.
    """
    facts = {"device": str(runner.device), "algorithm": str(getattr(runner.spec_algorithm, "name", ""))}
    if facts["device"] == "cpu":
        return facts | {"graphs": {"decode": "disabled", "prefill": "disabled"}}
    try:
        from sglang.srt.runtime_context import get_exec

        config = get_exec().graph.cuda_graph_config
        return facts | {"graphs": {half: str(getattr(config, half).backend) for half in ("decode", "prefill")}}
    except (ImportError, AttributeError, ValueError):
        return facts | {"graphs": {}}  # another release: the capture goes on without
