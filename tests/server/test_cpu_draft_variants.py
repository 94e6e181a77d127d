"""SGLang's draft on the CPU server and `Eagle3Draft` propose the same tokens, for every variant that SGLang reads.

A server drafts chains of 5 with a random draft in float32; each round's proposals are recorded with the states that the
draft was fed. `Eagle3Draft`, read with producer "sglang", then drafts from the same rows, fed its own proposals.
`draft_variants.py` has the drafts. Some of their settings are ignored by SGLang 0.5.23, which is tested too
(norm_before_residual, sliding_window, attention_bias for q, k and v, mlp_bias, an embedding or a head in the file where
the target's or the embedding is used).

Not covered by a server:

- a window for the draft (--speculative-draft-window-size), which the CPU kit refuses;
- what SGLang itself does not load: linear scaling with a whole number as factor, a config without draft_vocab_size,
  another activation than silu, and a context longer than the draft's own;
- what the reader refuses: a rotation of part of the head, longrope, drafts with latent attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cpu_server import serving
from draft_records import read_drafts
from draft_variants import CONTEXT, MIXED, VARIANTS, VOCABULARY, WIDTH, Variant, write_draft

from wiring.capture.folder_summary import read_capture
from wiring.capture.proposals import DraftRecord
from wiring.capture.records import capture_environment
from wiring.checkpoints.draft_files import DraftCheckpoint, read_draft
from wiring.checkpoints.target_files import read_tensor
from wiring.engines.sglang import Speculation
from wiring.layers import Phase
from wiring.model.eagle3 import Eagle3Draft
from wiring.server.server_spec import ServerSpec

pytestmark = pytest.mark.server

STEPS, NEW_TOKENS, LENGTHS = 5, 20, (3, 9, 24, 61, 97, 150)
LEAST_MARGIN = 1e-3  # of logits of order 10: a hundred times what float32 sums differ by between implementations
MOST_SKIPPED, LEAST_CHANGED = 0.02, 0.1


@dataclass(frozen=True)
class Request:
    """One request: its text int64 [N], the states [N-1, n, H] of its rows, and its rounds."""

    text: torch.Tensor
    states: torch.Tensor
    rounds: tuple[DraftRecord, ...]


@dataclass(frozen=True)
class Served:
    variant: Variant
    draft: DraftCheckpoint
    embedding: torch.Tensor
    head: torch.Tensor
    requests: tuple[Request, ...]

    def ours(self, checkpoint: DraftCheckpoint) -> Eagle3Draft:
        return Eagle3Draft.from_checkpoint(checkpoint, self.embedding, self.head)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()  # before transformers' models are imported
    import cpu_pair

    folder = tmp_path_factory.mktemp("target") / "target"
    assert (cpu_pair.VOCABULARY, cpu_pair.WIDTH) == (VOCABULARY, WIDTH)
    cpu_pair.write_target(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(v, marks=() if v is MIXED else pytest.mark.variants, id=v.name) for v in VARIANTS],
)
def served(request, target, tmp_path_factory) -> Served:
    variant, folder = request.param, tmp_path_factory.mktemp("variant")
    write_draft(folder / "draft", variant, seed=5)
    flags = ("--max-total-tokens", "2048", "--max-running-requests", "8", "--context-length", str(CONTEXT))
    flags += ("--chunked-prefill-size", "64", "--skip-server-warmup")
    switches = capture_environment(folder / "capture", drafts=True)
    speculation = Speculation(STEPS, 1, STEPS + 1)
    spec = ServerSpec(target, folder / "draft", speculation, extra_flags=flags, env=switches)
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    for first, prompt in enumerate(prompts):
        prompt[0] = first  # no prompt is in the prefix cache
    with serving(spec, folder / "server.log") as server:
        answers = server.generate(prompts, NEW_TOKENS)
    draft = read_draft(folder / "draft", producer="sglang")
    requests = _requests(folder / "capture", prompts, answers, draft.shape.num_slots)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    return Served(variant, draft, *(read_tensor(target, name) for name in names), requests)


def _requests(capture: Path, prompts: list[list[int]], answers: list[dict], slots: int) -> tuple[Request, ...]:
    records, rounds = read_capture(capture), read_drafts(capture)
    made = []
    for prompt, answer in zip(prompts, answers, strict=True):
        rid = answer["meta_info"]["id"]
        fed, states = [], []
        for record in (r for r in records if r.request == rid and r.phase is not Phase.VERIFY):
            assert record.positions.tolist() == list(range(len(fed), len(fed) + len(record.positions)))
            fed += record.token_ids.tolist()
            states.append(record.states.unflatten(1, (slots, -1)))
        text, whole = [prompt[0], *fed], prompt + answer["output_ids"]
        assert text[: len(whole)] == whole[: len(text)]
        mine = tuple(r for r in rounds if r.request == rid)
        assert len(mine) == answer["meta_info"]["spec_verify_ct"]
        assert all(text[r.position + 1] == r.root and r.parents == tuple(range(-1, STEPS - 1)) for r in mine)
        made.append(Request(torch.tensor(text), torch.cat(states), mine))
    return tuple(made)


@torch.no_grad()
def propose(draft: Eagle3Draft, request: Request, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft chains of `STEPS` from the rows; return target ids [R, STEPS] and the smallest margin of each chain [R]."""
    every, at, length = torch.arange(len(rows)), torch.tensor(rows), max(rows) + 2
    tokens = torch.zeros(len(rows), length + STEPS, dtype=torch.int64)
    tokens[:, :length] = request.text[:length]
    states = torch.zeros(len(rows), length + STEPS, *request.states.shape[1:])
    states[:, : length - 1] = request.states[: length - 1]
    margins = torch.full((len(rows),), torch.inf)
    wanted = torch.zeros(len(rows), tokens.shape[1] - 1, dtype=torch.bool).scatter(1, at[:, None], True)  # [R, T]
    for step in range(STEPS):
        *_, hidden = draft.hidden_steps(tokens, states, step + 1, keep=lambda step: wanted)
        best = draft.logits(hidden[every, at]).topk(2)  # [R, 2]
        margins = margins.minimum(best.values[:, 0] - best.values[:, 1])
        tokens[every, at + 2 + step] = draft.to_target_ids(best.indices[:, 0])
    return torch.stack([tokens[every, at + 2 + step] for step in range(STEPS)], dim=1), margins


