"""The draft's forward pass against a slow draft that decodes row by row with a growing cache."""

import pytest
import torch
from slow_draft import SlowDraft, random_tensors, tiny_config

from wiring.checkpoints.draft_files import checkpoint_from
from wiring.errors import WiringError
from wiring.model import ttt_attention as attention
from wiring.model.eagle3 import Eagle3Config, Eagle3Draft


def pair(seed=0, **changes):
    """The same random weights in both implementations."""
    config = tiny_config(**changes)
    shape = Eagle3Config.from_dict(config, producer="sglang")
    tensors = random_tensors(shape.required_shapes(), seed)
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(seed + 100))
    draft = Eagle3Draft.from_checkpoint(checkpoint_from(config, tensors, producer="sglang"), embedding)
    return draft, SlowDraft(tensors, shape, embedding)


def text(seed, length, slots=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 40, (length,), generator=g), torch.randn(length, slots, 16, generator=g) * 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_output": True},
        {"bias": True},
        {"num_key_value_heads": 4, "head_dim": None},
        {"draft_vocab_size": None},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3]}},
    ],
)
def test_every_row_and_step_equals_decoding_with_a_cache(changes):
    draft, slow = pair(**changes)
    steps, length, slots = 3, 7, draft.config.num_slots
    tokens, states = text(1, length, slots)
    logits = list(draft.unrolled(tokens[None], states[None], steps))
    assert [tuple(x.shape) for x in logits] == [(1, length - 1, draft.config.draft_vocab_size)] * steps
    for t in range(length - 1):
        here = min(steps, length - 1 - t)  # deeper steps have no token in the text
        expected = slow.chain(tokens, states, t, here, teacher=tokens[t + 2 :])
        got = torch.stack([logits[k][0, t] for k in range(here)])
        assert torch.allclose(got.double(), expected, atol=2e-4), (t, (got - expected).abs().max())


def test_teacher_forcing_equals_free_drafting_while_the_text_is_what_was_drafted():
    draft, slow = pair(3)
    tokens, states = text(5, 12)
    t, steps = 6, 5
    free = slow.chain(tokens, states, t, steps)  # fed its own proposals
    proposals = draft.to_target_ids(free.argmax(-1))
    as_text = torch.cat([tokens[: t + 2], proposals])
    more_states = torch.cat([states, text(9, 8)[1]])[: len(as_text)]  # states after row t must not matter
    forced = list(draft.unrolled(as_text[None], more_states[None], steps))
    assert torch.allclose(torch.stack([x[0, t] for x in forced]).double(), free, atol=2e-4)


def test_long_sequences_in_blocks_equal_one_block(monkeypatch):
    draft, _ = pair(2)
    tokens, states = text(2, 30)
    whole = list(draft.unrolled(tokens[None], states[None], 4))
    monkeypatch.setattr(attention, "block_rows", lambda device: 7)
    for a, b in zip(whole, list(draft.unrolled(tokens[None], states[None], 4)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_padding_on_the_right_and_other_sequences_do_not_change_a_row():
    draft, _ = pair(4)
    tokens, states = text(4, 9)
    alone = list(draft.unrolled(tokens[None], states[None], 3))
    padded_tokens = torch.stack([torch.cat([tokens, torch.zeros(5, dtype=torch.int64)]), text(7, 14)[0]])
    padded_states = torch.stack([torch.cat([states, torch.zeros(5, 3, 16)]), text(7, 14)[1]])
    for k, (a, b) in enumerate(zip(alone, list(draft.unrolled(padded_tokens, padded_states, 3)), strict=True)):
        rows = 8 - k  # rows with a token for step k
        assert torch.allclose(a[0, :rows], b[0, :rows], atol=1e-5)


def test_draft_ids_become_target_ids_by_offsets():
    config = tiny_config(draft_vocab_size=4)
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes())
    tensors["d2t"] = torch.tensor([2, 2, 5, 36])
    del tensors["t2d"]
    draft = Eagle3Draft.from_checkpoint(checkpoint_from(config, tensors), torch.zeros(40, 16))
    assert draft.to_target_ids(torch.tensor([[0, 1], [2, 3]])).tolist() == [[2, 3], [7, 39]]


def test_a_trained_draft_comes_back_from_its_checkpoint_tensors():
    config = tiny_config()
    kept = torch.arange(24) + torch.arange(24) // 2
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    fresh = Eagle3Draft.fresh(Eagle3Config.from_dict(config), embedding, seed=7, target_ids=kept)
    stored = fresh.checkpoint_tensors(torch.float32)
    assert stored["t2d"].nonzero().flatten().tolist() == kept.tolist()
    assert (stored["d2t"] + torch.arange(24)).tolist() == kept.tolist()
    again = Eagle3Draft.from_checkpoint(checkpoint_from(config, stored), embedding)
    tokens, states = text(1, 8)
    for a, b in zip(
        list(fresh.unrolled(tokens[None], states[None], 3)),
        list(again.unrolled(tokens[None], states[None], 3)),
        strict=True,
    ):
        assert torch.equal(a, b)
    same_seed = Eagle3Draft.fresh(Eagle3Config.from_dict(config), embedding, seed=7, target_ids=kept)
    assert torch.equal(same_seed.fc.weight, fresh.fc.weight)


def test_gradients_of_deep_steps_equal_finite_differences():
    draft = Eagle3Draft.fresh(Eagle3Config.from_dict(tiny_config()), torch.randn(40, 16), 0).double()
    tokens, states = text(1, 7)

    def loss():
        return sum((x**2).mean() for x in list(draft.unrolled(tokens[None], states[None].double(), 3)))

    loss().backward()
    for name, parameter in draft.named_parameters():
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        slope = float((parameter.grad * direction).sum())
        with torch.no_grad():
            values = []
            for sign in (1, -1):
                parameter.add_(direction, alpha=sign * 1e-6)
                values.append(float(loss()))
                parameter.sub_(direction, alpha=sign * 1e-6)
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-9), name


