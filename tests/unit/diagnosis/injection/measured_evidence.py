"""Measure a server by one protocol, healthy or not, and return evidence without a label.

L: lint of the deployed files and the resolved arguments. T: the checkpoint alone on saved states, and on the served
text. S, C: states captured from the server, compared with the reference's. P: acceptance, and the same with one
condition changed. R: seconds of a plain step and of a round, as recorded on the CPU pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from planted_server import ENGINE, VERSION, Moment, Run, Served, Server, checkpoint, fed, layouts, running_draft, serve
from tiny_bench import STATES, TINY, Bench
from torch import Tensor

from wiring.accuracy.accuracy_report import AccuracyReport
from wiring.accuracy.evaluation import evaluate
from wiring.accuracy.replay import summarize
from wiring.bench.acceptance_difference import Request, compare
from wiring.bench.arm_results import unique_share
from wiring.capture.matching import TextRows, compare_slots
from wiring.checkpoints.states import StateSample
from wiring.engines.resolve import Engine
from wiring.lint import Changed, ServerView, lint
from wiring.logs.evidence import (
    AcceptanceRecord,
    AccuracyRecord,
    ArgumentRecord,
    DifferenceRecord,
    Evidence,
    FactRecord,
    LintRecord,
    Setting,
    SlotRecord,
    SpeedRecord,
)
from wiring.model.eagle3 import Eagle3Draft

RECORDED = Path(__file__).parents[4] / "data" / "recorded" / "cpu-tiny" / "05_rebenchmark.json"
CAPTURED = 4  # requests whose states are compared
TOLD = ("tp", "cuda_graphs", "draft_kv_dtype", "draft_quantisation", "target_quantisation")  # flags of the setting
FEW_STEPS, LONGER = 2, 48
TRACED = 24  # requests that the draft is run on alone
# A flag that is not plain, and the plain value that the server is started with for comparison.
PLAIN = {
    "tp": 1,
    "fused_all_reduce": False,
    "draft_kv_dtype": "bfloat16",
    "draft_quantisation": "none",
    "target_quantisation": "none",
    "chunked": False,
    "handed_over": False,
    "cuda_graphs": False,
}


def examine(bench: Bench, server: Server, name: str) -> Evidence:
    """Every measurement that the server allows."""
    linted, facts = _lint(bench, server)
    setting = _setting(bench, server)
    accuracy = _alone(bench, server)
    arguments = tuple(
        ArgumentRecord(source="server_info", name=k, asked=v, resolved=server.resolved.get(k, v))
        for k, v in server.asked.items()
    )
    common = dict(name=name, setting=setting, lint=linted, arguments=arguments)
    if layouts(bench, server)["prefill"] is None or _slots_of(bench, server) != 3:
        return Evidence(**common, accuracy=accuracy, facts=facts)  # the server does not start
    main = serve(bench, server, server.main)
    captured = server.algorithm == "EAGLE3"
    return Evidence(
        **common,
        accuracy=(*accuracy, *_replayed(bench, server), *(_on_served_states(bench, server) if captured else ())),
        slots=_slots(bench, server) if captured else (),
        acceptance=(_reported(main, server), *_by_round(main, server.steps)),
        differences=tuple(_differences(bench, server)),
        speed=_speed(server, main),
        facts=(*facts, *_facts(bench, server, main)),
    )


def _slots_of(bench: Bench, server: Server) -> int:
    rule = layouts(bench, server)["prefill"]
    return len(rule) if rule else 0


def _setting(bench: Bench, server: Server) -> Setting:
    flags = server.all_flags()
    return Setting(
        engine=ENGINE,
        version=VERSION,
        steps=server.asked.get("speculative_num_steps", server.steps),
        topk=1,
        batch=1,
        temperature=0.0,
        trained_layout=server.trained,
        **{name: flags[name] for name in TOLD},
        draft_config=json.loads((server.draft / "config.json").read_text()),
        target_config=bench.target_config,
    )


def _lint(bench: Bench, server: Server) -> tuple[tuple[LintRecord, ...], tuple[FactRecord, ...]]:
    flags = server.all_flags()
    resolved = {**server.asked, **server.resolved}
    arguments = {
        **resolved,
        "speculative_algorithm": server.algorithm,
        "tp_size": flags["tp"],
        "disable_cuda_graph": not flags["cuda_graphs"],
        "model_path": str(TINY / "target"),
        "speculative_draft_model_path": str(server.draft),
    }
    changed = tuple(Changed(k, v, resolved[k]) for k, v in server.asked.items() if resolved[k] != v)
    view = ServerView(arguments, changed, running=True, version=VERSION, where="server_info")
    found = lint(server.draft, TINY / "target", Engine(ENGINE, VERSION), trained=server.trained, server=view)
    rows = tuple(
        LintRecord(source="wiring lint", kind=f.kind, severity=f.severity, where=f.where, evidence=f.evidence)
        for f in found.findings
        if f.kind
    )
    return rows, (FactRecord(source="wiring lint", letter="L", name="lint_made", value=True),)


def _records(source: str, side: str, report: AccuracyReport, text: str, **more: Any) -> Iterator[AccuracyRecord]:
    """One record per depth."""
    for d in report.depths:
        counts = dict(depth=d.depth, accuracy=d.accuracy, rows=d.total, low=d.low, high=d.high)
        yield AccuracyRecord(source=source, side=side, text=text, rule=report.rule, **counts, **more)


def _alone(bench: Bench, server: Server) -> tuple[AccuracyRecord, ...]:
    """T: the checkpoint on saved held-out states, also with shifted tokens as a control, and the trainer's figure."""
    samples = [s for s in bench.held_out if server.trained_on in (None, _domain(bench, s.tokens))][:STATES]
    plain, shifted = (
        _evaluated(bench, server, f"{server.trained_on} {control}", samples, control) for control in ("none", "shifted")
    )
    rows = [*_records("wiring accuracy", "T", plain, "held_out")]
    rows += list(_records("wiring accuracy", "T", shifted, "held_out", control="shifted"))[:1]
    trained = replace(server, draft=server.original or server.draft)
    first = _evaluated(bench, trained, f"{server.trained_on} none", samples).depths[0]
    claim = dict(accuracy=first.accuracy, rows=first.total, claimed=True, text="held_out")
    return (*rows, AccuracyRecord(source="the trainer's own figure", side="T", **claim))


