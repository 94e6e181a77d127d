"""Prometheus text of a server's `/metrics`: counters of vLLM and llama.cpp, gauges and a counter of SGLang.

vLLM (`vllm/v1/spec_decode/metrics.py`) and llama.cpp (`tools/server`) count drafts, draft tokens, accepted tokens and
accepted tokens by position, where position label 0 is the first draft. SGLang has gauges of the last log interval
and, from 0.5.13 on, `sglang:spec_verify_calls_total`, which grows with a request's end, as its generated tokens do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from wiring.errors import WiringError
from wiring.logs.acceptance_figures import Figures, normalise
from wiring.logs.evidence import Record, SpeedRecord
from wiring.logs.log_context import scan

Totals = Mapping[tuple[str, str], float]
_ENGINES = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang"}  # by the prefix of their metrics
_COUNTED = "{engine} counters{since}: 1 + accepted / drafts, bonus token included; position label 0 is the first draft"
_GAUGE = "SGLang gauge spec_accept_length: accept length with the bonus token in the last log interval; no rounds"
_FINISHED = (
    "SGLang counters{since}: accepted = generated tokens - requests (their prefill tokens) - verify calls, of finished "
    "requests, all of which must have speculated"
)


def read_metrics(
    text: str, earlier: str | None = None, *, source: str = "/metrics", **given: Any
) -> tuple[Record, ...]:
    """Return the records of one scrape, or of what happened between `earlier` and this one.

    Counters of all engines and ranks are added up; without `earlier` they count from the server's start.
    `given`: fields of `Given`. Raises WiringError on text that is not a Prometheus exposition, and on an earlier scrape
    of another engine.
    """
    now, before = _totals(text, source), {} if earlier is None else _totals(earlier, f"{source} before")
    own, other = ({name.partition(":")[0] for name, _ in totals} & set(_ENGINES) for totals in (now, before))
    if earlier is not None and own and not own & other:
        raise WiringError(
            "the earlier scrape is not of this server",
            code="scrape-of-another-engine",
            where=f"{source} before",
            expected=f"metrics of {' and '.join(sorted(own))}",
            found=f"metrics of {' and '.join(sorted(other))}" if other else "no known metrics",
            remedy="Name two scrapes of one server",
        )
    since = " since the server's start" if earlier is None else " between two readings"
    found: list[Record] = []
    for prefix in ("vllm", "llamacpp"):
        grown = {name: now[name] - before.get(name, 0) for name in now if name[0].startswith(f"{prefix}:spec_decode_")}
        found += _counters(grown, prefix, since, given, source) if grown else []
    if any(name.startswith("sglang:spec_") for name, _ in now):
        found += _sglang(now, before, since, given, source)
    return tuple(found)


def _counters(grown: Totals, prefix: str, since: str, given: Mapping[str, Any], source: str) -> list[Record]:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    totals = (grown.get((f"{prefix}:spec_decode_{name}", "")) for name in names)
    rounds, drafted, accepted = (None if value is None else round(value) for value in totals)
    if not rounds or accepted is None:
        return []
    engine = _ENGINES[prefix]
    context = scan((), source=source, **{**given, "engine": engine})
    by_position = {
        int(position): value
        for (metric, position), value in grown.items()
        if metric.endswith("num_accepted_tokens_per_pos") and position.isdigit()
    }
    shares = tuple(by_position.get(k, 0.0) / rounds for k in range(max(by_position, default=-1) + 1))
    figures = Figures(
        rounds=rounds,
        accepted=accepted,
        drafted=drafted,
        by_position=shares,
        position_digits=None,
        per_round=context.per_round or len(shares) or None,
    )
    rule = _COUNTED.format(engine=engine, since=since)
    return [normalise(source, figures, rule=rule, condition=context.condition())]


def _sglang(now: Totals, before: Totals, since: str, given: Mapping[str, Any], source: str) -> list[Record]:
    def gauge(name: str) -> float | None:
        return now.get((f"sglang:{name}", "last"))

    def grown(name: str) -> int:
        key = (f"sglang:{name}", "")
        return round(now.get(key, 0.0) - before.get(key, 0.0))

    known = {**given, "engine": "sglang"}
    for name, metric in (("steps", "spec_num_steps"), ("draft_tokens", "spec_num_draft_tokens")):
        if known.get(name) is None and (value := gauge(metric)):
            known[name] = int(value)
    context = scan((), source=source, **known)
    condition, per_round = context.condition(), context.per_round
    found: list[Record] = []
    rounds, tokens, requests = grown("spec_verify_calls"), grown("generation_tokens"), grown("num_requests")
    if rounds > 0 and tokens > 0:
        figures = Figures(rounds=rounds, accepted=tokens - requests - rounds, per_round=per_round)
        found.append(normalise(source, figures, rule=_FINISHED.format(since=since), condition=condition))
    length, rate, speed = gauge("spec_accept_length"), gauge("spec_accept_rate"), gauge("gen_throughput")
    if length:  # 0 before the first interval
        figures = Figures(length, None, rate=rate, per_round=per_round)
        found.append(normalise(source, figures, rule=_GAUGE, condition=condition))
    if speed:
        arm = "draft" if length else "plain"
        length = length or None
        found.append(SpeedRecord(source=source, arm=arm, tok_per_s=speed, accept_length=length, condition=condition))
    return found


def _totals(text: str, source: str) -> Totals:
    """Counters added up over labels, by (name without _total, position label); gauges by (name, "last")."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[tuple[str, str], float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if family.type == "gauge":
                    totals[sample.name, "last"] = sample.value
                elif not sample.name.endswith(("_created", "_bucket", "_sum", "_count")):
                    totals[sample.name.removesuffix("_total"), sample.labels.get("position", "")] += sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise WiringError(
            "not the text of a server's metrics",
            code="metrics-not-prometheus",
            where=source,
            expected="Prometheus exposition",
            found=str(error),
            remedy="Save the answer of GET /metrics",
        ) from None
    return totals
