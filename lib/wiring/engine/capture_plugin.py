"""The recorder inside the SGLang server: writes down what the draft's `fc` is fed. Nothing else is touched.

Loaded by SGLang through the entry point `wiring_capture`, and only where WIRING_CAPTURE_DIR is set. It stands around
a few functions, reads their arguments and calls them unchanged:

- `LlamaModel.forward` of the EAGLE-3 draft, whose `forward_batch.spec_info.hidden_states` is what `fc` is fed;
- `EAGLEDraftExtendCudaGraphRunner.execute` on a GPU, because the model's forward does not run when a graph replays;
- with WIRING_CAPTURE_DRAFTS=1 `EagleDraftWorker.draft`, whose result is the round's tree as the target will verify it,
  with or without CUDA graphs.

What the rows of these forwards are in SGLang 0.5.23 (`srt/speculative/eagle_worker_v2.py`, `eagle_worker_common.py`):

- After a target prefill (mode EXTEND) there is one row per token of the chunk that was prefilled. Row t holds g_t and
  the token after it; beside the last row of a chunk stands the next prompt token, beside the last of all the first
  generated token. Tokens found in the prefix cache have no rows.
- After a verify (mode DRAFT_EXTEND_V2) there are `num_draft_tokens` rows per request, whatever was accepted. The first
  `num_accept_tokens` of them (accepted drafts + 1) are right: their states come from tokens of the final text, and they
  are moved to the front where the drafts form a tree. The rest hold states of rejected drafts beside token id 0. Only
  the right ones are recorded, so the states of a record are all of the final text.
- Draft decode steps (mode DECODE) feed the draft's own last state, not the target's: they are not recorded.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wiring.boundary import Phase
from wiring.engine.capture import DEFAULT_ROWS, DRAFTS, ERROR, FOLDER, PREFIX, ROWS
from wiring.engine.proposals import of_verify_input, write_drafts
from wiring.files.atomic import replacing

FORWARD = "sglang.srt.models.llama_eagle3.LlamaModel.forward"
REPLAY = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute"
DRAFT = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft"
_HEALTH_CHECK = "HEALTH_CHECK"  # how SGLang's own health requests begin


class Recorder:
    """Writes records to `folder` until `rows` rows are written or something goes wrong; it never raises."""

    def __init__(self, folder: Path, rows: int, prefix: str = ""):
        self.folder, self.prefix = folder, prefix
        self._rows_left, self._next = rows, 0

    def record(self, input_ids: Any, positions: Any, batch: Any) -> None:
        """Record one draft forward. `input_ids` [R], `positions` [R]; `batch` is SGLang's ForwardBatch.

        After an error, which goes to capture-error.txt, nothing more is recorded and the server goes on.
        """
        self._attempt(self._record, input_ids, positions, batch)

    def record_drafts(self, batch: Any, drafted: Any) -> None:
        """Record what one round proposed. `batch` is SGLang's ScheduleBatch, `drafted` what `draft` returned for it.

        Ends with the rows: proposals whose states are not recorded explain nothing.
        """
        self._attempt(self._record_drafts, batch, drafted)

    def _attempt(self, record: Callable, *seen: Any) -> None:
        if self._rows_left <= 0:
            return
        try:
            record(*seen)
        except Exception:
            self._rows_left = 0
            self._tell(traceback.format_exc())

    def _record_drafts(self, batch: Any, drafted: Any) -> None:
        verify = drafted[0] if isinstance(drafted, tuple) else drafted  # the tree's topology may stand beside it
        requests = [request.rid for request in batch.reqs]
        if not requests or batch.forward_mode.is_idle() or _is_silent_rank():
            return
        records = of_verify_input(requests, verify, self._next)
        kept = [record for record in records if self._is_asked_for(record.request)]
        if kept:
            write_drafts(self.folder, kept)
            self._next += 1

    def _is_asked_for(self, request: str) -> bool:
        return request.startswith(self.prefix) and not request.startswith(_HEALTH_CHECK)

    def _record(self, input_ids: Any, positions: Any, batch: Any) -> None:
        phase = _phase(batch.forward_mode)
        requests = getattr(batch, "rids", None)
        states = getattr(batch.spec_info, "hidden_states", None)  # [R, n*H]
        if phase is None or not requests or states is None or _is_silent_rank():
            return  # a draft step, or the trial runs that precede CUDA graphs and have no requests
        lengths = _lengths(batch, len(requests))
        if sum(lengths) != len(states) or len(input_ids) != len(states):
            raise ValueError(f"{len(input_ids)} tokens and {len(states)} states for requests of {lengths} rows")
        right = _right_rows(batch.spec_info, lengths) if phase is Phase.VERIFY else lengths
        start = 0
        for request, length, kept in zip(requests, lengths, right, strict=True):
            kept = min(kept, self._rows_left)
            if kept > 0 and self._is_asked_for(request):
                rows = slice(start, start + kept)
                self._write(phase, request, input_ids[rows], positions[rows], states[rows])
            start += length

    def _write(self, phase: Phase, request: str, tokens: Any, positions: Any, states: Any) -> None:
        import torch
        from safetensors.torch import save_file

        tensors = {
            "token_ids": tokens.detach().to("cpu", torch.int64, copy=True).contiguous(),
            "positions": positions.detach().to("cpu", torch.int64, copy=True).contiguous(),
            "states": states.detach().to("cpu", copy=True).contiguous(),
        }
        note = {"phase": phase.value, "request": request, "index": str(self._next)}
        with replacing(self.folder / f"record-{self._next:06d}-{os.getpid()}.safetensors") as temporary:
            save_file(tensors, temporary, metadata=note)
        self._next += 1
        self._rows_left -= len(tensors["states"])

    def _tell(self, text: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ERROR).write_text(text, encoding="utf-8")
        except OSError:
            print(text, file=sys.stderr)  # SGLang's log is all that is left


def _phase(mode: Any) -> Phase | None:
    """Where the states that this draft forward is fed were made; None for a draft's own step."""
    if mode.is_draft_extend_v2():
        return Phase.VERIFY
    return Phase.PREFILL if mode.is_extend() else None