_evaluations: dict[tuple[bytes, str], AccuracyReport] = {}


def _evaluated(bench: Bench, server: Server, name: str, samples: Sequence[StateSample], control: str = "none"):
    """Accuracy by depth; the same weights, shape and samples (`name`) are measured once. No name: every time."""
    draft = _offline(bench, server.draft)
    key = hashlib.sha1(repr((draft.config, server.trained)).encode())
    for tensor in (*draft.state_dict().values(), draft.target_ids):
        key.update(tensor.contiguous().numpy().tobytes())
    if not name or (key.digest(), name) not in _evaluations:
        report = evaluate(draft, samples, server.trained, 5, bench.head, controls=(control,))[control]
        if not name:
            return report
        _evaluations[key.digest(), name] = report
    return _evaluations[key.digest(), name]


def _domain(bench: Bench, tokens: Tensor) -> str:
    return "lists" if int(tokens[0]) == int(bench.texts["greedy"][1, 0]) else "market"


def _offline(bench: Bench, folder: Path) -> Eagle3Draft:
    read = checkpoint(Server(folder))
    return Eagle3Draft.from_checkpoint(read, bench.embedding, bench.head.weight)


def _capturing(server: Server) -> Run:
    return replace(server.main, count=None, cached=False, batch=1)


def _on_served_states(bench: Bench, server: Server) -> tuple[AccuracyRecord, ...]:
    """T on the text that the server decoded, and S on the states that it fed for the same rows."""
    run = _capturing(server)
    texts, served = bench.text_set(run.texts), fed(bench, server, run)
    mask = torch.ones(texts.tokens.shape[1], dtype=torch.int64)
    mask[: run.prompt] = 0
    trained = texts.boundaries[list(server.trained)].permute(1, 2, 0, 3)
    rows = []
    for side, states, name in (("T", trained, f"{run.texts} {run.prompt}"), ("S", served, "")):
        samples = [
            StateSample(f"request {i}", texts.tokens[i], mask, states[i], server.trained, texts.last_hidden[i])
            for i in range(min(TRACED, len(texts.tokens)))
        ]
        if torch.equal(states, trained):
            name = f"{run.texts} {run.prompt}"
        rows += _records("captured requests", side, _evaluated(bench, server, name, samples), "served")
    return tuple(rows)


def _replay(bench: Bench, server: Server, run: Run) -> Served:
    """Along the very text that the server decoded: what chains of the draft on its trained states would accept."""

    def trained(moment: Moment, _states: Tensor) -> Tensor:
        return moment.texts.boundaries[list(server.trained)].permute(1, 2, 0, 3)

    return serve(bench, Server(server.draft, steps=server.steps, feeds=trained), replace(run, cached=False, batch=1))


def _replayed(bench: Bench, server: Server) -> Iterator[AccuracyRecord]:
    """The replay as accuracies by depth."""
    rounds = _pooled(_replay(bench, server, _capturing(server)))
    reached = [sum(a >= k for a in rounds) for k in range(server.steps + 1)]
    common = dict(source="replay without a server", side="T", conditional=True, text="served")
    for depth, (before, right) in enumerate(pairwise(reached)):
        if before:
            rule = "rounds of a replay along the decoded text"
            yield AccuracyRecord(depth=depth, accuracy=right / before, rows=before, rule=rule, **common)


