"""The fields of a config.json that are read, with the values that they may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError

from wiring.errors import UnreadForward, WiringError

IDS = "eagle_aux_hidden_state_layer_ids"
_Factor = Annotated[float, Field(ge=1e-9)]
_Scale = Annotated[float, Field(ge=0)]


class _Fields(BaseModel):
    """Fields that are not named here are ignored; null is a missing field."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class ConfigFields(_Fields):
    """The config of a draft, of a target, or of the language model nested in either."""

    architectures: list[str] | None = None
    eagle_config: ConfigFields | None = None
    text_config: ConfigFields | None = None
    transformer_layer_config: ConfigFields | None = None
    rope_scaling: ConfigFields | None = None
    rope_parameters: ConfigFields | None = None
    quantization_config: dict | None = None
    rope_theta: FiniteFloat | None = None
    rms_norm_eps: FiniteFloat | None = None
    max_position_embeddings: _Factor | None = None
    hidden_size: PositiveInt | None = None
    target_hidden_size: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    num_attention_heads: PositiveInt | None = None
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    draft_vocab_size: PositiveInt | None = None
    num_hidden_layers: PositiveInt | None = None
    num_aux_hidden_states: int | None = None
    sliding_window: int | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


class RopeFields(_Fields):
    """The parameters inside `rope_scaling` or `rope_parameters`, with the defaults of their readers."""

    rope_theta: _Factor | None = None
    factor: _Factor | None = None
    low_freq_factor: _Factor = 1.0
    high_freq_factor: _Factor = 4.0
    beta_fast: _Factor = 32.0
    beta_slow: _Factor = 1.0
    mscale: _Scale | None = None
    mscale_all_dim: _Scale | None = None
    attention_factor: _Factor | None = None
    attn_factor: _Factor | None = None
    extrapolation_factor: _Scale = 1.0
    alpha: _Factor | None = None
    original_max_position_embeddings: _Factor | None = None


Fields = TypeVar("Fields", bound=BaseModel)


def read_fields(model: type[Fields], values: Mapping[str, Any], where: object) -> Fields:
    """Validate the fields of `model` in a config. Raises WiringError naming the first field with another value."""
    try:
        return model.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise WiringError(
            f"{'.'.join(map(str, first['loc']))} has a value that cannot be used",
            code="config-field-invalid",
            where=where,
            expected=first["msg"].removeprefix("Input should be "),
            found=repr(first["input"])[:60],
            remedy="Correct the config",
        ) from None


def check_fields(config: Mapping[str, Any], where: object) -> None:
    """Raise WiringError if a field of `ConfigFields`, at the top level or nested, has a value that cannot be used."""
    read_fields(ConfigFields, config, where)


def required_size(config: Mapping[str, Any], name: str, where: object, default: int | None = None) -> int:
    """Return a size of a checked config. Raises WiringError if it is missing and has no default."""
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise WiringError(
            f"{name} is missing from the config",
            code="config-field-missing",
            where=where,
            expected="a whole number above 0",
            remedy="Add it to the config",
        )
    return value


def not_implemented(where: object, expected: str, found: str) -> UnreadForward:
    """Return the error for a config that asks for a forward pass that is not implemented."""
    return UnreadForward(
        "this draft asks for a forward pass that is not implemented here",
        code="forward-not-implemented",
        where=where,
        expected=expected,
        found=found,
        remedy="Its numbers would be wrong, so nothing was computed",
    )
