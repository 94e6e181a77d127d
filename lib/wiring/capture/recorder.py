"""Record states inside the SGLang server: choose the right rows of a forward and write their files.

The hooks of `capture_plugin` pass SGLang's own objects, which are only read. The recorder never raises: an error is
written to capture-error.txt and ends the capture, and the server continues.

Rows in SGLang 0.5.23 (`srt/speculative/eagle_worker_v2.py`, `eagle_worker_common.py`, `eagle_utils.py`):

- After a target prefill (mode EXTEND) the draft's forward has one row per token of the prefilled chunk. Row t holds g_t
  and the next token: for the last row of a chunk the next prompt token, for the last row of all the first generated
  token. Tokens found in the prefix cache have no rows.
- The target's verify forward has one row per node of each request's tree, `draft_token_num` of them. `eagle_sample`
  then chooses: `accept_index` lists the accepted nodes in the order of the text, `predict` the token after each node.
- The draft's forward after a verify (mode DRAFT_EXTEND_V2) has `num_draft_tokens` rows per request, whatever was
  accepted. The first `num_accept_tokens` of them (accepted drafts + 1) belong to the final text; SGLang moves them to
  the front if the drafts form a tree. The others hold states of rejected drafts and are not recorded.
- Draft decode steps (mode DECODE) feed the draft's own last state, not the target's: they are not recorded.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wiring.capture.proposals import records_of_round, write_drafts
from wiring.capture.records import DEFAULT_BYTES, ERROR, NOTE
from wiring.checkpoints.atomic import replacing, write_json
from wiring.layers import Phase

_HEALTH_CHECK = "HEALTH_CHECK"  # prefix of the ids of SGLang's own health requests
_HEADER_BYTES = 768  # upper bound for a record's file without its tensors and the request's id
_INDEX_BYTES = 16  # token id and position of a row


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Make a method of the recorder end the capture instead of raising, and skip it after the end."""

    @functools.wraps(method)
    def call(self: Recorder, *seen: Any) -> None:
        if self._ended:
            return
        try:
            method(self, *seen)
        except Exception:
            self.fail(traceback.format_exc())

    return call


