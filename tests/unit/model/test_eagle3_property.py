"""For random small drafts of every variant, the batched and cached unroll equals decoding row by row."""

from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_draft import SlowDraft, random_tensors

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import DraftCheckpoint
from wiring.checkpoints.rope_config import Rope
from wiring.model import ttt_attention as attention
from wiring.model.eagle3 import Eagle3Draft

VOCAB = 20
ROPES = st.one_of(
    st.builds(Rope, theta=st.sampled_from([20.0, 500.0, 1e4])),
    st.builds(
        Rope,
        type=st.just("linear"),
        factor=st.floats(1, 8),
        flavour=st.sampled_from(["specforge", "transformers", "sglang"]),
    ),
    st.builds(
        Rope,
        type=st.just("llama3"),
        theta=st.just(50.0),
        factor=st.floats(1, 8),
        original_max_position_embeddings=st.integers(8, 200),
    ),
)


@st.composite
def shapes(draw):
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    layers = draw(st.integers(1, 3))
    return Eagle3Config(
        hidden_size=draw(st.sampled_from([6, 8])),
        target_hidden_size=draw(st.sampled_from([4, 6, 10])),
        num_slots=draw(st.integers(1, 4)),
        intermediate_size=draw(st.integers(1, 9)),
        num_heads=kv_heads * groups,
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 4, 6])),
        vocab_size=VOCAB,
        draft_vocab_size=draw(st.sampled_from([7, VOCAB])),
        rms_norm_eps=draw(st.sampled_from([1e-6, 1e-2])),
        rope=draw(ROPES),
        num_layers=layers,
        windows=tuple(draw(st.one_of(st.none(), st.integers(1, 12))) for _ in range(layers)),
        hidden_act=draw(st.sampled_from(["silu", "relu"])),
        first_position=draw(st.integers(0, 1)),
        deeper_norm=draw(st.sampled_from(["hidden_norm", "input_layernorm"])),
        skips_narrow_fc=False,
        **{
            flag: draw(st.booleans())
            for flag in (
                "norm_output",
                "head_norm",
                "fc_bias",
                "norm_before_residual",
                "norm_before_fc",
                "fc_norm",
                "attention_bias",
                "output_bias",
                "mlp_bias",
                "qk_norm",
                "input_norm_twice",
            )
        },
    )


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(shapes(), st.lists(st.integers(2, 10), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 9), st.data())
def test_every_row_and_step_equals_decoding_with_a_cache(shape, lengths, steps, rows, data):
    """Ragged batches, blocks of any size, chains of any depth; a few rows of each sequence are decoded slowly."""
    tensors = random_tensors(shape.required_shapes(), 1, VOCAB)
    g = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, shape.hidden_size, generator=g)
    draft = Eagle3Draft.from_checkpoint(DraftCheckpoint(Path("draft"), {}, tensors, shape, "specforge"), embedding)
    slow = SlowDraft(tensors, shape, embedding)
    longest = max(lengths)
    tokens = torch.randint(0, VOCAB, (len(lengths), longest), generator=g)
    states = 2 * torch.randn(len(lengths), longest, shape.num_slots, shape.target_hidden_size, generator=g)
    before, attention.block_rows = attention.block_rows, lambda device: rows
    try:
        logits = torch.stack(list(draft.unrolled(tokens, states, steps)))  # [K, B, T, Vd]
    finally:
        attention.block_rows = before
    assert logits.shape == (steps, len(lengths), longest - 1, shape.draft_vocab_size)
    _rows_left_out_change_no_others(draft, tokens, states, logits)
    for i, length in enumerate(lengths):
        t = data.draw(st.integers(0, length - 2))
        here = min(steps, length - 1 - t)
        expected = slow.chain(tokens[i, :length], states[i, :length], t, here, teacher=tokens[i, t + 2 : length])
        scale = expected.abs().amax(-1, keepdim=True).clamp(min=1.0)
        assert (((logits[:here, i, t].double() - expected) / scale).abs() < 1e-4).all()


def _rows_left_out_change_no_others(draft, tokens, states, logits):
    """Ever fewer rows are asked for; those that are come out as if all were."""
    g = torch.Generator().manual_seed(7)
    left, masks = torch.ones(logits.shape[1:3], dtype=torch.bool), []
    for _ in logits:
        left = left & (torch.rand(left.shape, generator=g) < 0.7)
        masks.append(left)
    steps = draft.hidden_steps(tokens, states, len(logits), keep=lambda step: masks[step])
    for full, mask, hidden in zip(logits, masks, steps, strict=True):
        torch.testing.assert_close(draft.logits(hidden)[mask], full[mask], rtol=1e-4, atol=1e-4)


def test_the_slow_draft_notices_every_flag():
    """Each variant changes the slow draft's numbers, so that the property above cannot hold by ignoring it."""
    plain = Eagle3Config(
        hidden_size=8,
        target_hidden_size=6,
        num_slots=3,
        intermediate_size=9,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        num_layers=2,
        windows=(None, None),
        rope=Rope(theta=50.0),
    )
    g = torch.Generator().manual_seed(5)
    embedding = torch.randn(VOCAB, 8, generator=g)
    tokens, states = torch.randint(0, VOCAB, (9,), generator=g), torch.randn(9, 3, 6, generator=g)
    whole = replace(
        plain,
        fc_bias=True,
        norm_before_fc=True,
        fc_norm=True,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=True,
    )
    shapes = whole.required_shapes() | replace(whole, deeper_norm="input_layernorm").required_shapes()
    tensors = random_tensors(shapes, 4, VOCAB)

    def numbers(shape):
        known = {name: t for name, t in tensors.items() if name in shape.required_shapes()}
        return SlowDraft(known, shape, embedding).chain(tokens, states, 5, 3, teacher=tokens[7:])

    first = numbers(plain)
    for change in (
        {"norm_output": True},
        {"head_norm": False},
        {"fc_bias": True},
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"attention_bias": True},
        {"output_bias": True},
        {"mlp_bias": True},
        {"qk_norm": True},
        {"input_norm_twice": True},
        {"deeper_norm": "input_layernorm"},
        {"windows": (3, None)},
        {"windows": (None, 3)},
        {"hidden_act": "relu"},
        {"num_layers": 1},
        {"rope": Rope(theta=50.0, type="linear", factor=2.0)},
    ):
        assert (numbers(replace(plain, **change)) - first).abs().max() > 1e-3, change
