"""A random draft that was "trained" on a known layout: its labels are drawn from what it says under that layout.

The states are a random residual stream: each layer adds a little, so neighbouring boundaries are alike, as in a real
target. Labels drawn from the draft's own distribution under the planted layout have, in expectation, their least
cross-entropy there: it is the entropy, and any other layout adds the divergence between the two distributions.
"""

from __future__ import annotations

import torch

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.layout_search.data import SearchData
from wiring.model.eagle3 import Eagle3Draft

SHARP = 13.0  # of the fresh head: logits spread by about 4, so that a label is mostly one of a few ids


def random_stream(layers, documents, rows, width, seed, step=0.35):
    """States [L+1, D, T, H], written in place layer by layer."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.empty(layers + 1, documents, rows, width)
    states[0].normal_(generator=generator)
    for b in range(1, layers + 1):
        states[b].normal_(generator=generator).mul_(step).add_(states[b - 1])
    return states


def small_config(**changes):
    config = {
        "hidden_size": 32,
        "target_hidden_size": 24,
        "num_slots": 3,
        "intermediate_size": 48,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "vocab_size": 60,
        "draft_vocab_size": 40,
    }
    return Eagle3Config(**(config | changes))


def planted_draft(config, seed=0):
    """A fresh draft with a sharp head, every norm weight and bias drawn too."""
    generator = torch.Generator().manual_seed(seed + 1)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    ids = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
    draft = Eagle3Draft.fresh(config, embedding, seed, ids)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if parameter.dim() == 1:
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(drawn - 0.5 if name.endswith("bias") else drawn + 0.5)
        draft.lm_head.weight.mul_(SHARP)
    return draft.eval().requires_grad_(False)


def planted_material(draft, layout, layers, documents, rows, seed=0, lengths=None):
    """SearchData whose labels the draft draws under `layout`; some rows do not count."""
    config = draft.config
    generator = torch.Generator().manual_seed(seed + 2)
    states = random_stream(layers, documents, rows, config.target_hidden_size, seed)
    tokens = torch.randint(0, config.vocab_size, (documents, rows + 1), generator=generator)
    labels = torch.empty(documents, rows, dtype=torch.int64)
    with torch.no_grad():
        for d in range(documents):  # one document at a time: a wide draft's logits are large
            fed = states[list(layout), d].transpose(0, 1)[None]  # [1, T, n, H]
            logits = draft.logits(next(draft.hidden_steps(tokens[d : d + 1], fed, 1)))[0]
            labels[d] = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = -1
    ends = torch.full((documents,), rows) if lengths is None else torch.tensor(lengths)
    labels[torch.arange(rows)[None] >= ends[:, None]] = -1
    return SearchData(tokens, states, labels, ends, 0)
