"""Hook the SGLang server where the target's states pass, outside every CUDA graph.

SGLang loads this through the entry point `wiring_capture`, only if WIRING_CAPTURE_DIR is set. The hooks read the
arguments of a few functions and call them unchanged (SGLang 0.5.23, `srt/plugins/hook_registry.py`):

- `ModelRunner.forward` (`srt/model_executor/model_runner.py`) of the draft, whose `forward_batch.spec_info` holds the
  input of `fc`: always in PREFILL, in DRAFT_EXTEND if no graph is replayed. It is outside the prefill graphs, which are
  on by default on a GPU and replace the draft model's own forward;
- `EAGLEDraftExtendCudaGraphRunner.execute`, which runs DRAFT_EXTEND if a graph is replayed;
- `eagle_sample` (`srt/speculative/eagle_utils.py`), which receives the output of the target's verify forward for all
  nodes of the tree, before the accepted path is moved to the front: VERIFY;
- with WIRING_CAPTURE_DRAFTS=1 `EagleDraftWorker.draft`, which returns the round's tree as the target will verify it.

All of them are tested on a CPU server, except the graph runner, which exists only on a GPU. If a phase is missing
there, `folder_summary` gives the reason.
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
    """Register the hooks in SGLang's own registry. A bad setting ends the capture, not the server."""
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
    """Return the recorder that the environment configures; None for a bad setting, which is written to its folder."""
    folder = Path(os.environ[FOLDER])
    try:
        bounds = [
            int(os.environ.get(name) or default) for name, default in ((ROWS, DEFAULT_ROWS), (BYTES, DEFAULT_BYTES))
        ]
        names = json.loads(os.environ.get(NAMES) or "[]")
        if min(bounds) < 0 or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("bounds are whole numbers from 0, names a JSON list of request ids")
    except ValueError as error:
        settings = ", ".join(f"{name}={os.environ.get(name, '')}" for name in (ROWS, BYTES, NAMES))
        Recorder(folder, 0).fail(f"{settings}: {error}")
        return None
    return Recorder(folder, bounds[0], os.environ.get(PREFIX, ""), names=names, max_bytes=bounds[1])


def _facts(runner: Any) -> dict[str, Any]:
    """Return what decides which forwards can be seen: device, speculative algorithm and CUDA graphs.

    `graphs` is the backend of decode and prefill, "disabled" if there is none; empty if unknown.
    """
    facts = {"device": str(runner.device), "algorithm": str(getattr(runner.spec_algorithm, "name", ""))}
    if facts["device"] == "cpu":
        return facts | {"graphs": {"decode": "disabled", "prefill": "disabled"}}
    try:
        from sglang.srt.runtime_context import get_exec

        config = get_exec().graph.cuda_graph_config
        return facts | {"graphs": {half: str(getattr(config, half).backend) for half in ("decode", "prefill")}}
    except (ImportError, AttributeError, ValueError):
        return facts | {"graphs": {}}  # another release: capture without this fact
