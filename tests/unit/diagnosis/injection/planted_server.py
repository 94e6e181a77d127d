"""Simulate a server of the tiny pair: the real draft, the real target's states, the speculative loop.

At temperature 0 the text does not depend on the draft, so a round accepts exactly those drafts that the text goes on
with (`wiring.accuracy.replay`, which gives the counts of the real server). A fault is a change of one of the functions
below: what reaches the draft, what the engine makes of its checkpoint, how it goes on, what is accepted.

At a temperature T the text is sampled from the target. Under rejection sampling a draft x is accepted with probability
min(1, p(x) / q(x)) and replaced otherwise (Leviathan et al. 2023, arXiv 2211.17192); given that the text has x there,
it was accepted with probability min(1, q(x) / p(x)), which is what `_coins` draws.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tiny_bench import PROMPT, TRAINED, Bench, TextSet
from torch import Tensor

from wiring.checkpoints.draft_files import DraftCheckpoint, read_draft
from wiring.engines.resolve import served_layout
from wiring.model.eagle3 import Eagle3Draft

ENGINE, VERSION = "sglang", "0.5.23"
# How a server is started when nobody asks for anything.
FLAGS: Mapping[str, Any] = {
    "tp": 1,
    "cuda_graphs": True,
    "fused_all_reduce": False,
    "draft_kv_dtype": "bfloat16",
    "draft_quantisation": "none",
    "target_quantisation": "none",
    "attention_backend": "triton",
    "chunked": False,
    "handed_over": False,
}


@dataclass(frozen=True)
class Run:
    """How requests are sent: which texts (`count` of them), where the prompt ends, how many tokens are asked for."""

    texts: str = "greedy"
    count: int | None = None
    prompt: int = PROMPT
    new: int = 96
    cached: bool = False
    batch: int = 1
    temperature: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What a change may look at. `rank` is the rank whose states are looked at."""

    bench: Bench
    texts: TextSet
    run: Run
    flags: Mapping[str, Any]
    rank: int = 0

    @property
    def rows(self) -> Tensor:
        """Positions of the texts [N]."""
        return torch.arange(self.texts.tokens.shape[1])


States = Callable[[Moment, Tensor], Tensor]


def _same(_moment: Moment, x):
    return x


@dataclass(frozen=True)
class Server:
    """A deployed pair. `draft` is the checkpoint's folder, `flags` how the server was started.

    feeds: states [B, N, n, H] as they reach fc. pairs: tokens [B, N] as the draft's prefill sees them. fuses: what fc
    made of the states [B, N, H], as it stands in the draft's KV cache. reads: the checkpoint as the engine takes it.
    built: the draft as it runs. `recurrence`: "states" (accepted rows are written again from the target's states),
    "own" (they stay as drafted) or "rejected" (rejected rows stay as well). `accepts_all`: verify compares nothing.
    `round_price`: plain steps that a round costs, by steps.
    `asked` and `resolved` are speculation arguments. `benchmark` says how it is measured, `hot` at which temperature
    beside 0. `trained`: the boundaries that the draft was trained on; `trained_on`: the document kind of its training.
    """

    draft: Path
    flags: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 5
    feeds: States = _same
    pairs: States = _same
    fuses: States = _same
    reads: Callable[[Mapping[str, Any], DraftCheckpoint], DraftCheckpoint] = _same
    built: Callable[[Mapping[str, Any], Eagle3Draft], Eagle3Draft] = _same
    recurrence: str = "states"
    accepts_all: bool = False
    round_price: Callable[[int], float] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "EAGLE3"
    main: Run = Run()
    benchmark: Mapping[str, Any] = field(default_factory=dict)
    trained: tuple[int, ...] = TRAINED
    hot: float = 1.0  # the temperature that is held against 0
    trained_on: str | None = None
    original: Path | None = None  # the checkpoint as training left it, where the deployed one is another

    def with_flags(self, **flags: Any) -> Server:
        """The same, started otherwise."""
        return replace(self, flags={**self.flags, **flags})

    def all_flags(self) -> dict[str, Any]:
        """Every flag."""
        return {**FLAGS, **self.flags}


@dataclass(frozen=True)
class Served:
    """rounds[i]: drafts accepted by the rounds of request i; drafted: ids of first drafts; finite: of the logits."""

    rounds: tuple[tuple[int, ...], ...]
    drafted: Tensor
    finite: bool


def checkpoint(server: Server) -> DraftCheckpoint:
    """As SGLang reads the folder."""
    return read_draft(server.draft, producer="sglang", strict=False)


