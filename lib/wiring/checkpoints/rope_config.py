"""Rotary position embedding of a draft's config: type, base, scaling, and which reader's arithmetic applies.

A config has one of two spellings: `rope_theta` next to `rope_scaling` (transformers 4), or one `rope_parameters` that
holds the base (transformers 5). With both, `rope_scaling` wins: all readers of these files use the config classes of
transformers 5.19, where it replaces the other (`modeling_rope_utils.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wiring.checkpoints.config_fields import RopeFields, not_implemented, read_fields
from wiring.errors import WiringError

Flavour = Literal["specforge", "transformers", "sglang"]

TYPES = ("default", "linear", "llama3", "yarn", "dynamic")
DEFAULT_THETA, DEFAULT_LENGTH = 10000.0, 2048
# SpecForge's own code has no defaults for these parameters of yarn.
_YARN_OF_SPECFORGE = {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}


@dataclass(frozen=True)
class Rope:
    """One rotary embedding. Lengths are in tokens; a field that the type does not use keeps its default.

    `flavour` selects the arithmetic: SpecForge 0.2.0 (`modeling/draft/llama3_eagle.py`), transformers 5.19
    (`modeling_rope_utils.py`, used by speculators and Model Optimizer) or SGLang 0.5.23 (`layers/rotary_embedding`).
    They agree on default and llama3, and differ on dynamic (when the base grows), on yarn (the scale of cosine and
    sine) and on linear (what is divided, a matter of rounding).
    """

    type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    max_position_embeddings: int = 2048
    original_max_position_embeddings: int = 2048  # llama3, yarn: the length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    attention_factor: float | None = None  # yarn: the scale itself (transformers) or a factor of it (SGLang)
    extrapolation_factor: float = 1.0  # yarn, SGLang only
    truncate: bool = True  # yarn: whole correction dimensions
    alpha: float | None = None  # dynamic, SGLang only: the base grows by alpha alone
    flavour: Flavour = "specforge"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: object, flavour: Flavour) -> Rope:
        """Read either spelling from a flat config.

        Raises WiringError for a type that is not implemented, a rotation of part of the head, and a parameter with an
        invalid value.
        """
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        given = given.get("sliding_attention", given) if isinstance(given, dict) else given
        if not isinstance(given, dict):
            raise WiringError(
                "the RoPE parameters are not an object", code="rope-not-an-object", where=where, found=repr(given)
            )
        kind, partial = _type(given), given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if kind not in TYPES or partial not in (None, 1, 1.0):
            found = f"RoPE scaling = {kind}" if kind not in TYPES else f"partial_rotary_factor = {partial}"
            raise not_implemented(where, f"one of {', '.join(TYPES)} over whole heads", found)
        fields = read_fields(RopeFields, given, where)
        theta = read_fields(RopeFields, {"rope_theta": config.get("rope_theta")}, where).rope_theta
        if kind == "llama3" and flavour == "specforge" and not {"low_freq_factor", "high_freq_factor"} <= given.keys():
            kind = "default"  # SpecForge leaves the frequencies alone unless every parameter is there
        if kind == "yarn" and flavour == "specforge" and not given.keys() >= _YARN_OF_SPECFORGE:
            flavour = "sglang"  # SpecForge cannot run such a config; an engine that serves it can
        length = int(config.get("max_position_embeddings") or DEFAULT_LENGTH)
        original = config.get("original_max_position_embeddings") or fields.original_max_position_embeddings
        factor = fields.factor
        if factor is None and kind == "yarn" and flavour == "transformers" and original:
            factor = length / original
        if factor is None and (kind in ("default", "llama3") or flavour == "sglang"):
            factor = 1.0
        if factor is None:
            raise WiringError(
                f"RoPE scaling of type {kind} needs a factor",
                code="rope-factor-missing",
                where=where,
                expected="factor above 0",
                found="none",
            )
        return cls(
            type=kind,
            theta=fields.rope_theta or theta or DEFAULT_THETA,
            factor=factor,
            max_position_embeddings=length,
            original_max_position_embeddings=int(original or length),
            low_freq_factor=fields.low_freq_factor,
            high_freq_factor=fields.high_freq_factor,
            beta_fast=fields.beta_fast,
            beta_slow=fields.beta_slow,
            mscale=fields.mscale,
            mscale_all_dim=fields.mscale_all_dim,
            attention_factor=fields.attn_factor if flavour == "sglang" else fields.attention_factor,
            extrapolation_factor=fields.extrapolation_factor,
            truncate=bool(given.get("truncate", True)),
            alpha=fields.alpha if flavour == "sglang" else None,
            flavour=flavour,
        )


def _type(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def disagreement(config: Mapping[str, Any]) -> str:
    """Describe where the two spellings of a config contradict each other; "" if they do not."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    base, inner = config.get("rope_theta"), new.get("rope_theta")
    if base is not None and inner is not None and base != inner:
        return f"rope_theta is {base}, rope_parameters.rope_theta is {inner}"
    if old and new and _type(old) != _type(new):
        return f"rope_scaling is of type {_type(old)}, rope_parameters of type {_type(new)}"
    differing = sorted(k for k in old.keys() & new.keys() if k not in ("rope_type", "type") and old[k] != new[k])
    if differing:
        name = differing[0]
        return f"{name} is {old[name]} in rope_scaling and {new[name]} in rope_parameters"
    return ""