def _lengths(batch: Any, requests: int) -> list[int]:
    """Rows per request."""
    known = batch.extend_seq_lens_cpu
    if known is not None:
        return [int(length) for length in known][:requests]
    return [int(batch.spec_info.num_tokens_per_req)] * requests


def _right_rows(spec_info: Any, lengths: list[int]) -> list[int]:
    accepted = spec_info.num_accept_tokens
    if accepted is None:
        raise ValueError("the draft-extend input does not say how many tokens were accepted")
    return [min(int(count), length) for count, length in zip(accepted.tolist(), lengths, strict=False)]


def _is_silent_rank() -> bool:
    """True on all ranks but one of a server with several (they hold the same states), and inside a graph's capture."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return torch.distributed.is_initialized() and torch.distributed.get_rank() != 0


def register() -> None:
    """Hook the draft's forward by SGLang's own hook registry. A bad setting ends the capture, not the server."""
    recorder = Recorder(Path(os.environ[FOLDER]), 0, os.environ.get(PREFIX, ""))
    rows = os.environ.get(ROWS) or str(DEFAULT_ROWS)
    if not rows.isdecimal():
        recorder._tell(f"{ROWS} is not a number of rows: {rows!r}")
        return
    recorder = Recorder(recorder.folder, int(rows), recorder.prefix)

    import torch

    def forward(original: Callable, model: Any, input_ids: Any, positions: Any, forward_batch: Any, *rest: Any, **more):
        if not torch.compiler.is_compiling():  # a graph under construction must not learn of us
            recorder.record(input_ids, positions, forward_batch)
        return original(model, input_ids, positions, forward_batch, *rest, **more)

    def replay(original: Callable, runner: Any, forward_batch: Any, *rest: Any, **more):
        recorder.record(forward_batch.input_ids, forward_batch.positions, forward_batch)
        return original(runner, forward_batch, *rest, **more)

    def draft(original: Callable, worker: Any, batch: Any, *rest: Any, **more):
        drafted = original(worker, batch, *rest, **more)
        recorder.record_drafts(batch, drafted)
        return drafted

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FORWARD, forward, HookType.AROUND)
    if os.environ.get(DRAFTS) == "1":
        HookRegistry.register(DRAFT, draft, HookType.AROUND)
    if os.environ.get("WIRING_SGLANG_CPU") != "1":
        HookRegistry.register(REPLAY, replay, HookType.AROUND)
