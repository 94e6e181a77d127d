"""Capture states in a running server, keep them with their text, and match them to boundaries."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from wiring.capture.folder_summary import CaptureSummary, read_capture, summarize
from wiring.capture.matching import SlotComparison, match_slots, matched_layout
from wiring.capture.records import capture_environment, final_states
from wiring.checkpoints.atomic import replacing
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.model.target_reference import ReferenceTarget
from wiring.workbook.artefacts import PhaseLayout
from wiring.workbook.case import Case
from wiring.workbook.live import Progress, read_prompts, server_spec, start_server

PHASES = (Phase.PREFILL, Phase.VERIFY)  # those without which a capture explains nothing


@dataclass(frozen=True)
class CapturedRequest:
    """One request: its text, and for each phase the positions and the captured states.

    `tokens` int64 [N] is prompt and output; `positions[phase]` int64 [M]; `states[phase]` [M, n*H]. The phases of
    `PHASES` are always there, draft_extend where it was captured.
    """

    tokens: torch.Tensor
    prompt_len: int
    positions: Mapping[Phase, torch.Tensor]
    states: Mapping[Phase, torch.Tensor]

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Return the generated ids."""
        return tuple(self.tokens[self.prompt_len :].tolist())


def capture(
    case: Case,
    name: str,
    draft: Path,
    *,
    env: Mapping[str, str] | None = None,
    sglang: Path | None = None,
    progress: Progress = print,
) -> tuple[CapturedRequest, ...]:
    """Serve `draft` with the capture plugin on, send the first prompts, and keep `<name>.safetensors` in the run.

    `sglang`: a folder with a patched copy of the package, to be served instead of the installed one. Raises WiringError
    when a phase was not seen.
    """
    asked, folder = case.profile.capture, case.scratch(f"capture-{name}")
    shutil.rmtree(folder, ignore_errors=True)
    prompts = read_prompts(case.profile.prompts, asked.prompts)
    width = case.profile.speculation.draft_tokens + case.profile.speculation.steps
    rows = sum(len(p) for p in prompts) + len(prompts) * asked.new_tokens * width
    switches = {**capture_environment(folder, rows, prefix=name), **(env or {})}
    requests = []
    with start_server(
        case, server_spec(case.profile, draft=draft, env=switches, sglang=sglang), f"capture-{name}", progress
    ) as server:
        for index, prompt in enumerate(prompts):
            progress(f"capturing request {index + 1} of {len(prompts)}")
            reply = server.client.generate(prompt, asked.new_tokens, rid=f"{name}-{index}")
            requests.append((f"{name}-{index}", prompt, list(reply.output_ids)))
    records, summary = read_capture(folder), summarize(folder)
    if summary.truncated:
        progress(f"the bound on {summary.truncated} ended the capture: later states are missing")
    captured = tuple(_assemble(records, summary, *request) for request in requests)
    save(case.folder / f"{name}.safetensors", captured)
    shutil.rmtree(folder)
    return captured


def capture_or_load(
    case: Case,
    name: str,
    draft: Path,
    *,
    env: Mapping[str, str] | None = None,
    sglang: Path | None = None,
    progress: Progress = print,
) -> tuple[CapturedRequest, ...]:
    """Capture as `capture` does if the case is live, else load the recorded `<name>.safetensors`."""
    if case.live:
        return capture(case, name, draft, env=env, sglang=sglang, progress=progress)
    return load(case.measured_file(f"{name}.safetensors"))


def _assemble(records, summary: CaptureSummary, rid: str, prompt: list[int], output: list[int]) -> CapturedRequest:
    tokens = torch.tensor(prompt + output, dtype=torch.int64)
    found = final_states([r for r in records if r.request == rid], prompt + output)
    absent = [phase for phase in PHASES if phase not in found]
    if absent:
        why = summary.reasons.get(absent[0], "other requests have it, this one does not")
        raise WiringError(
            f"no state was captured in phase {absent[0]}: {why}",
            code="phase-not-captured",
            where=f"request {rid}",
            expected=" and ".join(PHASES),
            found=", ".join(found) or "nothing",
            remedy=summary.remedies.get(absent[0], "Ask for more new tokens, or capture fewer requests"),
        )
    return CapturedRequest(
        tokens=tokens,
        prompt_len=len(prompt),
        positions={phase: positions for phase, (positions, _) in found.items()},
        states={phase: states for phase, (_, states) in found.items()},
    )


