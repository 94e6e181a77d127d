"""The check "reference forward": compare the engine's draft part by part with the checkpoint in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from planted_server import Server, checkpoint, running_draft
from tiny_bench import TRAINED, Bench
from torch import Tensor

from wiring.model.eagle3 import Eagle3Draft

TEXTS = 4


@torch.no_grad()
def departs_at(bench: Bench, server: Server) -> str:
    """The first part that differs, in the words of the fact `draft_departs_at`; both get the same states and tokens."""
    engine = running_draft(bench, server)
    alone = Eagle3Draft.from_checkpoint(checkpoint(Server(server.draft)), bench.embedding, bench.head.weight)
    if not torch.equal(engine.embedding, alone.embedding):
        return "embedding"
    weights = zip(engine.state_dict().values(), alone.state_dict().values(), strict=True)
    if not all(torch.equal(a, b) for a, b in weights):
        return "weights"
    texts = bench.text_set("greedy")
    states = texts.boundaries[list(TRAINED), :TEXTS].permute(1, 2, 0, 3)
    tokens, fused = texts.tokens[:TEXTS], alone.project(states[:, : texts.tokens.shape[1] - 1])
    seen, wanted = (_parts(draft, fused, tokens) for draft in (engine, alone))
    differs = {name: not torch.allclose(seen[name], wanted[name], atol=1e-4) for name in wanted}
    if differs["keys"] and differs["queries"] and not differs["values"]:
        return "rotation"
    parts = ("normed", "norm"), ("keys", "attention"), ("values", "attention"), ("queries", "attention")
    parts += ("mixed", "attention"), ("added", "residual"), ("output", "residual"), ("last", "norm"), ("ids", "map")
    return next((part for name, part in parts if differs[name]), "nothing")


def _parts(draft: Eagle3Draft, fused: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """What the parts of the draft's first layer give in the first step, and the ids that it drafts."""
    layer, seen = draft.layers[0], {}
    attention = layer.self_attn

    def noting(whole: Callable, *names: str) -> Callable:
        def call(x: Tensor, *inputs: Any) -> Any:
            seen["normed"] = x
            found = whole(x, *inputs)
            seen.update(zip(names, found if isinstance(found, tuple) else (found,), strict=True))
            return found

        return call

    attention.keys_and_values = noting(attention.keys_and_values, "keys", "values")
    attention.queries = noting(attention.queries, "queries")
    attention.o_proj.register_forward_pre_hook(lambda _m, args: seen.__setitem__("mixed", args[0]))
    layer.post_attention_layernorm.register_forward_pre_hook(lambda _m, args: seen.__setitem__("added", args[0]))
    layer.register_forward_hook(lambda _m, _args, out: seen.__setitem__("output", out))
    (seen["last"],) = draft.steps_of(fused, tokens, 1)
    seen["ids"] = draft.to_target_ids(draft.logits(seen["last"]).argmax(-1)).float()
    return seen
