"""An EAGLE-3 draft's config.json: the fields that shape its tensors and its forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wiring.errors import WiringError

DEFAULT_SLOTS = 3  # what engines and trainers assume when the config names no layer ids
_CHANGES_FORWARD = ("fc_norm", "use_aux_norm", "norm_before_fc", "norm_before_residual", "attention_bias", "mlp_bias")


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and constants of a one-layer Llama-style EAGLE-3 draft. Widths are numbers of features."""

    hidden_size: int
    target_hidden_size: int  # width of one captured state
    num_slots: int  # captured states that `fc` takes side by side
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # the target's ids
    draft_vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    norm_output: bool = False  # True: the normed state is fed back to the next step
    fc_bias: bool = False

    @classmethod
    def from_dict(cls, config: dict[str, Any], where: object = "config.json") -> Eagle3Config:
        """Read the flat config of SpecForge and SafeAILab drafts.

        Raises WiringError for a missing or non-positive size, and for a field that asks for another forward pass
        than the one implemented (more layers, other activation, RoPE scaling, extra norms or biases).
        """
        _refuse_other_forward(config, where)

        def size(name: str, default: int | None = None) -> int:
            value = config.get(name)
            value = default if value is None else value
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise WiringError(
                    f"the draft's {name} is not a size",
                    where=where,
                    expected="a whole number above 0",
                    found=repr(value),
                )
            return value

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        kv_heads = size("num_key_value_heads", heads)
        head_dim = size("head_dim", hidden // heads or 1)
        if heads % kv_heads or head_dim % 2:
            raise WiringError(
                "the draft's attention heads do not divide",
                where=where,
                expected="num_attention_heads a multiple of num_key_value_heads, head_dim even",
                found=f"{heads} heads, {kv_heads} key-value heads, head_dim {head_dim}",
            )
        vocab = size("vocab_size")
        return cls(
            hidden_size=hidden,
            target_hidden_size=size("target_hidden_size", hidden),
            num_slots=num_slots(config),
            intermediate_size=size("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab,
            draft_vocab_size=size("draft_vocab_size", vocab),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
            norm_output=bool(config.get("norm_output", False)),
            fc_bias=bool(config.get("bias", False)),
        )

    @property
    def has_vocab_map(self) -> bool:
        """Whether draft ids differ from target ids, so that d2t is needed."""
        return self.draft_vocab_size != self.vocab_size

    def required_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor that the checkpoint must hold, by name."""
        h, width, inner = self.hidden_size, self.num_heads * self.head_dim, self.intermediate_size
        kv_width = self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (h, self.num_slots * self.target_hidden_size),
            "midlayer.self_attn.q_proj.weight": (width, 2 * h),
            "midlayer.self_attn.k_proj.weight": (kv_width, 2 * h),
            "midlayer.self_attn.v_proj.weight": (kv_width, 2 * h),
            "midlayer.self_attn.o_proj.weight": (h, width),
            "midlayer.mlp.gate_proj.weight": (inner, h),
            "midlayer.mlp.up_proj.weight": (inner, h),
            "midlayer.mlp.down_proj.weight": (h, inner),
            "midlayer.input_layernorm.weight": (h,),
            "midlayer.hidden_norm.weight": (h,),
            "midlayer.post_attention_layernorm.weight": (h,),
            "norm.weight": (h,),
            "lm_head.weight": (self.draft_vocab_size, h),
        }
        if self.fc_bias:
            shapes["fc.bias"] = (h,)
        if self.has_vocab_map:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every further tensor that is known: vocabulary maps and a copy of the target's embedding."""
        return {
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
            "embed_tokens.weight": (self.vocab_size, self.hidden_size),
        }


def num_slots(config: dict[str, Any]) -> int:
    """Number of states that `fc` takes, as SGLang 0.5.23 reads it: explicit count, else nested layer ids, else 3."""
    if config.get("num_aux_hidden_states") is not None:
        return int(config["num_aux_hidden_states"])
    nested = config.get("eagle_config") or {}
    return len(nested.get("eagle_aux_hidden_state_layer_ids") or ()) or DEFAULT_SLOTS


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _refuse_other_forward(config: dict[str, Any], where: object) -> None:
    """Refuse what would be computed differently here and in serving, rather than give wrong numbers."""
    nested = config.get("eagle_config") or {}
    found: dict[str, Any] = {n: config.get(n) or nested.get(n) for n in _CHANGES_FORWARD}
    if config.get("num_hidden_layers", 1) != 1:
        found["num_hidden_layers"] = config["num_hidden_layers"]
    if config.get("hidden_act", "silu") != "silu":
        found["hidden_act"] = config["hidden_act"]
    rope_type = _rope(config).get("rope_type", _rope(config).get("type", "default"))
    if rope_type != "default":
        found["RoPE scaling"] = rope_type
    if config.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        found["partial_rotary_factor"] = config["partial_rotary_factor"]
    asked = {name: value for name, value in found.items() if value}
    if asked:
        raise WiringError(
            "this draft asks for a forward pass that is not implemented here",
            where=where,
            expected="a one-layer Llama draft with plain RoPE",
            found=", ".join(f"{name} = {value}" for name, value in asked.items()),
            remedy="Its numbers would be wrong, so nothing was computed",
        )
