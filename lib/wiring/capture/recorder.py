"""The recorder inside the SGLang server: which rows of a forward are right, and their files.

It is handed SGLang's own objects by the hooks of `capture_plugin`, reads them, and never raises: after an error, which
goes to capture-error.txt, nothing more is recorded and the server goes on.

What the rows are in SGLang 0.5.23 (`srt/speculative/eagle_worker_v2.py`, `eagle_worker_common.py`, `eagle_utils.py`):

- After a target prefill (mode EXTEND) the draft's forward has one row per token of the chunk that was prefilled. Row t
  holds g_t and the token after it; beside the last row of a chunk stands the next prompt token, beside the last of all
  the first generated token. Tokens found in the prefix cache have no rows.
- The target's verify forward has one row per node of each request's tree, `draft_token_num` of them. `eagle_sample`
  then chooses: `accept_index` names the accepted nodes in the order of the text, `predict` the token after each node.
- The draft's forward after a verify (mode DRAFT_EXTEND_V2) has `num_draft_tokens` rows per request, whatever was
  accepted. The first `num_accept_tokens` of them (accepted drafts + 1) are right: their states come from tokens of the
  final text, and they are moved to the front where the drafts form a tree. The rest hold states of rejected drafts
  beside token id 0. Only the right ones are recorded, so the states of a record are all of the final text.
- Draft decode steps (mode DECODE) feed the draft's own last state, not the target's: they are not recorded.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wiring.capture.proposals import of_verify_input, write_drafts
from wiring.capture.records import DEFAULT_BYTES, ERROR, NOTE
from wiring.checkpoints.atomic import replacing, write_json
from wiring.layers import Phase

_HEALTH_CHECK = "HEALTH_CHECK"  # how SGLang's own health requests begin
_HEADER_BYTES = 768  # more than a record's file has beside its tensors and the request's id
_INDEX_BYTES = 16  # token id and position of a row


class Recorder:
    """Writes records to `folder` until a bound is reached or something goes wrong; it never raises.

    `rows` bounds the tokens, `max_bytes` the files; `prefix` and `names` choose the requests (see
    `capture.capture_environment`).
    """

    def __init__(
        self, folder: Path, rows: int, prefix: str = "", *, names: Sequence[str] = (), max_bytes: int = DEFAULT_BYTES
    ):
        self.folder, self.prefix, self.names = folder, prefix, tuple(names)
        self._bounds = {"rows": rows, "bytes": max_bytes}
        # What the target puts out and what the draft is fed are the same tokens twice: each has the bound for itself.
        self._rows_left = {Phase.VERIFY: rows, Phase.DRAFT_EXTEND: rows}
        self._bytes_left, self._next, self._ended = max_bytes, 0, False
        self._note: dict[str, Any] | None = None

    def see(self, requests: Sequence[str] | None, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Note once that the server has run a real request's forward, with `facts` about how the server runs."""
        if self._note is None and requests and not all(r.startswith(_HEALTH_CHECK) for r in requests):
            self._attempt(lambda: None if _is_silent_rank() else self._write_note(**facts()))

    def record(self, batch: Any) -> None:
        """Record what `fc` is fed in one forward of the draft. `batch` is SGLang's ForwardBatch."""
        self._attempt(self._record, batch)

    def record_verified(self, verify: Any, batch: Any, output: Any, sampled: Any) -> None:
        """Record what the target's verify forward put out for the accepted nodes.

        `verify` is SGLang's EagleVerifyInput, `batch` its ScheduleBatch, `output` the LogitsProcessorOutput of the
        target's forward, and `sampled` what `eagle_sample` made of them: (predict, accept_lens, accept_index).
        """
        self._attempt(self._record_verified, verify, batch, output, sampled)

    def record_drafts(self, batch: Any, drafted: Any) -> None:
        """Record what one round proposed. `batch` is SGLang's ScheduleBatch, `drafted` what `draft` returned for it.

        Ends with the rows: proposals whose states are not recorded explain nothing.
        """
        self._attempt(self._record_drafts, batch, drafted)

    def fail(self, text: str) -> None:
        """End the capture, and tell why in capture-error.txt."""
        self._ended = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ERROR).write_text(text, encoding="utf-8")
        except OSError:
            print(text, file=sys.stderr)  # SGLang's log is all that is left

    def _attempt(self, record: Callable, *seen: Any) -> None:
        if self._ended:
            return
        try:
            record(*seen)
        except Exception:
            self.fail(traceback.format_exc())

    def _record(self, batch: Any) -> None:
        phase = _phase(batch.forward_mode)
        requests = getattr(batch, "rids", None)
        states = getattr(batch.spec_info, "hidden_states", None)  # [R, n*H]
        if phase is None or not requests or states is None or _is_silent_rank():
            return  # a draft step, or the trial runs that precede CUDA graphs and have no requests
        if not any(map(self._is_asked_for, requests)):
            return
        lengths = _lengths(batch, len(requests))
        if sum(lengths) != len(states) or len(batch.input_ids) != len(states):
            raise ValueError(f"{len(batch.input_ids)} tokens and {len(states)} states for requests of {lengths} rows")
        right = _right_rows(batch.spec_info, lengths) if phase is Phase.DRAFT_EXTEND else lengths
        start = 0
        for request, length, kept in zip(requests, lengths, right, strict=True):
            rows = slice(start, start + kept)
            self._keep(phase, request, batch.input_ids[rows], batch.positions[rows], states[rows])
            start += length

    def _record_verified(self, verify: Any, batch: Any, output: Any, sampled: Any) -> None:
        requests, states = [request.rid for request in batch.reqs], output.hidden_states  # [requests * nodes, n*H]
        if states is None or batch.forward_mode.is_idle() or not any(map(self._is_asked_for, requests)):
            return
        if _is_silent_rank():
            return
        predict, counts, accepted = sampled  # [requests * nodes], [requests], [requests, depth]: numbers of nodes
        if len(states) != len(requests) * int(verify.draft_token_num):
            raise ValueError(f"{len(states)} states for {len(requests)} trees of {verify.draft_token_num} nodes")
        for request, count, path in zip(requests, counts.tolist(), accepted.view(len(requests), -1), strict=True):
            nodes = path[:count].long()
            self._keep(Phase.VERIFY, request, predict[nodes], verify.positions[nodes], states[nodes])

    def _record_drafts(self, batch: Any, drafted: Any) -> None:
        verify = drafted[0] if isinstance(drafted, tuple) else drafted  # the tree's topology may stand beside it
        requests = [request.rid for request in batch.reqs]
        if not requests or batch.forward_mode.is_idle() or _is_silent_rank():
            return
        records = of_verify_input(requests, verify, self._next)
        kept = [record for record in records if self._is_asked_for(record.request)]
        if kept and self._room(Phase.DRAFT_EXTEND) > 0:
            write_drafts(self.folder, kept)
            self._next += 1

    def _is_asked_for(self, request: str) -> bool:
        named = not self.names or request in self.names
        return named and request.startswith(self.prefix) and not request.startswith(_HEALTH_CHECK)

    def _room(self, phase: Phase) -> int:
        """How many more rows the row bound leaves for this phase; a prefill's rows count in both streams."""
        return min(self._rows_left.values()) if phase is Phase.PREFILL else self._rows_left[phase]

    def _keep(self, phase: Phase, request: str, tokens: Any, positions: Any, states: Any) -> None:
        """Write the rows of one request as far as the bounds allow. All [M] or [M, n*H]."""
        if not self._is_asked_for(request):
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
            # By rows, the draft's half of this round is still to come.
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


def _phase(mode: Any) -> Phase | None:
    """Which forward of the draft this is; None for a draft's own step."""
    if mode.is_draft_extend_v2():
        return Phase.DRAFT_EXTEND
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