class Recorder:
    """Writes records to `folder` until a bound is reached or an error occurs; it never raises.

    `rows` bounds the tokens, `max_bytes` the files; `prefix` and `names` choose the requests (see
    `records.capture_environment`).
    """

    def __init__(
        self, folder: Path, rows: int, prefix: str = "", *, names: Sequence[str] = (), max_bytes: int = DEFAULT_BYTES
    ):
        self.folder, self.prefix, self.names = folder, prefix, tuple(names)
        self._bounds = {"rows": rows, "bytes": max_bytes}
        # Output of the target and input of the draft are the same tokens, and each has the whole bound.
        self._rows_left = {Phase.VERIFY: rows, Phase.DRAFT_EXTEND: rows}
        self._bytes_left, self._next, self._ended = max_bytes, 0, False
        self._note: dict[str, Any] | None = None

    @_guarded
    def see(self, requests: Sequence[str] | None, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Note once that the server ran the forward of a real request, with `facts` about how the server runs."""
        if self._note is None and requests and not all(r.startswith(_HEALTH_CHECK) for r in requests):
            if not _is_silent_rank():
                self._write_note(**facts())

    @_guarded
    def record(self, batch: Any) -> None:
        """Record the input of `fc` in one forward of the draft. `batch` is SGLang's ForwardBatch."""
        phase = Phase.DRAFT_EXTEND if batch.forward_mode.is_draft_extend_v2() else Phase.PREFILL
        if phase is Phase.PREFILL and not batch.forward_mode.is_extend():
            return  # a draft step
        requests = getattr(batch, "rids", None)
        states = getattr(batch.spec_info, "hidden_states", None)  # [R, n*H]
        if not requests or states is None or not any(map(self._is_chosen, requests)) or _is_silent_rank():
            return  # trial runs before CUDA graphs have no requests
        spec, lengths = batch.spec_info, batch.extend_seq_lens_cpu
        lengths = [spec.num_tokens_per_req] * len(requests) if lengths is None else lengths
        lengths = [int(length) for length in lengths][: len(requests)]
        if not sum(lengths) == len(states) == len(batch.input_ids):
            raise ValueError(f"{len(batch.input_ids)} tokens and {len(states)} states for requests of {lengths} rows")
        right = lengths
        if phase is Phase.DRAFT_EXTEND:
            right = [min(int(n), length) for n, length in zip(spec.num_accept_tokens.tolist(), lengths, strict=False)]
        start = 0
        for request, length, kept in zip(requests, lengths, right, strict=True):
            rows = slice(start, start + kept)
            self._keep(phase, request, batch.input_ids[rows], batch.positions[rows], states[rows])
            start += length

    @_guarded
    def record_verified(self, verify: Any, batch: Any, output: Any, sampled: Any) -> None:
        """Record the output of the target's verify forward for the accepted nodes.

        `verify` is SGLang's EagleVerifyInput, `batch` its ScheduleBatch, `output` the LogitsProcessorOutput of the
        target's forward, and `sampled` the result of `eagle_sample`: (predict, accept_lens, accept_index).
        """
        requests, states = [request.rid for request in batch.reqs], output.hidden_states  # [requests * nodes, n*H]
        if states is None or batch.forward_mode.is_idle() or not any(map(self._is_chosen, requests)):
            return
        if _is_silent_rank():
            return
        predict, counts, accepted = sampled  # [requests * nodes], [requests], [requests, depth]: node indices
        if len(states) != len(requests) * int(verify.draft_token_num):
            raise ValueError(f"{len(states)} states for {len(requests)} trees of {verify.draft_token_num} nodes")
        for request, count, path in zip(requests, counts.tolist(), accepted.view(len(requests), -1), strict=True):
            nodes = path[:count].long()
            self._keep(Phase.VERIFY, request, predict[nodes], verify.positions[nodes], states[nodes])

    @_guarded
    def record_drafts(self, batch: Any, drafted: Any) -> None:
        """Record the proposals of one round. `batch` is SGLang's ScheduleBatch, `drafted` the result of `draft` for it.

        Recording ends with the rows, because proposals without their states explain nothing.
        """
        verify = drafted[0] if isinstance(drafted, tuple) else drafted  # (verify input, tree topology)
        requests = [request.rid for request in batch.reqs]
        if not requests or batch.forward_mode.is_idle() or _is_silent_rank():
            return
        records = [r for r in records_of_round(requests, verify, self._next) if self._is_chosen(r.request)]
        if records and self._room(Phase.DRAFT_EXTEND) > 0:
            write_drafts(self.folder, records)
            self._next += 1

    def fail(self, text: str) -> None:
        """End the capture and write the reason to capture-error.txt."""
        self._ended = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ERROR).write_text(text, encoding="utf-8")
        except OSError:
            print(text, file=sys.stderr)  # SGLang's log

    def _is_chosen(self, request: str) -> bool:
        named = not self.names or request in self.names
        return named and request.startswith(self.prefix) and not request.startswith(_HEALTH_CHECK)

    def _room(self, phase: Phase) -> int:
        """Return how many more rows the bound allows for this phase; a prefill's rows count for both streams."""
        return min(self._rows_left.values()) if phase is Phase.PREFILL else self._rows_left[phase]

    def _keep(self, phase: Phase, request: str, tokens: Any, positions: Any, states: Any) -> None:
        """Write the rows of one request, [M] or [M, n*H], as far as the bounds allow."""
        if not self._is_chosen(request):
            return
        width = states.shape[1] * states.element_size() + _INDEX_BYTES
        overhead = _HEADER_BYTES + len(request.encode())
        fit = {"rows": self._room(phase), "bytes": max(0, self._bytes_left - overhead) // width}
        kept = min(len(states), *fit.values())
        if kept > 0:
            self._write(phase, request, tokens[:kept], positions[:kept], states[:kept])
            self._bytes_left -= kept * width + overhead
            for stream in self._rows_left:
                self._rows_left[stream] -= kept if phase in (stream, Phase.PREFILL) else 0
        if kept < len(states):
            bound = min(fit, key=fit.__getitem__)
            self._write_note(truncated=bound)
            # After the bound on rows, the draft's half of this round follows.
            self._ended = bound == "bytes" or not any(self._rows_left.values())

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

    def _write_note(self, **entries: Any) -> None:
        if self._note is None:
            chosen = {"prefix": self.prefix, "names": list(self.names)}
            self._note = {**self._bounds, **chosen, "truncated": "", "device": "", "algorithm": "", "graphs": {}}
        if entries.get("truncated") and self._note["truncated"]:
            return
        self._note |= entries
        write_json(self.folder / NOTE, self._note)


def _is_silent_rank() -> bool:
    """Return whether this is another rank than the first (all hold the same states), or a graph is being captured."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return torch.distributed.is_initialized() and torch.distributed.get_rank() != 0
