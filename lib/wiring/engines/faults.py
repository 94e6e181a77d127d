"""The 25 faults that make an EAGLE-3 draft slow, by number.

Gathered from public reports of SGLang, vLLM, SpecForge, speculators, EAGLE, TensorRT-LLM, Model Optimizer and
TorchSpec. A number is never reused for another fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FAULTS: Mapping[int, str] = MappingProxyType(
    {
        1: "wrong layer set",
        2: "layer ids off by one",
        3: "slot count, order or width",
        4: "partial sums or wrong gather group",
        5: "captured at the wrong point (norm, residual)",
        6: "numeric drift of the target",
        7: "algorithm flag does not match the draft",
        8: "draft embedding wrong",
        9: "vocabulary map (d2t, t2d)",
        10: "draft norm or residual variant",
        11: "draft quantisation or dtype",
        12: "draft KV cache dtype",
        13: "positions, RoPE or context limit",
        14: "tokens and states shifted against each other",
        15: "stale draft KV cache (prefix cache, other requests)",
        16: "chunk boundary or hand-off between servers",
        17: "draft recurrence or tree KV cache",
        18: "CUDA graph or batch indexing",
        19: "attention backend or NaN",
        20: "sampling rule or temperature",
        21: "arguments changed silently",
        22: "training text differs from serving text",
        23: "training defect",
        24: "cost of verifying or drafting",
        25: "benchmark fault",
    }
)
