"""SGLang plugin of the -1 convention: id -1 is the embedding, and then every other id is an output id.

SGLang loads it through the entry point `wiring_embedding_id`; it acts only where WIRING_EMBEDDING_ID=1. A draft with no
-1 in its config is served as before. From SGLang 0.5.14 on the DeepSeek forward captures the embedding once boundary 0
is in `layers_to_capture`, so the plugin only translates the ids.
"""

from __future__ import annotations

from importlib.metadata import version

from wiring.engines.sglang import EMBEDDING_ID, SUPPORTED
from wiring.errors import WiringError
from wiring.layers import IdConvention, to_boundaries

SETTER = "sglang.srt.models.deepseek_v2.DeepseekV2ForCausalLM.set_eagle3_layers_to_capture"


def translate(layer_ids: list[int] | None) -> list[int] | None:
    """Return boundaries for ids that hold -1; return any other ids unchanged."""
    if not layer_ids or EMBEDDING_ID not in layer_ids:
        return layer_ids
    return list(to_boundaries(layer_ids, IdConvention.OUTPUT_ID))


def set_layers(original, model, layer_ids=None):
    """Wrap SGLang's setter, which takes ids as boundaries unless the first is 1.

    Raises WiringError: embedding-not-first.
    """
    boundaries = translate(layer_ids)
    if boundaries and boundaries is not layer_ids and boundaries[0] == 1:
        raise WiringError(
            "boundary 1 cannot come first in a layout with the embedding",
            code="embedding-not-first",
            where="eagle_aux_hidden_state_layer_ids",
            expected="ids in ascending order, -1 first",
            found=layer_ids,
            remedy="Sort the ids",
        )
    return original(model, boundaries)


def register() -> None:
    """Hook SGLang's setter through its hook registry. Raises WiringError (sglang-unsupported) on another release."""
    found = version("sglang")
    if found != SUPPORTED:
        raise WiringError(
            "the embedding plugin does not support this SGLang release",
            code="sglang-unsupported",
            where="sglang",
            expected=SUPPORTED,
            found=found,
            remedy=f"Install sglang=={SUPPORTED}, or unset WIRING_EMBEDDING_ID",
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(SETTER, set_layers, HookType.AROUND)
