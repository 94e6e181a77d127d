"""Rotary frequencies against transformers' own functions, closed forms and the definitions of the other readers."""

import math

import pytest
import torch

from wiring.checkpoints.rope_config import Rope
from wiring.model.rope import attention_scale, cosines, depends_on_length, frequencies
from wiring.model.torchvision_operators import declare_torchvision_operators

DIM, LENGTH = 16, 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8, "beta_slow": 1}


def read(scaling, flavour, **config):
    return Rope.from_config({"max_position_embeddings": LENGTH, "rope_scaling": scaling} | config, "here", flavour)


def theirs(scaling, length=None, theta=300.0):
    declare_torchvision_operators()
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_theta": theta} | scaling,
    )
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, seq_len=length)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "linear", "factor": 2.5}, None),
        (LLAMA3, None),
        (LLAMA3 | {"original_max_position_embeddings": 5}, None),
        (YARN, None),
        (YARN | {"truncate": False, "beta_fast": 3}, None),
        (YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}, None),
        (YARN | {"mscale": 0.7, "mscale_all_dim": 0.0}, None),
        (YARN | {"attention_factor": 1.4}, None),
        ({"rope_type": "dynamic", "factor": 3.0}, 40),
        ({"rope_type": "dynamic", "factor": 3.0}, 90),
    ],
)
def test_the_transformers_flavour_is_transformers(scaling, length):
    rope = read(scaling, "transformers", rope_theta=300.0)
    inverse, scale = theirs(scaling, length)
    assert torch.allclose(frequencies(rope, DIM, length or 0), inverse, rtol=1e-6)
    assert attention_scale(rope) == pytest.approx(scale)


def test_plain_rotation_in_closed_form():
    positions = torch.tensor([0, 3, 1000])
    cos, sin = cosines(Rope(theta=100.0), 4, positions, [7])
    assert cos.shape == (1, 1, 3, 2)
    for row, position in enumerate(positions.tolist()):
        for j, frequency in enumerate((1.0, 0.1)):
            assert float(cos[0, 0, row, j]) == pytest.approx(math.cos(position * frequency), abs=1e-4)
            assert float(sin[0, 0, row, j]) == pytest.approx(math.sin(position * frequency), abs=1e-4)


@pytest.mark.parametrize("flavour", ["specforge", "transformers", "sglang"])
def test_linear_scaling_slows_every_angle(flavour):
    slowed = cosines(read({"type": "linear", "factor": 4.0}, flavour), DIM, torch.arange(0, 40, 4), [0])
    plain = cosines(read(None, flavour), DIM, torch.arange(10), [0])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(slowed, plain, strict=True))


def test_when_the_base_of_dynamic_scaling_grows():
    """The three readers' rules, each as base x (factor x seen / longest - (factor - 1)) ^ (D / (D - 2))."""
    scaling = {"rope_type": "dynamic", "factor": 2.0}

    def base(flavour, length):
        return float(frequencies(read(scaling, flavour), DIM, length)[1]) ** (-DIM / 2)

    def grown(seen):
        return pytest.approx(10000.0 * (2.0 * seen / LENGTH - 1.0) ** (DIM / (DIM - 2)), rel=1e-4)

    assert [base("transformers", n) for n in (10, 64, 80)] == [pytest.approx(10000.0, rel=1e-4)] * 2 + [grown(80)]
    assert [base("specforge", n) for n in (10, 84, 100)] == [grown(84), grown(84), grown(100)]
    assert [base("sglang", n) for n in (10, 1000)] == [grown(128)] * 2
    alpha = read(scaling | {"alpha": 5.0}, "sglang")
    assert float(frequencies(alpha, DIM)[1]) ** (-DIM / 2) == pytest.approx(1e4 * 5 ** (DIM / (DIM - 2)), rel=1e-4)
    assert [depends_on_length(read(scaling, f)) for f in ("transformers", "specforge", "sglang")] == [True, True, False]


def test_each_text_of_a_batch_has_its_own_length():
    rope = read({"rope_type": "dynamic", "factor": 2.0}, "transformers")
    together = cosines(rope, DIM, torch.arange(90), [40, 90])
    for i, length in enumerate((40, 90)):
        for a, b in zip(together, cosines(rope, DIM, torch.arange(90), [length]), strict=True):
            assert torch.equal(a[i], b[0])


@pytest.mark.parametrize(
    ("flavour", "scaling", "scale"),
    [
        ("specforge", {"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        ("specforge", {"mscale": 1.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ("specforge", {"mscale": 0, "mscale_all_dim": 0}, 1.0),
        ("sglang", {}, 0.1 * math.log(4) + 1),
        ("sglang", {"mscale": 0, "mscale_all_dim": 0}, 1.0),
        ("sglang", {"mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": 1.3}, 1.3),
        ("transformers", {"mscale": 0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
    ],
)
def test_what_yarn_multiplies_cosine_and_sine_by(flavour, scaling, scale):
    rope = read(YARN | scaling, flavour)
    assert rope.flavour == flavour and attention_scale(rope) == pytest.approx(scale)
    cos, sin = cosines(rope, DIM, torch.arange(5), [5])
    assert torch.allclose((cos**2 + sin**2).sqrt(), torch.full_like(cos, scale))


@pytest.mark.parametrize("flavour", ["specforge", "sglang"])
@pytest.mark.parametrize("scaling", [YARN | {"mscale": 1, "mscale_all_dim": 0}, LLAMA3])
def test_frequencies_of_yarn_and_llama3_are_the_same_everywhere(scaling, flavour):
    rope = read(scaling, flavour, rope_theta=300.0)
    assert torch.allclose(frequencies(rope, DIM), theirs(scaling)[0], rtol=1e-6)
