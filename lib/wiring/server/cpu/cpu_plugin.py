"""The SGLang plugin of the CPU server: EAGLE-3 for the attention backend `torch_native`.

SGLang loads it in the server's process and in each child, through the entry point in
`wiring_plugins`. Its `torch_native` backend knows neither verify batches nor multi-step drafting,
and `intel_amx`, which knows both, needs AMX.
"""

from __future__ import annotations

from wiring.server.cpu.kit_version import installed_sglang, require_sglang

BACKEND = "torch_native"


def register() -> None:
    """Teach `torch_native` the two batches, and have DeepSeek's attention use it rightly.

    Raises:
        WiringError: SGLang is not the supported release.
    """
    require_sglang(installed_sglang())
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.models.deepseek_common import attention_backend_handler as deepseek
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from wiring.server.cpu.torch_native import CpuAttention

    register_attention_backend(BACKEND)(CpuAttention)
    # SGLang treats a backend without an entry as Triton, whose prefill attends with expanded keys and
    # values. torch_native reads both from the latent cache, so that it needs the absorbed form always.
    deepseek.AttentionBackendRegistry.register(BACKEND, deepseek._dispatch_mla_subtype)
    HookRegistry.register(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
        _create_draft_backend,
        HookType.AROUND,
    )


def _create_draft_backend(create, factory, backend_name, backend_map, error_template, stamps_children=False):
    """Around `DraftBackendFactory._create_backend`: adds `torch_native` to the backends to choose from.

    `stamps_children` is set for the multi-step decode backend and not for the draft-extend one.
    """

    def torch_native():
        from wiring.server.cpu.torch_native import CpuAttention, CpuDraftAttention

        runner = factory.draft_model_runner
        if stamps_children:
            return BACKEND, CpuDraftAttention(runner, factory.topk, factory.speculative_num_steps)
        return BACKEND, CpuAttention(runner)

    return create(factory, backend_name, {**backend_map, BACKEND: torch_native}, error_template, stamps_children)
