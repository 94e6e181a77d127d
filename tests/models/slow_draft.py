"""A second, slow EAGLE-3 draft for the tests: one row at a time, a growing key-value cache, float64, plain tensors.

It works as a serving engine does. Rows 0..t enter the cache with the target's states; then a chain of steps goes on
from row t, each step appending one key and value at the next position. Nothing is shared with the package's unroll.
"""

from __future__ import annotations

import cmath
import math

import torch


class SlowDraft:
    """`tensors` by checkpoint name, `config` the dict of config.json, `embedding` [V, H]."""

    def __init__(self, tensors, config, embedding):
        self.w = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.c, self.embedding = config, embedding.double()
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.prefix = []  # what rows 0.. left behind: (tokens so far, states, cache entry, logits, hidden)
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads

    def chain(self, tokens, states, t, steps, teacher=None):
        """Logits [steps, Vd] of a chain from row t. `tokens` known up to x_{t+1}, `states` [>= t+1, n, H].

        Step k > 0 is fed teacher[k-1] or, without a teacher, its own previous proposal as a target id.
        """
        cache = []
        for row in range(t + 1):
            known = [int(token) for token in tokens[: row + 2]]
            if row < len(self.prefix) and self.prefix[row][0] == known and self.prefix[row][1] is states:
                _, _, entry, logits, hidden = self.prefix[row]
                cache.append(entry)
                continue
            state = self.fuse(states[row].double().flatten())
            logits, hidden = self.step(known[-1], state, row, cache)
            self.prefix[row:] = [(known, states, cache[-1], logits, hidden)]
        out = [logits]
        for k in range(1, steps):
            token = int(teacher[k - 1]) if teacher is not None else self.target_id(int(out[-1].argmax()))
            logits, hidden = self.step(token, hidden, t + k, cache)
            out.append(logits)
        return torch.stack(out)

    def target_id(self, draft_id):
        return draft_id + int(self.w["d2t"][draft_id]) if "d2t" in self.w else draft_id

    def fuse(self, state):
        bias = self.w.get("fc.bias", 0.0)
        return self.w["fc.weight"] @ state + bias

    def norm(self, x, name):
        return x / math.sqrt(float((x * x).mean()) + self.c.get("rms_norm_eps", 1e-6)) * self.w[name]

    def rotate(self, head, position):
        """Turn the complex numbers (first half) + i (second half) by position / theta^(2j/D)."""
        half, theta, out = self.dim // 2, self.c.get("rope_theta", 10000.0), head.clone()
        for j in range(half):
            z = complex(head[j], head[j + half]) * cmath.exp(1j * position * theta ** (-2 * j / self.dim))
            out[j], out[j + half] = z.real, z.imag
        return out

    def step(self, token, hidden, position, cache):
        w, layer = self.w, "layers.0."
        x = torch.cat([
            self.norm(self.embedding[token], layer + "input_layernorm.weight"),
            self.norm(hidden, layer + "hidden_norm.weight"),
        ])  # fmt: skip
        q = (w[layer + "self_attn.q_proj.weight"] @ x).view(self.heads, self.dim)
        k = (w[layer + "self_attn.k_proj.weight"] @ x).view(self.kv_heads, self.dim)
        v = (w[layer + "self_attn.v_proj.weight"] @ x).view(self.kv_heads, self.dim)
        cache.append(([self.rotate(h, position) for h in k], v))
        mixed = []
        for h in range(self.heads):
            shared = h * self.kv_heads // self.heads
            query = self.rotate(q[h], position)
            scores = torch.stack([query @ keys[shared] for keys, _ in cache]) / math.sqrt(self.dim)
            weights = torch.exp(scores - scores.max())
            weights = weights / weights.sum()
            mixed.append(sum(a * values[shared] for a, (_, values) in zip(weights, cache, strict=True)))
        hidden = hidden + w[layer + "self_attn.o_proj.weight"] @ torch.cat(mixed)
        y = self.norm(hidden, layer + "post_attention_layernorm.weight")
        gate = w[layer + "mlp.gate_proj.weight"] @ y
        up = w[layer + "mlp.up_proj.weight"] @ y
        hidden = hidden + w[layer + "mlp.down_proj.weight"] @ (gate / (1 + torch.exp(-gate)) * up)
        normed = self.norm(hidden, "norm.weight")
        logits = w["lm_head.weight"] @ normed
        return logits, normed if self.c.get("norm_output") else hidden


def tiny_config(**changes):
    """config.json of a tiny draft: width 16, three slots, 24 of 40 ids."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "vocab_size": 40, "draft_vocab_size": 24, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    } | changes  # fmt: skip


def random_tensors(shapes, seed=0):
    """Random checkpoint tensors of the given shapes; d2t maps to a random ascending choice of the 40 ids."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        if name == "d2t":
            ids = torch.randperm(40, generator=g)[: shape[0]].sort().values
            tensors["d2t"] = ids - torch.arange(shape[0])
            tensors["t2d"] = torch.zeros(40, dtype=torch.bool).scatter(0, ids, True)
        elif len(shape) == 1:
            tensors[name] = 1 + 0.3 * torch.randn(shape, generator=g)
        else:
            tensors[name] = torch.randn(shape, generator=g) * 1.5 / shape[-1] ** 0.5
    return tensors