def _slots(bench: Bench, server: Server) -> tuple[SlotRecord, ...]:
    """C: every slot in both phases against every boundary, shift and transform; the ranks against each other."""
    run = _capturing(server)
    texts, served = bench.text_set(run.texts), fed(bench, server, run)[:CAPTURED]
    ranks = None
    if server.all_flags()["tp"] > 1:
        ranks = torch.isclose(served, fed(bench, server, run, rank=1)[:CAPTURED], rtol=1e-2, atol=1e-3)
    count, length = served.shape[:2]
    reference = texts.boundaries[:, :count].flatten(1, 2)
    rows = TextRows.whole([length] * count)
    slots: list[SlotRecord] = []
    for phase in ("prefill", "verify"):
        here = (rows.positions < run.prompt) == (phase == "prefill")
        index = here.nonzero()[:, 0]
        found = compare_slots(
            served.flatten(0, 1)[index],
            reference,
            served_rows=TextRows(rows.positions[index], rows.texts[index]),
            reference_rows=rows,
            norm=bench.norm,
        )
        for match in found.matches:
            wanted = server.trained[match.slot]
            own, expected = served.flatten(0, 1)[index, match.slot].double(), reference[wanted, index].double()
            told = {"drift": "drifted", "between": "partial sum"}.get(match.verdict)
            same = match.verdict == "equals"
            agree = None if ranks is None else bool(ranks.flatten(0, 1)[index, match.slot].float().mean() > 0.98)
            slots.append(
                SlotRecord(
                    source=f"capture, {phase}",
                    phase=phase,
                    slot=match.slot,
                    wanted=wanted,
                    boundary=match.boundary,
                    shift=match.shift if same else 0,
                    transform=told or (match.transform if same else "raw"),
                    cosine=_finite(match.cosine),
                    norm_ratio=_finite(match.norm_ratio),
                    cosine_wanted=_finite(float(torch.cosine_similarity(own, expected, dim=-1).median())),
                    norm_ratio_wanted=_finite(float((own.norm(dim=-1) / expected.norm(dim=-1)).median())),
                    rows=match.rows,
                    ranks_agree=agree,
                )
            )
    return tuple(slots)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _pooled(served: Served) -> list[int]:
    return [a for rounds in served.rounds for a in rounds]


def _acceptance(served: Served, steps: int, rounds: Sequence[int] | None = None, **condition) -> AcceptanceRecord:
    rounds = _pooled(served) if rounds is None else rounds
    found = summarize(rounds, steps)
    return AcceptanceRecord(
        source=f"counters {sorted(condition.items())}" if condition else "counters",
        accept_length=found.accept_length,
        by_position=found.acceptance_by_position,
        rounds=len(rounds),
        proposed=steps,
        rule="1 + accepted drafts / verify rounds",
        condition=condition,
    )


def _reported(served: Served, server: Server) -> AcceptanceRecord:
    """The benchmark's own figure."""
    record = _acceptance(served, server.steps)
    return record.model_copy(update={"accept_length": record.accept_length + server.benchmark.get("bonus", 1) - 1})


def _by_round(served: Served, steps: int) -> Iterator[AcceptanceRecord]:
    first = [rounds[0] for rounds in served.rounds if rounds]
    later = [a for rounds in served.rounds for a in rounds[1:]]
    yield _acceptance(served, steps, first, first_round=True)
    yield _acceptance(served, steps, later, first_round=False)


def _differences(bench: Bench, server: Server) -> Iterator[DifferenceRecord]:
    """The same prompts twice, with one thing changed: how they are sent, or how the server is started."""
    base = server.main
    sent = {
        "cached": ((False, replace(base, cached=False)), (True, replace(base, cached=True))),
        "batch": ((1, replace(base, batch=1)), (8, replace(base, batch=8))),
    }
    if base.texts == "greedy" and server.recurrence == "states":  # the loop round by round is greedy, and slow
        cold = replace(base, count=16)
        warm = replace(cold, texts=f"warm {server.hot}", temperature=server.hot)
        sent["temperature"] = ((0.0, cold), (server.hot, warm))
        short = replace(base, new=min(base.new, LONGER))
        late = replace(short, prompt=base.prompt + LONGER)
        sent["prompt_tokens"] = ((short.prompt, short), (late.prompt, late))
    for by, ((a, run_a), (b, run_b)) in sent.items():
        yield _difference(by, (a, serve(bench, server, run_a)), (b, serve(bench, server, run_b)))
    flags = server.all_flags()
    started = {name: plain for name, plain in PLAIN.items() if flags[name] != plain}
    started["attention_backend"] = "flashinfer" if flags["attention_backend"] != "flashinfer" else "triton"
    for name, plain in started.items():
        other = server.with_flags(**{name: plain})
        yield _difference(name, (plain, serve(bench, other, base)), (flags[name], serve(bench, server, base)))
    if server.steps > FEW_STEPS:
        other = replace(server, steps=FEW_STEPS)
        yield _difference("steps", (FEW_STEPS, serve(bench, other, base)), (server.steps, serve(bench, server, base)))
    if not flags["chunked"]:
        other = server.with_flags(chunked=True)
        yield _difference("chunked", (False, serve(bench, server, base)), (True, serve(bench, other, base)))
    alone, served = (_first(found) for found in (_replay(bench, server, base), serve(bench, server, base)))
    yield _difference("server", (False, alone), (True, served), first_round=True)


