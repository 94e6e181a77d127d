"""What the case does not use cannot be what makes it slow: one rank, a chain, eager decoding, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator

from wiring.diagnosis.symptoms.catalogue import SYMPTOMS
from wiring.diagnosis.symptoms.facts import PLAIN_DTYPES
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Evidence

# field of the setting, its value, and what acceptance cannot fall with then
_ROWS = (
    ("tp", 1, ("falls_with_tp", "falls_with_fused_all_reduce", "ranks_differ", "embedding_ranks_differ")),
    ("topk", 1, ("falls_with_topk",)),
    ("batch", 1, ("falls_with_batch",)),
    ("cuda_graphs", False, ("falls_with_cuda_graphs",)),
    ("temperature", 0, ("falls_with_temperature",)),
)


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Absent symptoms of what the setting rules out; a contrast that shows one goes before."""
    setting = evidence.setting
    for field, value, names in _ROWS:
        if getattr(setting, field) is not None and getattr(setting, field) == value:
            for name in names:
                text = f"not in use: {field} {str(value).lower()}"
                yield Symptom(name, False, 1.0, SYMPTOMS[name].letter, text, "setting")
    for field in ("draft_kv_dtype", "draft_quantisation", "target_quantisation"):
        value = getattr(setting, field)
        if value is not None and value.lower() in PLAIN_DTYPES:
            yield Symptom(f"falls_with_{field}", False, 1.0, "P", f"not in use: {field} {value}", "setting")
    target = setting.target_config
    if target is not None and not any("vision" in key or "image" in key for key in target):
        yield Symptom("falls_with_images", False, 1.0, "P", "not in use: the target reads no images", "setting")
