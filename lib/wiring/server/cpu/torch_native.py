"""SGLang plugin of the CPU server: the attention backend `torch_native` with verify and multi-step draft batches.

SGLang's own `torch_native` has neither batch, and `intel_amx`, which has both, needs AMX. Which slots a query sees does
not depend on the layer: `init_forward_metadata` computes it once per forward pass (see `spans`).
"""

# SGLang declares fields of its batches as optional that these batches have.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.models.deepseek_common import attention_backend_handler as deepseek
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from wiring.errors import WiringError
from wiring.server.cpu.spans import Span, attend, causal_spans, draft_spans, verify_spans

BACKEND = "torch_native"


def register() -> None:
    """Register the backends with SGLang; called in the server's process and in each child."""
    register_attention_backend(BACKEND)(CpuAttention)
    # Without an entry SGLang treats a backend as Triton, and prefill would attend with expanded keys and values.
    # torch_native reads both from the latent cache, so it always needs the absorbed form.
    deepseek.AttentionBackendRegistry.register(BACKEND, deepseek._dispatch_mla_subtype)
    HookRegistry.register(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
        _create_draft_backend,
        HookType.AROUND,
    )


def _create_draft_backend(create, factory, backend_name, backend_map, error_template, stamps_children=False):
    """Wrap `DraftBackendFactory._create_backend`, adding `torch_native` to the backends to choose from.

    `stamps_children` is set for the multi-step decode backend and not for the draft-extend one.
    """

    def torch_native():
        runner = factory.draft_model_runner
        if stamps_children:
            return BACKEND, CpuDraftAttention(runner, factory.topk, factory.speculative_num_steps)
        return BACKEND, CpuAttention(runner)

    return create(factory, backend_name, {**backend_map, BACKEND: torch_native}, error_template, stamps_children)


def _is_plain(layer, forward_batch) -> bool:
    """Return whether a layer is decoder self-attention over the whole prefix, the only kind that spans describe."""
    window = layer.sliding_window_size
    return not (
        layer.is_cross_attention
        or layer.attn_type == AttentionType.ENCODER_ONLY
        or forward_batch.encoder_lens is not None
        or (window is not None and window > -1)
        or layer.logit_cap
    )


def _refusal(layer) -> WiringError:
    return WiringError(
        "the CPU kit cannot draft or verify with this kind of attention layer",
        code="attention-unsupported-on-cpu",
        where=f"layer {layer.layer_id}",
        expected="decoder self-attention over the whole prefix",
        found=f"sliding window {layer.sliding_window_size}, logit cap {layer.logit_cap}, type {layer.attn_type}",
        remedy="Serve this model without a draft, or on a GPU",
    )


class CpuAttention(TorchNativeAttnBackend):
    """Backend of the target and of the draft's extend batches.

    Prefill and plain decoding of layers that are not `_is_plain` are left to SGLang's backend.
    """

    def __init__(self, model_runner):
        super().__init__(model_runner)
        self._spans: list[Span] = []

    def init_forward_metadata(self, forward_batch) -> None:
        super().init_forward_metadata(forward_batch)
        batch, table = forward_batch, self.req_to_token_pool.req_to_token
        mode, requests = batch.forward_mode, batch.req_pool_indices.tolist()
        if mode.is_idle():
            self._spans = []
        elif mode.is_target_verify():
            nodes = batch.spec_info.draft_token_num
            tree = batch.spec_info.custom_mask.view(-1, nodes, nodes).bool()
            self._spans = verify_spans(table, requests, batch.seq_lens.tolist(), tree)
        elif mode.is_decode():
            prefixes = [length - 1 for length in batch.seq_lens.tolist()]
            self._spans = causal_spans(table, requests, prefixes, [1] * len(requests))
        else:
            prefixes, counts = batch.extend_prefix_lens.tolist(), batch.extend_seq_lens.tolist()
            self._spans = causal_spans(table, requests, prefixes, counts)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if _is_plain(layer, forward_batch):
            return self._attend(q, k, v, layer, forward_batch, save_kv_cache)
        if forward_batch.forward_mode.is_target_verify():
            raise _refusal(layer)
        return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if _is_plain(layer, forward_batch):
            return self._attend(q, k, v, layer, forward_batch, save_kv_cache)
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)

    def _attend(self, q, k, v, layer, forward_batch, save_kv_cache: bool) -> Tensor:
        """Write this layer's keys and values, then attend; return [T, heads * Dv]."""
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        out = attend(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            self._spans,
            layer.scaling,
        )
        return out.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)


class _DraftStep(CpuAttention):
    """Backend of one draft step; `CpuDraftAttention` sets its spans."""

    def init_forward_metadata(self, forward_batch) -> None:
        TorchNativeAttnBackend.init_forward_metadata(self, forward_batch)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if not _is_plain(layer, forward_batch):  # SGLang's backend has no branches
            raise _refusal(layer)
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)


class CpuDraftAttention:
    """Backends of the draft's steps in one round: SGLang takes `attn_backends[i]` for step i.

    A round of `num_steps` drafts runs `num_steps - 1` forward passes: its first draft comes from the extend batch.

    Raises:
        WiringError: top-k above 1 on a pool with pages of several tokens, where SGLang orders slots differently.
    """

    def __init__(self, model_runner, topk: int, num_steps: int):
        page = model_runner.page_size
        if topk > 1 and page > 1:
            raise WiringError(
                "the CPU kit drafts trees on a KV pool of single tokens only",
                code="tree-with-pages-on-cpu",
                where="--page-size",
                expected=1,
                found=page,
                remedy="Leave --page-size out, or draft a chain (--speculative-eagle-topk 1)",
            )
        self.topk, self.num_steps = topk, num_steps
        self.attn_backends = [_DraftStep(model_runner) for _ in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch) -> None:
        requests, prefixes = forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist()
        for step, backend in enumerate(self.attn_backends):
            backend.init_forward_metadata(forward_batch)
            table = backend.req_to_token_pool.req_to_token
            backend._spans = draft_spans(table, requests, prefixes, self.topk, self.num_steps, step)