def test_states_of_the_drafts_own_width_pass_by_fc_as_in_sglang():
    """With one slot as wide as the draft, SGLang cannot tell target states from fed-back ones and skips fc."""
    draft, _ = pair(eagle_config={"eagle_aux_hidden_state_layer_ids": [2]})
    states = torch.randn(1, 5, 1, 16)
    assert torch.equal(draft.project(states), states[:, :, 0])


def test_the_rows_that_are_counted_are_all_that_the_head_needs():
    draft, _ = pair(6)
    tokens, states = text(6, 9)
    whole = list(draft.unrolled(tokens[None], states[None], 3))
    for k, hidden in enumerate(draft.hidden_steps(tokens[None], states[None], 3)):
        assert torch.allclose(draft.logits(hidden[0, [1, 4]]), whole[k][0, [1, 4]], atol=1e-6)


def test_padding_does_not_change_a_row_under_dynamic_scaling_when_lengths_are_given():
    scaling = {"max_position_embeddings": 4, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    config = tiny_config(**scaling)
    tensors = random_tensors(Eagle3Config.from_dict(config, producer="modelopt").required_shapes())
    checkpoint = checkpoint_from(config, tensors, producer="modelopt")
    draft = Eagle3Draft.from_checkpoint(checkpoint, torch.randn(40, 16, generator=torch.Generator().manual_seed(1)))
    tokens, states = text(4, 14)
    alone = list(draft.unrolled(tokens[None, :9], states[None, :9], 3))
    assert draft.depends_on_length and not pair()[0].depends_on_length

    def padded(lengths):
        steps = draft.hidden_steps(tokens.expand(2, -1), states.expand(2, -1, -1, -1), 3, lengths)
        return [draft.logits(hidden) for hidden in steps]

    for k, (a, b, c) in enumerate(zip(alone, padded([9, 14]), padded(None), strict=True)):
        assert torch.allclose(a[0, : 8 - k], b[0, : 8 - k], atol=1e-5)
        assert not torch.allclose(a[0, 1 : 8 - k], c[0, 1 : 8 - k], atol=1e-3)


def test_embedding_and_head_are_the_drafts_own_or_the_targets():
    config = tiny_config(draft_vocab_size=None)
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes())
    g = torch.Generator().manual_seed(3)
    own, target, head = (torch.randn(40, 16, generator=g) for _ in range(3))
    tokens, states = text(3, 6)

    def first(names, producer="specforge", **given):
        held = tensors | names
        held = {name: tensor for name, tensor in held.items() if tensor is not None}
        draft = Eagle3Draft.from_checkpoint(checkpoint_from(config, held, producer=producer), **given)
        return list(draft.unrolled(tokens[None], states[None], 1))[0]

    with_own = first({"embed_tokens.weight": own}, embedding=target)
    assert torch.equal(with_own, first({}, embedding=own))
    assert torch.equal(first({"embed_tokens.weight": own}, "sglang", embedding=target), first({}, embedding=target))
    assert not torch.allclose(with_own, first({}, embedding=target))
    shared = first({"lm_head.weight": None}, embedding=own, head=head)
    assert torch.equal(shared, first({"lm_head.weight": head}, embedding=own, head=own))
    with pytest.raises(WiringError) as error:
        first({})
    assert error.value.code == "embedding-missing"
    with pytest.raises(WiringError) as error:
        first({"lm_head.weight": None}, embedding=own)
    assert (error.value.code, error.value.expected) == ("draft-tensor-missing", "[40, 16]")


def test_half_precision_is_near_and_the_device_is_the_callers():
    config, tensors = tiny_config(), None
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes())
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    checkpoint = checkpoint_from(config, tensors, producer="specforge")
    tokens, states = text(2, 40)
    whole = list(Eagle3Draft.from_checkpoint(checkpoint, embedding).unrolled(tokens[None], states[None], 3))
    half = Eagle3Draft.from_checkpoint(checkpoint, embedding, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert half.embedding.dtype == half.fc.weight.dtype == torch.bfloat16
    for a, b in zip(whole, list(half.unrolled(tokens[None], states[None].bfloat16(), 3)), strict=True):
        assert b.dtype == torch.bfloat16 and (a - b.float()).norm() < 0.05 * a.norm()


def test_what_does_not_fit_is_refused():
    config = Eagle3Config.from_dict(tiny_config())
    with pytest.raises(WiringError) as error:
        Eagle3Draft.fresh(config, torch.zeros(40, 8), 0)
    assert (error.value.code, error.value.found) == ("embedding-shape", "[40, 8]")
    draft, _ = pair()
    with pytest.raises(WiringError) as error:
        list(draft.unrolled(torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 5, 4, 16), 1))
    assert (error.value.code, error.value.found) == ("fc-input-shape", "4 states of width 16")
