"""Rotary position embedding as a draft's config asks for it: type, base, scaling, and whose arithmetic is meant.

A config may spell it in two ways: `rope_theta` beside `rope_scaling` (transformers 4), or one `rope_parameters` with
the base inside (transformers 5). Where both stand, `rope_scaling` wins: all readers of these files go through
transformers 5.19's config classes, which let it replace the other (`modeling_rope_utils.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wiring.errors import UnreadForward, WiringError

Flavour = Literal["specforge", "transformers", "sglang"]

TYPES = ("default", "linear", "llama3", "yarn", "dynamic")
DEFAULT_THETA = 10000.0
_YARN_OF_SPECFORGE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # its own code has no defaults for these

_MAY_BE_ZERO = ("mscale", "mscale_all_dim", "extrapolation_factor")


@dataclass(frozen=True)
class Rope:
    """One rotary embedding. Lengths are in tokens; a field that the type does not use keeps its default.

    `flavour` says whose arithmetic: SpecForge 0.2.0 (`modeling/draft/llama3_eagle.py`), transformers 5.19
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
    def from_config(
        cls, config: dict[str, Any], where: object, flavour: Flavour, *, default_length: int = 2048
    ) -> Rope:
        """Read either spelling from a flat config; `default_length` is the class's max_position_embeddings.

        Raises WiringError for a type that is not implemented, a rotation of part of the head, and a value that is no
        number where one is needed.
        """
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        given = given.get("sliding_attention", given) if isinstance(given, dict) else given
        if not isinstance(given, dict):
            raise WiringError("the RoPE parameters are not an object", where=where, found=repr(given))
        kind = str(given.get("rope_type") or given.get("type") or "default")
        partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if kind not in TYPES or partial not in (None, 1, 1.0):
            raise UnreadForward(
                "this draft asks for a rotary embedding that is not implemented here",
                where=where,
                expected=f"one of {', '.join(TYPES)} over whole heads",
                found=f"RoPE scaling = {kind}" if kind not in TYPES else f"partial_rotary_factor = {partial}",
                remedy="Its numbers would be wrong, so nothing was computed",
            )
        number = _Numbers(config, given, where)
        length = int(number("max_position_embeddings", default_length, of=config))
        if kind == "llama3" and flavour == "specforge" and not {"low_freq_factor", "high_freq_factor"} <= given.keys():
            kind = "default"  # SpecForge leaves the frequencies alone unless every parameter is there
        if kind == "yarn" and flavour == "specforge" and not set(_YARN_OF_SPECFORGE) <= given.keys():
            flavour = "sglang"  # SpecForge cannot run such a config; an engine that serves it can
        original = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        return cls(
            type=kind,
            theta=number("rope_theta", number("rope_theta", DEFAULT_THETA, of=config)),
            factor=_factor(kind, flavour, number, length, original),
            max_position_embeddings=length,
            original_max_position_embeddings=int(original or length),
            low_freq_factor=number("low_freq_factor", 1.0),
            high_freq_factor=number("high_freq_factor", 4.0),
            beta_fast=number("beta_fast", 32.0),
            beta_slow=number("beta_slow", 1.0),
            mscale=number("mscale", None),
            mscale_all_dim=number("mscale_all_dim", None),
            attention_factor=number("attn_factor" if flavour == "sglang" else "attention_factor", None),
            extrapolation_factor=number("extrapolation_factor", 1.0),
            truncate=bool(given.get("truncate", True)),
            alpha=number("alpha", None) if flavour == "sglang" else None,
            flavour=flavour,
        )


class _Numbers:
    """Reads numbers of the RoPE parameters by name; a missing or null one is the default."""

    def __init__(self, config: dict[str, Any], given: dict[str, Any], where: object):
        self.config, self.given, self.where = config, given, where

    def __call__(self, name: str, default: Any, of: dict[str, Any] | None = None) -> Any:
        value = (self.given if of is None else of).get(name)
        if value is None:
            return default
        low = 0 if name in _MAY_BE_ZERO else 1e-9
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
            raise WiringError(
                f"the draft's RoPE parameter {name} is out of its range",
                where=self.where,
                expected="a number, 0 or more" if low == 0 else "a number above 0",
                found=repr(value),
            )
        return float(value)


def _factor(kind: str, flavour: str, number: _Numbers, length: int, original: Any) -> float:
    """The scaling factor; where it is missing, what the flavour makes of that."""
    factor = number("factor", None)
    if factor is None and kind == "yarn" and flavour == "transformers" and original:
        factor = length / original
    if factor is None and (kind in ("default", "llama3") or flavour == "sglang"):
        factor = 1.0
    if not factor:
        raise WiringError(
            f"RoPE scaling of type {kind} needs a factor",
            where=number.where,
            expected="factor above 0",
            found="none" if factor is None else factor,
        )
    return factor


def disagreement(config: dict[str, Any]) -> str:
    """In words, where the two spellings of a config contradict each other; empty when they do not."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    base, inner = config.get("rope_theta"), new.get("rope_theta")
    if base is not None and inner is not None and base != inner:
        return f"rope_theta is {base}, rope_parameters.rope_theta is {inner}"
    if old and new:
        kinds = [str(d.get("rope_type") or d.get("type") or "default") for d in (old, new)]
        differing = sorted(k for k in old.keys() & new.keys() if k not in ("rope_type", "type") and old[k] != new[k])
        if kinds[0] != kinds[1]:
            return f"rope_scaling is of type {kinds[0]}, rope_parameters of type {kinds[1]}"
        if differing:
            name = differing[0]
            return f"{name} is {old[name]} in rope_scaling and {new[name]} in rope_parameters"
    return ""
