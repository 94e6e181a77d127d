"""An EAGLE-3 draft's config.json: the fields that shape its tensors and its forward pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wiring.checkpoints.config_fields import IDS, check_fields, not_implemented, required_size
from wiring.checkpoints.draft_producers import check_architecture, detect_producer, layer_config, windows
from wiring.checkpoints.rope_config import Rope
from wiring.errors import WiringError

DEFAULT_SLOTS = 3  # what engines and trainers assume when the config names no layer ids
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")
MEANINGS = ("head", "feedback")  # of `norm_output`
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and forward pass of an EAGLE-3 draft of Llama-style layers. Widths are numbers of features.

    The first layer's attention reads [input_layernorm(embedding), hidden_norm(state)]; deeper layers read the stream
    after `deeper_norm`. Whether embedding and lm_head are the draft's own is decided by its tensors, not here.
    """

    hidden_size: int
    target_hidden_size: int  # width of one captured state
    num_slots: int  # captured states that are concatenated for `fc`
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # the target's ids
    draft_vocab_size: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope()
    norm_output: bool = False  # True: the normed state is fed back to the next step
    head_norm: bool = True  # False: lm_head sees the state as it is
    fc_bias: bool = False
    num_layers: int = 1
    norm_before_residual: bool = False  # the first layer's residual is the normed state
    norm_before_fc: bool = False  # input_norm over the concatenated slots
    fc_norm: bool = False  # fc_norm.{i} over each slot
    attention_bias: bool = False  # of q, k and v
    output_bias: bool = False  # of o
    mlp_bias: bool = False
    qk_norm: bool = False  # each head's query and key normed before the rotation
    deeper_norm: Literal["hidden_norm", "input_layernorm"] = "hidden_norm"  # before attention in layers > 0
    windows: tuple[int | None, ...] = (None,)  # per layer: keys that a row sees, itself included; None: all
    hidden_act: str = "silu"
    first_position: int = 0  # RoPE position of row 0 in step 0
    skips_narrow_fc: bool = True  # SGLang passes states by fc, and by its norms, that are as wide as the draft
    input_norm_twice: bool = False  # hidden_norm(input_layernorm(state)); see `Finding` "double norm"

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], where: object = "config.json", producer: str = "", norm_output: str = ""
    ) -> Eagle3Config:
        """Read a config as its producer reads it; `producer` "" is detected from the config.

        `norm_output` overrides what a true or false `norm_output` in the config means: "head" (whether a norm precedes
        lm_head; the state fed back is never normed), "feedback" (whether the normed state is fed back; a norm always
        precedes lm_head). "" is the producer's own meaning: SpecForge 0.2.0 "head", all others "feedback".
        Raises WiringError for a missing or invalid field, and for a forward pass that is not implemented (latent
        attention, other activations, other rotary embeddings, quantized weights).
        """
        check_fields(config, where)
        producer = producer or detect_producer(config)
        check_architecture(config, producer, where)
        if norm_output not in ("", *MEANINGS):
            raise WiringError(
                "norm_output has two meanings",
                code="norm-output-meaning-unknown",
                where="norm_output",
                expected=" or ".join(MEANINGS),
                found=norm_output,
                remedy="Pass one of them",
            )
        meaning = norm_output or ("head" if producer == "specforge" else "feedback")
        layer = layer_config(config, where) if producer == "speculators" else config
        fields = _sizes(layer, config, producer, where)
        fields |= _speculators(layer, config, where) if producer == "speculators" else _flat(config, producer)
        flag = config.get("norm_output", meaning == "head")  # where it is missing, both meanings agree
        fields |= {"head_norm": bool(flag)} if meaning == "head" else {"norm_output": bool(flag)}
        nested = config.get("eagle_config") or {}
        if producer == "modelopt" and nested.get("use_last_layernorm") is False:
            fields["head_norm"] = False
        rope = Rope.from_config(layer, where, producer if producer in ("specforge", "sglang") else "transformers")
        return cls(**fields, rope=rope)

    @property
    def has_vocab_map(self) -> bool:
        """Whether draft ids differ from target ids, which needs d2t."""
        return self.draft_vocab_size != self.vocab_size

    @property
    def fc_width(self) -> int:
        """Features that `fc` takes."""
        return self.num_slots * self.target_hidden_size

    def required_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that the checkpoint must hold, by canonical name."""
        h = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, self.fc_width)}
        for i in range(self.num_layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in self._layer_shapes(i).items()}
        if self.head_norm or self.norm_output:
            shapes["norm.weight"] = (h,)
        shapes["lm_head.weight"] = (self.draft_vocab_size, h)
        if self.fc_bias:
            shapes["fc.bias"] = (h,)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (self.fc_width,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden_size,) for i in range(self.num_slots)}
        if self.has_vocab_map:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of further tensors that are read: vocabulary maps and a copy of the target's embedding."""
        return {
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
            "embed_tokens.weight": (self.vocab_size, self.hidden_size),
        }

    def _layer_shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        h, inner = self.hidden_size, self.intermediate_size
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        reads = 2 * h if index == 0 else h
        norms = ("input_layernorm", "hidden_norm") if index == 0 else (self.deeper_norm,)
        attention = {"q": (width, reads), "k": (kv_width, reads), "v": (kv_width, reads), "o": (h, width)}
        mlp = {"gate": (inner, h), "up": (inner, h), "down": (h, inner)}
        sizes = {f"self_attn.{name}_proj": size for name, size in attention.items()}
        sizes |= {f"mlp.{name}_proj": size for name, size in mlp.items()}
        biased = [f"self_attn.{name}_proj" for name in "qkv" if self.attention_bias]
        biased += ["self_attn.o_proj"] * self.output_bias + [f"mlp.{name}_proj" for name in mlp if self.mlp_bias]
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": size for name, size in sizes.items()}
        shapes |= {f"{norm}.weight": (h,) for norm in (*norms, "post_attention_layernorm")}
        shapes |= {f"{name}.bias": sizes[name][:1] for name in biased}
        if self.qk_norm:
            shapes |= {f"self_attn.{name}_norm.weight": (self.head_dim,) for name in "qk"}
        return shapes