def running_draft(bench: Bench, server: Server) -> Eagle3Draft:
    """The draft as the server runs it: SGLang's reading, the target's embedding, and what is planted."""
    flags = server.all_flags()
    read = server.reads(flags, checkpoint(server))
    return server.built(flags, Eagle3Draft.from_checkpoint(read, bench.embedding, bench.head.weight))


def layouts(bench: Bench, server: Server) -> Mapping[str, tuple[int, ...] | None]:
    """Which boundaries the engine's rule captures for this checkpoint, by phase."""
    config = json.loads((server.draft / "config.json").read_text())
    flags = server.all_flags()
    rule = served_layout(
        ENGINE, VERSION, bench.target_config, config, cuda_graphs=flags["cuda_graphs"], tp_size=flags["tp"]
    )
    return {phase: rule[phase] for phase in ("prefill", "verify", "draft_extend")}


def fed(bench: Bench, server: Server, run: Run, rank: int = 0) -> Tensor:
    """States [B, N, n, H] as they reach the draft's fc: rows of the prompt by the prefill, later ones by verify."""
    texts = bench.text_set(run.texts)
    rule = layouts(bench, server)
    prefill, verify = (
        texts.boundaries[list(rule[p] or rule["prefill"])].permute(1, 2, 0, 3) for p in ("prefill", "verify")
    )
    states = torch.cat([prefill[:, : run.prompt], verify[:, run.prompt :]], 1)
    moment = Moment(bench, texts, run, server.all_flags(), rank)
    return server.feeds(moment, states)


@dataclass(frozen=True)
class Proposals:
    """accepted [B, N-1, steps]: whether step k of row t would be; first [B, N-1]: ids that step 0 drafts."""

    accepted: Tensor
    first: Tensor
    finite: bool


_seen: dict[bytes, Any] = {}


@torch.no_grad()
def serve(bench: Bench, server: Server, run: Run) -> Served:
    """Send the texts' prompts and count."""
    texts = bench.text_set(run.texts)
    moment = Moment(bench, texts, run, server.all_flags())
    draft = running_draft(bench, server)
    states = fed(bench, server, run)
    fused = states.flatten(2) if server.algorithm != "EAGLE3" else draft.project(states)
    fused = server.fuses(moment, fused)
    tokens = server.pairs(moment, texts.tokens)
    key = hashlib.sha1()
    for part in (fused, tokens, *draft.state_dict().values(), draft.embedding, draft.target_ids):
        key.update(part.contiguous().numpy().tobytes())
    said = (run.texts, run.temperature, server.steps, draft.config, getattr(draft, "planted", ""))
    key.update(repr(said).encode())
    found = _once(key.digest(), lambda: _proposals(server, run, texts, draft, fused, tokens))
    count = run.count or len(tokens)
    end = min(run.prompt + run.new, tokens.shape[1] - server.steps - 1)
    if server.accepts_all:
        accepted = torch.ones_like(found.accepted)
    else:
        accepted = found.accepted
    if server.recurrence == "states":
        rounds = tuple(_walk(accepted[i], run.prompt, end) for i in range(count))
    else:
        key.update(repr((server.recurrence, count, run.prompt, end)).encode())
        rounds = _once(
            key.digest(), lambda: chained(server, draft, fused[:count], texts.tokens[:count], run.prompt, end)
        )
    return Served(rounds, found.first[:count, run.prompt - 1 : end - 1].flatten(), found.finite)


def _once(key: bytes, make: Callable[[], Any]) -> Any:
    """Most servers differ from each other in a few measurements only."""
    if key not in _seen:
        _seen[key] = make()
    return _seen[key]


def _proposals(
    server: Server, run: Run, texts: TextSet, draft: Eagle3Draft, fused: Tensor, tokens: Tensor
) -> Proposals:
    rows = tokens.shape[1] - 1
    accepted = torch.zeros(len(tokens), rows, server.steps, dtype=torch.bool)
    first, finite = None, True
    for k, hidden in enumerate(draft.steps_of(fused[:, :rows], tokens, server.steps)):
        logits = draft.logits(hidden)  # [B, N-1, Vd]
        finite = finite and bool(logits.isfinite().all())
        best = draft.to_target_ids(logits.argmax(-1))
        first = best if first is None else first
        known = rows - 1 - k
        follows = texts.tokens[:, 2 + k :]
        if run.temperature:
            accepted[:, :known, k] = _coins(run, texts, draft, logits[:, :known], follows, k)
        else:
            accepted[:, :known, k] = best[:, :known] == follows
    return Proposals(accepted, first, finite)


