"""SGLang's `/server_info` and the `meta_info` of its answers.

`/server_info` (0.5.6 on; `/get_server_info` in all releases): `avg_spec_accept_length` = (accepted drafts + rounds) /
rounds since start or `flush_cache`, updated at a log tick only, so a short run shows none or an old one. At the top
level in 0.4.6 to 0.4.6.post4, in `internal_states` after that. `meta_info`: `wiring.engines.sglang_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wiring.bench.acceptance import acceptance
from wiring.engines.sglang_metrics import META_COUNTS
from wiring.logs.acceptance_figures import Figures, normalise
from wiring.logs.evidence import AcceptanceRecord, FactRecord, Record, SpeedRecord
from wiring.logs.log_context import Context, scan
from wiring.logs.sglang_log import TOTAL

_COUNTED = "SGLang meta_info: drafts only, {accepted} / spec_verify_ct"
_DERIVED = "SGLang meta_info: accepted = completion_tokens - 1 (the prefill token) - spec_verify_ct, at most"


def read_server_info(
    info: Mapping[str, Any], version: str | None = None, *, source: str = "/server_info"
) -> tuple[Record, ...]:
    """Return the records of one `/server_info`: acceptance and speed per data-parallel rank, and the algorithm.

    `version` is taken from the answer where it is not given. A server without a figure yet gives no acceptance.
    """
    context = server_context(info, version, source)
    algorithm, condition = info.get("speculative_algorithm"), context.condition()
    found: list[Record] = []
    if algorithm:
        found.append(FactRecord(source=source, letter="L", name="spec_algorithm", value=str(algorithm)))
    states = info.get("internal_states") or [info]
    for rank, state in enumerate(states):
        here = source if len(states) == 1 else f"{source}, internal_states[{rank}]"
        length, speed = state.get("avg_spec_accept_length"), state.get("last_gen_throughput")
        measured = isinstance(length, int | float)
        if measured:
            figures = Figures(float(length), None, per_round=context.per_round)
            found.append(normalise(here, figures, rule=TOTAL, condition=condition))
        if isinstance(speed, int | float) and speed > 0:
            arm = "draft" if algorithm or measured else "plain"
            here += ", last_gen_throughput of the last log interval"
            found.append(SpeedRecord(source=here, arm=arm, tok_per_s=float(speed), condition=condition))
    return tuple(found)


def read_meta_info(
    answers: Sequence[Mapping[str, Any]], version: str | None = None, *, source: str = "meta_info", **given: Any
) -> tuple[AcceptanceRecord, ...]:
    """Return one record per answer that speculated: `meta_info` itself, or the answer of `/generate` that holds it.

    The names of the counts identify the release; none of them counts the bonus token. Where a release has no counts
    (to 0.5.5.post2), accepted drafts follow from the completion tokens, which a stop within a round makes too few.
    `given`: fields of `Given`.
    """
    context = scan((), source=source, **{**given, "engine": "sglang", "version": version})
    records = []
    for index, answer in enumerate(answers, start=1):
        meta = answer.get("meta_info", answer)
        rounds = meta.get("spec_verify_ct")
        if isinstance(rounds, int) and rounds > 0:
            records.append(_answer(f"{source}, answer {index}", meta, rounds, context))
    return tuple(records)


def _answer(source: str, meta: Mapping[str, Any], rounds: int, context: Context) -> AcceptanceRecord:
    cached, prompt, per_round = meta.get("cached_tokens"), meta.get("prompt_tokens"), context.per_round
    condition = context.condition(
        cached=cached > 0 if isinstance(cached, int) else None,
        prompt_tokens=prompt if isinstance(prompt, int) else None,
    )
    names = next((names for names in META_COUNTS if names.accepted in meta), None)
    if names is None:
        tokens = meta.get("completion_tokens")
        accepted = max(tokens - 1 - rounds, 0) if isinstance(tokens, int) else None
        figures = Figures(rounds=rounds, accepted=accepted, per_round=per_round)
        return normalise(source, figures, rule=_DERIVED, condition=condition)
    accepted, proposed = int(meta[names.accepted]), meta.get(names.proposed)
    if per_round is None and isinstance(proposed, int) and proposed % rounds == 0:
        per_round = proposed // rounds  # of a chain; a tree counts all its nodes, which bounds the depth as well
    histogram = meta.get(names.histogram) if names.histogram else None
    counted = acceptance(histogram, max(per_round or 0, len(histogram) - 1)) if histogram else None
    fits = counted is not None and (counted.rounds, counted.correct_drafts) == (rounds, accepted)
    figures = Figures(
        rounds=rounds,
        accepted=accepted,
        drafted=proposed if isinstance(proposed, int) else None,
        by_position=counted.by_position if counted is not None and fits else (),
        position_digits=None,
        rate=meta.get("spec_accept_rate"),
        per_round=per_round,
    )
    found = normalise(source, figures, rule=_COUNTED.format(accepted=names.accepted), condition=condition)
    if counted is None or fits:
        return found
    problem = (
        f"the histogram holds {counted.rounds} rounds and {counted.correct_drafts} drafts, the counts "
        f"are {rounds} and {accepted}: no counting rule explains it"
    )
    return found.model_copy(update={"impossible": "; ".join(filter(None, (found.impossible, problem)))})


def server_context(info: Mapping[str, Any], version: str | None = None, source: str = "/server_info") -> Context:
    """Read the server's arguments as `/server_info` prints them, like those of a log."""
    flat = {name: value for name, value in info.items() if value is None or isinstance(value, str | int | float)}
    line = "server_args=" + ", ".join(f"'{name}': {value!r}" for name, value in flat.items())
    return scan((line,), source=source, engine="sglang", version=version or info.get("version"))