def named_slots(config: Mapping[str, Any], producer: str) -> int | None:
    """Return the number of slots that the config names; None if only the default of 3 is left.

    Outside speculators an explicit count precedes the nested layer ids, as in SGLang 0.5.23.
    """
    if producer != "speculators" and config.get("num_aux_hidden_states") is not None:
        return int(config["num_aux_hidden_states"])
    return len(recorded_ids(config, producer)[0] or ()) or None


def recorded_ids(config: Mapping[str, Any], producer: str) -> tuple[tuple[int, ...] | None, str]:
    """Return the layer ids where the producer writes them (None: there are none), and the name of that field.

    speculators writes them at the top level, all others nested in eagle_config.
    """
    flat = producer != "speculators"
    ids = ((config.get("eagle_config") or {}) if flat else config).get(IDS)
    return (tuple(ids) if ids else None), f"eagle_config.{IDS}" if flat else IDS


@dataclass(frozen=True)
class Sharing:
    """Where the embedding and the head come from; "embedding" is a head tied to the embedding in use."""

    embedding: Literal["draft", "target"]
    head: Literal["draft", "target", "embedding"]


def sharing(shape: Eagle3Config, config: Mapping[str, Any], producer: str, names: Collection[str]) -> Sharing:
    """Decide which embedding and lm_head a draft uses if its file holds tensors of the canonical `names`.

    Trainers use the draft's own tensors if the file has them. SGLang 0.5.23 follows the config alone
    (`srt/speculative/eagle_worker_v2.py`, `init_lm_head`; `srt/models/llama_eagle3.py`; `LlamaForCausalLM.set_embed`):
    the embedding is the target's, unless the draft has another width than the target; a null draft_vocab_size selects
    the target's lm_head, tie_word_embeddings the embedding as lm_head. What the file holds instead is overwritten.
    """
    if producer != "sglang":
        own_head = HEAD in names or shape.has_vocab_map
        return Sharing("draft" if EMBEDDING in names else "target", "draft" if own_head else "target")
    embedding = "target" if shape.target_hidden_size == shape.hidden_size else "draft"
    if config.get("tie_word_embeddings"):
        return Sharing(embedding, "embedding")
    return Sharing(embedding, "target" if config.get("draft_vocab_size") is None else "draft")


