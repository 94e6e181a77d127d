"""Symptoms that a single fact decides: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wiring.bench.text_quality import BIGRAM_FLOOR
from wiring.diagnosis.symptoms.catalogue import SYMPTOMS
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Evidence, Fact, Value

Test = Callable[[Value], bool]
FEW_IDS = 0.5  # share of the most frequent drafted id
PLAIN_DTYPES = frozenset({"", "none", "unquant", "auto", "bf16", "bfloat16", "fp16", "float16", "fp32", "float32"})


@dataclass(frozen=True)
class Row:
    """The fact `fact` means `symptom` where `there` holds, its absence where `gone` does, and nothing between."""

    fact: str
    symptom: str
    there: Test
    gone: Test


def _yes(fact: str, symptom: str) -> Row:
    return Row(fact, symptom, lambda v: v is True, lambda v: v is False)


def _no(fact: str, symptom: str) -> Row:
    return Row(fact, symptom, lambda v: v is False, lambda v: v is True)


def _under(fact: str, symptom: str, bound: float, fine: float | None = None) -> Row:
    return Row(fact, symptom, lambda v: float(v) < bound, lambda v: float(v) >= (bound if fine is None else fine))


def _from(fact: str, symptom: str, bound: float, fine: float) -> Row:
    return Row(fact, symptom, lambda v: float(v) >= bound, lambda v: float(v) < fine)


ROWS = (
    _yes("text_broken", "text_broken"),
    _no("outputs_equal_plain", "outputs_differ"),
    _yes("nonfinite_logits", "nonfinite"),
    _under("unique_bigram_share", "text_loops", BIGRAM_FLOOR),
    _under("prompts", "few_prompts", 5),
    _no("prompts_templated", "not_templated"),
    _no("warmed_up", "cold_start"),
    _yes("random_prompts", "random_prompts"),
    _from("drafted_ids_share_top", "drafts_one_id", 0.9, FEW_IDS),
    _from("drafted_ids_low", "drafts_low_ids", 0.999, 0.9),
    _no("embedding_equals_target", "embedding_differs"),
    _under("embedding_cosine", "embedding_differs", 0.9, 0.99),
    _no("embedding_ranks_agree", "embedding_ranks_differ"),
    _yes("map_changed", "map_changed"),
    _no("map_from_training", "map_arbitrary"),
    _under("map_coverage", "map_covers_little", 0.5, 0.7),
    _from("tensors_unused", "tensors_unused", 1, 1),
    _under("loss_mask_tokens", "loss_mask_empty", 1),
    _no("mask_aligned", "mask_misaligned"),
    _no("templates_equal", "templates_differ"),
    _yes("target_changed", "target_changed"),
    _yes("first_answer_position_low", "first_answer_position_low"),
    _yes("cosine_falls_with_depth", "drift_with_depth"),
    _yes("restart_cures", "restart_cures"),
    _yes("other_engine_fine", "other_engine_fine"),
    _no("other_engine_fine", "engines_agree"),
    _yes("other_head_fine", "other_head_fine"),
)
_DEPARTS = {  # where the engine's draft departs from a reference forward, and what that is
    "embedding": "embedding_differs",
    "weights": "draft_weights_differ",
    "norm": "draft_norm_differs",
    "residual": "draft_norm_differs",
    "rotation": "draft_rotation_differs",
    "attention": "draft_attention_differs",
    "cache rows": "draft_rows_differ",
    "map": "map_changed",
}


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """One symptom for each fact that decides one, and those that two facts decide together."""
    one_id = any(f.name == "drafted_ids_share_top" and f.value >= FEW_IDS for f in evidence.facts)
    for fact in evidence.facts:
        if fact.name == "drafted_ids_low" and one_id:
            continue  # a draft that says one id says nothing of its map
        for row in ROWS:
            if row.fact == fact.name and (row.there(fact.value) or row.gone(fact.value)):
                yield _symptom(row.symptom, row.there(fact.value), fact)
    known = {fact.name: fact for fact in sorted(evidence.facts, key=lambda f: (f.name, str(f.value), f.source))}
    found = [*_map(evidence, known)]
    yield from found
    yield from _map_wrong(known, found)
    yield from _algorithm(known)
    yield from _load_quantisation(evidence, known)
    yield from _slot_count(known)
    yield from _departure(evidence)


def _symptom(name: str, present: bool, fact: Fact, text: str = "", certainty: float = 1.0) -> Symptom:
    said = text or f"{SYMPTOMS[name].text}{'' if present else ': not so'} ({fact.name} {_shown(fact.value)})"
    return Symptom(name, present, certainty, SYMPTOMS[name].letter, said, fact.source)


def _shown(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _map(evidence: Evidence, known: dict[str, Fact]) -> Iterator[Symptom]:
    """A map is missing only where the draft speaks a smaller vocabulary than its own."""
    fact = known.get("map_present")
    if fact is None:
        return
    config = evidence.setting.draft_config or {}
    whole, own = config.get("vocab_size"), config.get("draft_vocab_size")
    smaller = whole is None or (own is not None and own < whole)
    yield _symptom("map_missing", fact.value is False and smaller, fact)


def _map_wrong(known: dict[str, Fact], missing: list[Symptom]) -> Iterator[Symptom]:
    """One name for all that may be wrong with the map: its absence is what speaks against."""
    changed, trained = known.get("map_changed"), known.get("map_from_training")
    wrong = any(s.present for s in missing) or (changed is not None and changed.value is True)
    wrong = wrong or (trained is not None and trained.value is False)
    if wrong or changed is not None:
        fact = changed or trained or known["map_present"]
        text = "the map is wrong" if wrong else "the map is as trained"
        yield Symptom("map_wrong", wrong, 1.0, "L", text, fact.source)


def _algorithm(known: dict[str, Fact]) -> Iterator[Symptom]:
    """An EAGLE-3 draft under another algorithm, or another draft under EAGLE3."""
    asked, draft = known.get("spec_algorithm"), known.get("draft_architecture")
    if asked is None or draft is None:
        return
    eagle3 = "eagle3" in str(draft.value).lower().replace("-", "").replace("_", "")
    differs = (str(asked.value).upper() == "EAGLE3") != eagle3
    text = f"the server was started with {asked.value}, the draft is {draft.value}"
    yield _symptom("algorithm_differs", differs, asked, text)


def _load_quantisation(evidence: Evidence, known: dict[str, Fact]) -> Iterator[Symptom]:
    """The load line names a quantisation that neither the draft's config nor the arguments asked for."""
    fact = known.get("load_quantisation")
    if fact is None:
        return
    plain = str(fact.value).lower() in PLAIN_DTYPES
    config = evidence.setting.draft_config
    asked = [a for a in evidence.arguments if "quant" in a.name and "draft" in a.name]
    wanted = any(str(a.asked or "").lower() not in PLAIN_DTYPES for a in asked)
    if not plain and (wanted or (config is not None and config.get("quantization_config"))):
        return  # it was meant so
    known_plain = bool(asked) or config is not None
    text = f"the draft was loaded with quant={fact.value}"
    yield _symptom("draft_quantised_unasked", not plain, fact, text, 1.0 if known_plain or plain else 0.8)


def _slot_count(known: dict[str, Fact]) -> Iterator[Symptom]:
    has, fed = known.get("fc_slots"), known.get("fc_slots_served")
    if has is not None and fed is not None and has.value != fed.value:
        text = f"fc takes {has.value} states, the engine builds it for {fed.value}"
        yield Symptom("slots_reordered", True, 1.0, "L", text, has.source)


def _departure(evidence: Evidence) -> Iterator[Symptom]:
    """The first part that differs: nothing is told of later ones, nor of what file and reference have in common."""
    for fact in evidence.facts:
        if fact.name == "draft_departs_at" and fact.value == "nothing":
            yield from (_symptom(name, False, fact) for name in sorted(set(_DEPARTS.values())) if "draft_" in name)
        elif fact.name == "draft_departs_at":
            yield _symptom(_DEPARTS[str(fact.value)], True, fact)