def _coins(run: Run, texts: TextSet, draft: Eagle3Draft, logits: Tensor, follows: Tensor, step: int) -> Tensor:
    """Accepted or not, drawn with probability min(1, q / p) of the token that the text goes on with."""
    count, known = follows.shape
    p = (texts.logits[:count, 1 + step : 1 + step + known] / run.temperature).softmax(-1)
    q = torch.zeros_like(p).index_copy(-1, draft.target_ids, (logits / run.temperature).softmax(-1))
    p, q = (one.gather(-1, follows[..., None])[..., 0] for one in (p, q))
    return torch.rand(p.shape, generator=torch.Generator().manual_seed(step)) < q / p


def _walk(right: Tensor, prompt: int, end: int) -> tuple[int, ...]:
    """Accepted counts of the rounds that start before `end`; a round starts at the last token known."""
    runs = right.int().cumprod(-1).sum(-1).tolist()
    rounds, p = [], prompt
    while p < end - 1:
        rounds.append(runs[p - 1])
        p += runs[p - 1] + 1
    return tuple(rounds)


def chained(
    server: Server, draft: Eagle3Draft, fused: Tensor, texts: Tensor, prompt: int, end: int
) -> tuple[tuple[int, ...], ...]:
    """Rounds one after the other, all texts [B, N] at once, with rows of the draft's cache that stay as drafted.

    Row t of the cache holds a state and the token after it. "own": the row of an accepted draft keeps the draft's own
    output of the step before instead of the target's state. "rejected": rows of rejected drafts stay behind it, too,
    and later rows come after them. "states" is how it should be.
    """
    steps, kept = server.steps, server.recurrence
    held = [f[:prompt] for f in fused]  # rows of the cache
    ids = [t[: prompt + 1] for t in texts]  # their tokens, and one more: the root
    at, rounds = [prompt] * len(texts), [[] for _ in texts]
    while going := [i for i, p in enumerate(at) if p < end - 1]:
        follows = torch.stack([texts[i, at[i] + 1 : at[i] + 1 + steps] for i in going])
        drafts, own = _drafted(draft, [held[i] for i in going], [ids[i] for i in going], follows, kept == "rejected")
        for i, follow, drafted, outs in zip(going, follows, drafts, own, strict=True):
            p = at[i]
            accepted = int((drafted == follow).int().cumprod(0).sum())
            rounds[i].append(accepted)
            rows = fused[i, p : p + accepted]
            if kept == "rejected":
                rows = torch.cat([rows, outs[accepted:]])
            elif kept == "own":
                rows = torch.cat([outs[:accepted], rows[len(outs) :]])
            held[i] = torch.cat([held[i], rows, fused[i, p + accepted : p + accepted + 1]])
            ids[i] = torch.cat([ids[i], drafted[: len(rows)], texts[i, p + accepted + 1 : p + accepted + 2]])
            at[i] = p + accepted + 1
    return tuple(tuple(one) for one in rounds)


def _drafted(
    draft: Eagle3Draft, held: list[Tensor], ids: list[Tensor], follows: Tensor, to_the_end: bool
) -> tuple[Tensor, Tensor]:
    """A round's drafts [B, K], and the K - 1 rows that drafting writes [B, K - 1, H].

    Each step is fed what `follows` says. Up to the first wrong draft that is what was drafted, and nothing after it is
    accepted. `to_the_end`: what follows it is drafted, too, by feeding the drafts until they no longer change.
    Rows are normed when they are read, so only their directions matter, not whether the head's norm came first.
    """
    count, steps = follows.shape
    lengths = torch.tensor([len(h) for h in held])
    longest, every = int(lengths.max()), torch.arange(count)
    hidden = torch.zeros(count, longest + steps - 1, held[0].shape[1])
    tokens = torch.zeros(count, longest + steps, dtype=torch.int64)
    for i, (rows, known) in enumerate(zip(held, ids, strict=True)):
        hidden[i, : len(rows)], tokens[i, : len(known)] = rows, known
    last = lengths - 1
    wanted = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    wanted[every, last] = True
    fed = follows[:, :-1]
    while True:
        tokens[every[:, None], lengths[:, None] + 1 + torch.arange(steps - 1)] = fed
        stepped = draft.steps_of(hidden, tokens, steps, keep=lambda _step: wanted)
        outs = torch.stack([one[every, last] for one in stepped], 1)  # [B, K, H]
        drafts = draft.to_target_ids(draft.logits(outs).argmax(-1))
        if not to_the_end or torch.equal(drafts[:, :-1], fed):
            return drafts, outs[:, :-1] / draft.norm.weight
        fed = drafts[:, :-1]