def phases(captured: Sequence[CapturedRequest]) -> tuple[Phase, ...]:
    """Return the phases that every request has, in serving order; older captures have no draft_extend."""
    return tuple(phase for phase in Phase if all(phase in request.states for request in captured))


def save(path: Path, captured: Sequence[CapturedRequest]) -> None:
    """Write captured requests as safetensors: `<i>.tokens`, `<i>.<phase>.positions`, `<i>.<phase>.states`."""
    tensors = {}
    for i, request in enumerate(captured):
        tensors[f"{i}.tokens"] = request.tokens
        tensors[f"{i}.prompt_len"] = torch.tensor(request.prompt_len)
        for phase in request.states:
            tensors[f"{i}.{phase}.positions"] = request.positions[phase].contiguous()
            tensors[f"{i}.{phase}.states"] = request.states[phase].contiguous()
    with replacing(path) as temporary:
        save_file(tensors, temporary)


def load(path: Path) -> tuple[CapturedRequest, ...]:
    """Read what `save` wrote. Raises WiringError when the file is absent or of another shape."""
    try:
        with safe_open(path, framework="pt") as file:
            count = len([key for key in file.keys() if key.endswith(".tokens")])
            return tuple(_load_one(file, i) for i in range(count))
    except (OSError, SafetensorError) as error:
        raise WiringError(
            "captured states cannot be read",
            code="captured-states-unreadable",
            where=path,
            found=str(error),
            remedy='Run the notebook with measure = "live"',
        ) from None


def _load_one(file, i: int) -> CapturedRequest:
    held = set(file.keys())
    there = [phase for phase in Phase if phase in PHASES or f"{i}.{phase}.states" in held]
    return CapturedRequest(
        tokens=file.get_tensor(f"{i}.tokens"),
        prompt_len=int(file.get_tensor(f"{i}.prompt_len")),
        positions={p: file.get_tensor(f"{i}.{p}.positions") for p in there},
        states={p: file.get_tensor(f"{i}.{p}.states") for p in there},
    )


def phase_states(captured: Sequence[CapturedRequest], phase: Phase, hidden_size: int) -> torch.Tensor:
    """Return the states of one phase, all requests concatenated: [M, n, H]."""
    states = torch.cat([request.states[phase] for request in captured])  # [M, n*H]
    return states.view(states.shape[0], -1, hidden_size)


def reference_states(
    captured: Sequence[CapturedRequest], phase: Phase, reference: ReferenceTarget, shift: int = 0
) -> torch.Tensor:
    """Return every boundary of the reference target at the captured rows: [L+1, M, H]; `shift` moves the positions."""
    parts = []
    for request in captured:
        boundaries = reference.forward(request.tokens[None]).boundaries[:, 0]  # [L+1, N, H]
        rows = (request.positions[phase] + shift).clamp(0, len(request.tokens) - 1)
        parts.append(boundaries[:, rows])
    return torch.cat(parts, dim=1)


def match_phases(
    captured: Sequence[CapturedRequest], reference: ReferenceTarget
) -> dict[Phase, tuple[SlotComparison, ...]]:
    """Return for each captured phase which boundary each served slot holds."""
    return {
        phase: match_slots(
            phase_states(captured, phase, reference.hidden_size), reference_states(captured, phase, reference)
        )
        for phase in phases(captured)
    }


def phase_layout(matches: Mapping[Phase, Sequence[SlotComparison]]) -> PhaseLayout:
    """Return the captured layouts as artefacts store them."""
    return PhaseLayout(**{phase: matched_layout(found) for phase, found in matches.items()})


def embedding_rows_equal(
    captured: Sequence[CapturedRequest], embedding: torch.Tensor, slot: int = 0
) -> tuple[int, int]:
    """(rows captured, rows in which `slot` equals embed_tokens(input_ids) bit for bit), all phases together.

    `embedding` [V, H] is the target's `embed_tokens.weight` in the dtype that the server runs with.
    """
    total = equal = 0
    for request in captured:
        for phase in request.states:
            states = request.states[phase].view(len(request.positions[phase]), -1, embedding.shape[1])[
                :, slot
            ]  # [M, H]
            rows = embedding[request.tokens[request.positions[phase]]].to(states.dtype)  # [M, H]
            total += len(rows)
            equal += int((states == rows).all(dim=1).sum())
    return total, equal
