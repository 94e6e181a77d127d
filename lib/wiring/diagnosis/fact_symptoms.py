"""Symptoms that facts decide: each one alone by a table, and a few together."""

from __future__ import annotations

from collections.abc import Iterator

from wiring.bench.arm_results import BIGRAM_FLOOR
from wiring.diagnosis.symptom_table import SYMPTOMS, Symptom, decide
from wiring.logs.evidence import Evidence, FactRecord, Value

FEW_IDS = 0.5  # share of the most frequent drafted id
PLAIN_DTYPES = frozenset({"", "none", "unquant", "auto", "bf16", "bfloat16", "fp16", "float16", "fp32", "float32"})
# Symptom, fact, and the value that shows the symptom; the other value shows its absence.
BOOLEANS = (
    ("text_broken", "text_broken", True),
    ("outputs_differ", "outputs_equal_plain", False),
    ("nonfinite", "nonfinite_logits", True),
    ("not_templated", "prompts_templated", False),
    ("cold_start", "warmed_up", False),
    ("random_prompts", "random_prompts", True),
    ("embedding_differs", "embedding_equals_target", False),
    ("embedding_ranks_differ", "embedding_ranks_agree", False),
    ("map_changed", "map_changed", True),
    ("map_arbitrary", "map_from_training", False),
    ("mask_misaligned", "mask_aligned", False),
    ("templates_differ", "templates_equal", False),
    ("target_changed", "target_changed", True),
    ("first_answer_position_low", "first_answer_position_low", True),
    ("drift_with_depth", "cosine_falls_with_depth", True),
    ("restart_cures", "restart_cures", True),
    ("other_engine_fine", "other_engine_fine", True),
    ("engines_agree", "other_engine_fine", False),
    ("other_head_fine", "other_head_fine", True),
)
# Symptom, fact, the bound from which (below which) it shows the symptom, and the one beyond which it shows its absence.
HIGH = (
    ("drafts_one_id", "drafted_ids_share_top", 0.9, FEW_IDS),
    ("drafts_low_ids", "drafted_ids_low", 0.999, 0.9),
    ("tensors_unused", "tensors_unused", 1, 1),
)
LOW = (
    ("text_loops", "unique_bigram_share", BIGRAM_FLOOR, BIGRAM_FLOOR),
    ("few_prompts", "prompts", 5, 5),
    ("embedding_differs", "embedding_cosine", 0.9, 0.99),
    ("map_covers_little", "map_coverage", 0.5, 0.7),
    ("loss_mask_empty", "loss_mask_tokens", 1, 1),
)
_DEPARTS = {  # first part in which the engine's draft departs from a reference forward
    "embedding": "embedding_differs",
    "weights": "draft_weights_differ",
    "norm": "draft_norm_differs",
    "residual": "draft_norm_differs",
    "rotation": "draft_rotation_differs",
    "attention": "draft_attention_differs",
    "cache rows": "draft_rows_differ",
    "map": "map_changed",
}


def fact_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield one symptom for each fact that decides one, and those that several facts decide together."""
    shares = [f.value for f in evidence.facts if f.name == "drafted_ids_share_top"]
    one_id = any(not isinstance(share, str) and share >= FEW_IDS for share in shares)
    for fact in evidence.facts:
        if fact.name != "drafted_ids_low" or not one_id:  # a single drafted id does not say anything about the map
            yield from _by_table(fact)
        if fact.name == "draft_departs_at":
            yield from _departure(fact)
    known = {fact.name: fact for fact in sorted(evidence.facts, key=lambda f: (f.name, str(f.value), f.source))}
    yield from _map(evidence, known)
    yield from _algorithm(known)
    yield from _load_quantisation(evidence, known)
    has, fed = known.get("fc_slots"), known.get("fc_slots_served")
    if has is not None and fed is not None and has.value != fed.value:
        text = f"fc takes {has.value} states, the engine builds it for {fed.value}"
        yield from decide("slots_reordered", True, text, has.source, letter="L")


def _by_table(fact: FactRecord) -> Iterator[Symptom]:
    value = fact.value
    for symptom, name, shown in BOOLEANS:
        if name == fact.name:
            yield from _decide(symptom, value is shown, fact)
    if isinstance(value, str):
        return
    for symptom, name, present, absent in HIGH:
        if name == fact.name and (value >= present or value < absent):
            yield from _decide(symptom, value >= present, fact)
    for symptom, name, present, absent in LOW:
        if name == fact.name and (value < present or value >= absent):
            yield from _decide(symptom, value < present, fact)


def _decide(name: str, present: bool, fact: FactRecord) -> Iterator[Symptom]:
    text = f"{SYMPTOMS[name].text}{'' if present else ': not so'} ({fact.name} {_shown(fact.value)})"
    yield from decide(name, present, text, fact.source)


def _shown(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _departure(fact: FactRecord) -> Iterator[Symptom]:
    """Only the first part that differs is decided, and not what the checkpoint and the reference have in common."""
    if fact.value != "nothing":
        yield from _decide(_DEPARTS[str(fact.value)], True, fact)
        return
    for name in sorted({name for name in _DEPARTS.values() if name.startswith("draft_")}):
        yield from _decide(name, False, fact)


def _map(evidence: Evidence, known: dict[str, FactRecord]) -> Iterator[Symptom]:
    """A map is missing only where the draft's vocabulary is smaller; `map_wrong` joins all faults of the map."""
    has, changed, trained = (known.get(name) for name in ("map_present", "map_changed", "map_from_training"))
    missing = False
    if has is not None:
        config = evidence.setting.draft_config or {}
        whole, own = config.get("vocab_size"), config.get("draft_vocab_size")
        missing = has.value is False and (whole is None or (own is not None and own < whole))
        yield from _decide("map_missing", missing, has)
    wrong = missing or (changed is not None and changed.value is True)
    wrong = wrong or (trained is not None and trained.value is False)
    if wrong or changed is not None:
        text = "the map is wrong" if wrong else "the map is as trained"
        source = next(fact.source for fact in (changed, trained, has) if fact is not None)
        yield from decide("map_wrong", wrong, text, source)


def _algorithm(known: dict[str, FactRecord]) -> Iterator[Symptom]:
    """An EAGLE-3 draft under another algorithm, or another draft under EAGLE3."""
    asked, draft = known.get("spec_algorithm"), known.get("draft_architecture")
    if asked is not None and draft is not None:
        eagle3 = "eagle3" in str(draft.value).lower().replace("-", "").replace("_", "")
        differs = (str(asked.value).upper() == "EAGLE3") != eagle3
        text = f"the server was started with {asked.value}, the draft is {draft.value}"
        yield from decide("algorithm_differs", differs, text, asked.source)


def _load_quantisation(evidence: Evidence, known: dict[str, FactRecord]) -> Iterator[Symptom]:
    """The load line names a quantization that neither the draft's config nor the arguments requested."""
    fact = known.get("load_quantisation")
    if fact is None:
        return
    plain = str(fact.value).lower() in PLAIN_DTYPES
    config = evidence.setting.draft_config
    arguments = [a for a in evidence.arguments if "quant" in a.name and "draft" in a.name]
    requested = any(str(a.asked or "").lower() not in PLAIN_DTYPES for a in arguments)
    if plain or not (requested or (config is not None and config.get("quantization_config"))):
        sure = 1.0 if plain or arguments or config is not None else 0.8
        text = f"the draft was loaded with quant={fact.value}"
        yield from decide("draft_quantised_unasked", not plain, text, fact.source, sure)
