"""A second, slow EAGLE-3 draft for the tests: one row at a time, a growing key-value cache, float64, plain tensors.

It works as a serving engine does. Rows 0..t enter the cache with the target's states; then a chain of steps goes on
from row t, each step appending one key and value at the next position. Nothing is shared with the package's unroll.
"""

from __future__ import annotations

import cmath
import math

import torch

from wiring.checkpoints.draft_config import Eagle3Config


class SlowDraft:
    """`tensors` by canonical name, `config` the dict of config.json or an Eagle3Config, `embedding` [V, H]."""

    def __init__(self, tensors, config, embedding):
        self.w = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.c = Eagle3Config.from_dict(config, producer="sglang") if isinstance(config, dict) else config
        self.embedding = embedding.double()
        self.prefix = []  # what rows 0.. left behind: (tokens so far, states, cache entry, logits, hidden)

    def chain(self, tokens, states, t, steps, teacher=None):
        """Logits [steps, Vd] of a chain from row t. `tokens` known up to x_{t+1}, `states` [>= t+1, n, H].

        Step k > 0 is fed teacher[k-1] or, without a teacher, its own previous proposal as a target id.
        """
        cache = []  # per row of step 0, then per step: per layer (rotated keys, values)
        for row in range(t + 1):
            known = [int(token) for token in tokens[: row + 2]]
            if row < len(self.prefix) and self.prefix[row][0] == known and self.prefix[row][1] is states:
                _, _, entry, logits, hidden = self.prefix[row]
                cache.append(entry)
                continue
            state = self.fuse(states[row].double())
            logits, hidden = self.step(known[-1], state, row, row, cache)
            self.prefix[row:] = [(known, states, cache[-1], logits, hidden)]
        out = [logits]
        for k in range(1, steps):
            token = int(teacher[k - 1]) if teacher is not None else self.target_id(int(out[-1].argmax()))
            logits, hidden = self.step(token, hidden, t, t + k, cache)
            out.append(logits)
        return torch.stack(out)

    def target_id(self, draft_id):
        return draft_id + int(self.w["d2t"][draft_id]) if "d2t" in self.w else draft_id

    def fuse(self, state):
        if self.c.norm_before_fc:
            state = self.norm(state.flatten(), "input_norm.weight").view_as(state)
        if self.c.fc_norm:
            state = torch.stack([self.norm(slot, f"fc_norm.{i}.weight") for i, slot in enumerate(state)])
        return self.linear(state.flatten(), "fc")

    def norm(self, x, name):
        return x / math.sqrt(float((x * x).mean()) + self.c.rms_norm_eps) * self.w[name]

    def linear(self, x, name):
        return self.w[f"{name}.weight"] @ x + self.w.get(f"{name}.bias", 0.0)

    def rotate(self, head, position):
        """Turn the complex numbers (first half) + i (second half) by position x frequency."""
        half, out = self.c.head_dim // 2, head.clone()
        for j in range(half):
            turn = cmath.exp(1j * (position + self.c.first_position) * frequency(self.c.rope, self.c.head_dim, j))
            z = complex(head[j], head[j + half]) * turn
            out[j], out[j + half] = z.real, z.imag
        return out

    def step(self, token, hidden, row, position, cache):
        c, entry = self.c, []
        cache.append(entry)
        for i in range(c.num_layers):
            layer, residual = f"layers.{i}.", hidden
            if i == 0:
                state = self.norm(hidden, layer + "input_layernorm.weight") if c.input_norm_twice else hidden
                state = self.norm(state, layer + "hidden_norm.weight")
                residual = state if c.norm_before_residual else hidden
                x = torch.cat([self.norm(self.embedding[token], layer + "input_layernorm.weight"), state])
            else:
                x = self.norm(hidden, f"{layer}{c.deeper_norm}.weight")
            q, k, v = (
                list(self.linear(x, f"{layer}self_attn.{name}_proj").view(-1, c.head_dim)) for name in ("q", "k", "v")
            )
            if c.qk_norm:
                q = [self.norm(head, layer + "self_attn.q_norm.weight") for head in q]
                k = [self.norm(head, layer + "self_attn.k_norm.weight") for head in k]
            entry.append(([self.rotate(head, position) for head in k], v))
            seen = [
                past[i] for j, past in enumerate(cache) if j > row or c.windows[i] is None or row - c.windows[i] < j
            ]
            mixed = []
            for h in range(c.num_heads):
                shared = h * c.num_kv_heads // c.num_heads
                query = self.rotate(q[h], position)
                scores = torch.stack([query @ keys[shared] for keys, _ in seen]) / math.sqrt(c.head_dim)
                weights = torch.exp(scores - scores.max())
                weights = weights / weights.sum()
                mixed.append(sum(a * values[shared] for a, (_, values) in zip(weights, seen, strict=True)))
            hidden = residual + self.linear(torch.cat(mixed), layer + "self_attn.o_proj")
            y = self.norm(hidden, layer + "post_attention_layernorm.weight")
            gate, up = self.linear(y, layer + "mlp.gate_proj"), self.linear(y, layer + "mlp.up_proj")
            act = {"silu": lambda z: z / (1 + torch.exp(-z)), "relu": lambda z: z.clamp(min=0)}[c.hidden_act]
            hidden = hidden + self.linear(act(gate) * up, layer + "mlp.down_proj")
        normed = self.norm(hidden, "norm.weight") if c.head_norm or c.norm_output else None
        logits = self.w["lm_head.weight"] @ (normed if c.head_norm else hidden)
        return logits, normed if c.norm_output else hidden


def frequency(rope, dim, j):
    """Angle per position of channel pair j, in closed form: no scaling, linear or llama3."""
    plain = rope.theta ** (-2 * j / dim)
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "llama3":
        turns = rope.original_max_position_embeddings * plain / (2 * math.pi)  # in the original length
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        return kept * plain + (1 - kept) * plain / rope.factor
    return plain


def tiny_config(**changes):
    """config.json of a tiny draft: width 16, three slots, 24 of 40 ids."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 40,
        "draft_vocab_size": 24,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    } | changes


def random_tensors(shapes, seed=0, vocab=40):
    """Random checkpoint tensors of the given shapes; d2t maps to a random ascending choice of the target's ids."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        if name == "d2t":
            ids = torch.randperm(vocab, generator=g)[: shape[0]].sort().values
            tensors["d2t"] = ids - torch.arange(shape[0])
            tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).scatter(0, ids, True)
        elif len(shape) == 1:
            tensors[name] = 1 + 0.3 * torch.randn(shape, generator=g)
        else:
            tensors[name] = torch.randn(shape, generator=g) * 1.5 / shape[-1] ** 0.5
    return tensors