def equal(served: Served, draft: Eagle3Draft, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return per round whether all proposals equal SGLang's, and the smallest margin."""
    parts = []
    for request in requests:
        ours, margins = propose(draft, request, [r.position for r in request.rounds])
        theirs = torch.tensor([r.tokens for r in request.rounds])
        parts.append(((ours == theirs).all(dim=1), margins))
    same, margins = zip(*parts, strict=True)
    return torch.cat(same), torch.cat(margins)


def test_the_same_proposals_in_every_round(served):
    same, margins = equal(served, served.ours(served.draft), served.requests)
    clear = margins >= LEAST_MARGIN
    differing, skipped = int((~same[clear]).sum()), int((~clear).sum())
    print(f"{served.variant.name}: {len(same)} rounds of {STEPS} proposals, {differing} differ, {skipped} near ties")
    assert len(same) > len(LENGTHS) * NEW_TOKENS / 2
    assert differing == 0
    assert skipped <= MOST_SKIPPED * len(same)


def test_wrong_readings_of_the_file_propose_other_tokens(served):
    """Each setting of this draft changes what it proposes."""
    long = served.requests[-2:-1]
    changed = {
        name: 1 - float(equal(served, served.ours(wrong(served.draft)), long)[0].float().mean())
        for name, wrong in served.variant.controls.items()
    }
    print(f"{served.variant.name}: rounds that change:", ", ".join(f"{n} {x:.0%}" for n, x in changed.items()))
    assert min(changed.values()) >= LEAST_CHANGED, changed
