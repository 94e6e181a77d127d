"""The -1 convention inside the SGLang server: id -1 is the embedding, and then every id is an output id.

Loaded by SGLang through the entry point `wiring_embedding_id`, and only where WIRING_EMBEDDING_ID=1. A draft
whose config holds no -1 is served exactly as before. From SGLang 0.5.14 on the DeepSeek forward captures the
embedding natively once boundary 0 is in `layers_to_capture`, so translating the ids is all there is to do.
"""

from __future__ import annotations

from importlib.metadata import version

from wiring.engines.sglang import EMBEDDING_ID, SUPPORTED
from wiring.errors import WiringError
from wiring.layers import IdConvention, to_boundaries

SETTER = "sglang.srt.models.deepseek_v2.DeepseekV2ForCausalLM.set_eagle3_layers_to_capture"


def translate(layer_ids: list[int] | None) -> list[int] | None:
    """Boundaries for ids that hold -1; any other ids come back as they are."""
    if not layer_ids or EMBEDDING_ID not in layer_ids:
        return layer_ids
    return list(to_boundaries(layer_ids, IdConvention.OUTPUT_ID))


def set_layers(original, model, layer_ids=None):
    """Stand around SGLang's setter, which takes boundaries as they are once the first id is not 1."""
    boundaries = translate(layer_ids)
    if boundaries is not layer_ids and boundaries[0] == 1:
        raise WiringError(
            "boundary 1 cannot come first beside the embedding",
            where="eagle_aux_hidden_state_layer_ids",
            expected="ids in ascending order, -1 first",
            found=layer_ids,
            remedy="Sort the ids",
        )
    return original(model, boundaries)


def register() -> None:
    """Hook SGLang's setter by its own hook registry. Raises WiringError on another release than 0.5.23."""
    found = version("sglang")
    if found != SUPPORTED:
        raise WiringError(
            "the embedding plugin does not know this release",
            where="sglang",
            expected=SUPPORTED,
            found=found,
            remedy=f"Install sglang=={SUPPORTED}, or unset WIRING_EMBEDDING_ID",
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(SETTER, set_layers, HookType.AROUND)