def _first(served: Served) -> Served:
    """The first round of each request alone."""
    return replace(served, rounds=tuple(rounds[:1] for rounds in served.rounds))


def _difference(by: str, a: tuple[Any, Served], b: tuple[Any, Served], **condition: Any) -> DifferenceRecord:
    requests = [
        [Request(tuple(np.bincount(np.array(r, int)).tolist()), i) for i, r in enumerate(side[1].rounds)]
        for side in (a, b)
    ]
    found = compare(*requests)
    lengths = dict(accept_length_a=found.accept_length_a, accept_length_b=found.accept_length_b, p_value=found.p_value)
    bounds = dict(low=_finite(found.low), high=_finite(found.high))
    return DifferenceRecord(source=f"wiring ab, {by}", by=by, a=a[0], b=b[0], condition=condition, **lengths, **bounds)


def _speed(server: Server, main: Served) -> tuple[SpeedRecord, ...]:
    """Seconds as recorded on the CPU pair; the price of a round is the recorded line unless the server's is another."""
    recorded = json.loads(RECORDED.read_text())
    step_s = recorded["plain"]["step_s"]
    (n, low), (m, high) = sorted((int(k), v) for k, v in recorded["round_costs"].items())
    per_step = (high - low) / (m - n)

    def price(steps: int) -> float:
        return low + per_step * (steps - n) if server.round_price is None else server.round_price(steps)

    length = summarize(_pooled(main), server.steps).accept_length
    round_s, nothing_s = step_s * price(server.steps), step_s * price(0)
    draft = dict(arm="draft", tok_per_s=length / round_s, round_s=round_s, speedup=length * step_s / round_s)
    return (
        SpeedRecord(source="benchmark", arm="plain", tok_per_s=1 / step_s, step_s=step_s),
        SpeedRecord(source="benchmark", accept_length=length, **draft),
        SpeedRecord(
            source="rounds without drafts", arm="draft", round_s=nothing_s, accept_length=1.0, condition={"steps": 0}
        ),
    )


def _facts(bench: Bench, server: Server, main: Served) -> tuple[FactRecord, ...]:
    draft, flags = running_draft(bench, server), server.all_flags()
    texts = bench.texts[server.main.texts][: server.main.count, server.main.prompt :]
    text = [row.tolist() for row in texts]
    sayable = _offline(bench, server.draft).target_ids
    original = checkpoint(Server(server.original or server.draft)).tensors.get("d2t")
    deployed = checkpoint(server).tensors.get("d2t")
    found: dict[str, tuple[str, Any]] = {
        "outputs_equal_plain": ("P", not server.accepts_all),
        "text_broken": ("P", server.accepts_all),
        "nonfinite_logits": ("P", not main.finite),
        "drafted_ids_share_top": ("P", float(torch.bincount(main.drafted).max() / len(main.drafted))),
        "drafted_ids_low": ("P", float((main.drafted < len(draft.target_ids)).float().mean())),
        "unique_bigram_share": ("P", min(unique_share(row, 2) for row in text)),
        "prompts": ("P", len(text)),
        "prompts_templated": ("P", True),
        "warmed_up": ("R", True),
        "random_prompts": ("P", False),
        "embedding_equals_target": ("L", torch.equal(draft.embedding, bench.embedding)),
        "map_present": ("L", deployed is not None),
        "map_changed": ("L", original is not None and deployed is not None and not torch.equal(original, deployed)),
        "map_coverage": ("L", float(torch.isin(torch.tensor(text), sayable).float().mean())),
        "load_quantisation": ("L", flags["draft_quantisation"]),
        "spec_algorithm": ("L", server.algorithm),
        "draft_architecture": ("L", "LlamaForCausalLMEagle3"),
    }
    if flags["tp"] > 1:
        other = running_draft(bench, server.with_flags(rank=1))
        found["embedding_ranks_agree"] = "L", torch.equal(draft.embedding, other.embedding)
    found |= {name: (found[name][0], value) for name, value in server.benchmark.items() if name in found}
    return tuple(
        FactRecord(source="measured", letter=letter, name=name, value=value) for name, (letter, value) in found.items()
    )