def _sizes(layer: Mapping[str, Any], config: Mapping[str, Any], producer: str, where: object) -> dict[str, Any]:
    def size(name: str, default: int | None = None, of: Mapping[str, Any] = layer) -> int:
        return required_size(of, name, where, default)

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    kv_heads = size("num_key_value_heads", heads)
    head_dim = size("head_dim", hidden // heads or 1)
    if heads % kv_heads or head_dim % 2:
        raise WiringError(
            "the draft's attention heads do not divide",
            code="draft-heads-do-not-divide",
            where=where,
            expected="num_attention_heads a multiple of num_key_value_heads, head_dim even",
            found=f"{heads} heads, {kv_heads} key-value heads, head_dim {head_dim}",
            remedy="Correct the config",
        )
    vocab = size("vocab_size")
    drafted = size("draft_vocab_size", 32000 if producer == "speculators" else vocab, of=config)
    if drafted > vocab:
        raise WiringError(
            "the draft's vocabulary is larger than the target's",
            code="draft-vocabulary-too-large",
            where=where,
            expected=f"draft_vocab_size up to {vocab}",
            found=drafted,
            remedy="Correct the config",
        )
    return {
        "hidden_size": hidden,
        "target_hidden_size": size("target_hidden_size", hidden, of=config),
        "num_slots": named_slots(config, producer) or DEFAULT_SLOTS,
        "intermediate_size": size("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "draft_vocab_size": drafted,
        "rms_norm_eps": float(layer.get("rms_norm_eps") or 1e-6),
        "num_layers": size("num_hidden_layers", 1),
        "hidden_act": _activation(layer, producer, where),
    }


def _activation(layer: Mapping[str, Any], producer: str, where: object) -> str:
    name = str(layer.get("hidden_act") or "silu")
    known = ("silu",) if producer == "sglang" else ACTIVATIONS
    if name not in known:
        raise not_implemented(where, f"hidden_act one of {', '.join(known)}", f"hidden_act = {name}")
    return name


def _flat(config: Mapping[str, Any], producer: str) -> dict[str, Any]:
    """Flags of a flat config. SpecForge and SafeAILab build no attention or MLP biases: their tensors decide."""
    nested = config.get("eagle_config") or {}
    asked, bias = bool(config.get("attention_bias")), bool(config.get("bias"))
    layers = config.get("num_hidden_layers") or 1
    return {
        "norm_before_fc": bool(nested.get("norm_before_fc", config.get("norm_before_fc", False))),
        "fc_norm": bool(config.get("fc_norm") or config.get("use_aux_norm")),
        "fc_bias": bias,
        "attention_bias": asked and producer != "sglang",  # SGLang builds q, k and v without one whatever the config
        "output_bias": asked or (bias and producer == "sglang"),
        "mlp_bias": bool(config.get("mlp_bias")) and producer != "sglang",
        "deeper_norm": "input_layernorm" if producer == "modelopt" else "hidden_norm",
        "windows": (None,) * layers,
        "skips_narrow_fc": producer != "modelopt",
    }


def _speculators(layer: Mapping[str, Any], config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Flags of a speculators config, with the defaults of its class (`models/eagle3/config.py`, 0.9.0)."""
    if config.get("norm_before_fc") and config.get("fc_norm"):
        raise WiringError(
            "norm_before_fc and fc_norm exclude each other in speculators",
            code="draft-norms-exclude-each-other",
            where=where,
            expected="one of them",
            found="both",
        )
    return {
        "norm_before_residual": bool(config.get("norm_before_residual", False)),
        "norm_before_fc": bool(config.get("norm_before_fc", False)),
        "fc_norm": bool(config.get("fc_norm", False)),
        "attention_bias": bool(layer.get("attention_bias")),
        "output_bias": bool(layer.get("attention_bias")),
        "mlp_bias": bool(layer.get("mlp_bias")) and layer["model_type"] == "llama",
        "qk_norm": layer["model_type"] == "qwen3",
        "deeper_norm": "input_layernorm",
        "windows": windows(layer),
        "first_position": 1,
        "skips_narrow_fc": False,
    }
