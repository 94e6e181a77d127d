"""Package `sgl_kernel` of the CPU server: the nine functions that SGLang 0.5.23 imports from it on a CPU.

PyPI has CUDA builds of `sgl_kernel` only. With `SGLANG_USE_CPU_ENGINE=1` SGLang imports these functions by name. Each
is written in PyTorch with the signature of its call site and the meaning of the Triton kernel used there on a GPU. No
`torch.ops.sgl_kernel` operator is defined, which SGLang takes as the absence of AMX kernels.
"""

import os

if os.environ.get("WIRING_SGLANG_CPU") != "1":
    raise ImportError(
        f"{__file__} replaces sgl_kernel in CPU servers of wiring (WIRING_SGLANG_CPU=1) and must not be imported "
        "elsewhere. Remove its folder from PYTHONPATH."
    )

from .eagle_tree import build_tree_kernel_efficient_cpu as build_tree_kernel_efficient_cpu
from .eagle_tree import fill_bonus_tokens_cpu as fill_bonus_tokens_cpu
from .eagle_tree import rotate_input_ids_cpu as rotate_input_ids_cpu
from .eagle_tree import verify_tree_greedy_cpu as verify_tree_greedy_cpu
from .kv_bookkeeping import assign_draft_cache_locs_contiguous_cpu as assign_draft_cache_locs_contiguous_cpu
from .kv_bookkeeping import assign_extend_cache_locs_cpu as assign_extend_cache_locs_cpu
from .kv_bookkeeping import assign_req_to_token_pool_cpu as assign_req_to_token_pool_cpu
from .kv_bookkeeping import copy_all_layer_kv_cache_cpu as copy_all_layer_kv_cache_cpu
from .kv_bookkeeping import fill_accept_out_cache_loc_cpu as fill_accept_out_cache_loc_cpu

__version__ = "0.0.0+wiring.cpu"
