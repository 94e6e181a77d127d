"""The server that faults are planted in, held against the library's replay and the target itself."""

import torch
from planted_server import Run, chained, fed, running_draft, serve
from planting import healthy
from tiny_bench import PROMPT, TRAINED

from wiring.accuracy.replay import replay
from wiring.diagnosis.verdict import diagnose
from wiring.workbook.gather_evidence import evidence_of_run


def test_the_texts_are_what_the_target_says(cases):
    for name in ("greedy", "random", "looping"):
        texts = cases.ground.bench.text_set(name)
        chosen = texts.logits[:, PROMPT - 1 : -1].argmax(-1)
        assert torch.equal(chosen, texts.tokens[:, PROMPT:]), name


def test_sampled_texts_are_as_likely_as_their_temperature_makes_them(cases):
    """The surprise of the sampled tokens adds up to their entropy, within four of its standard deviations."""
    for temperature in (1.0, 1.5):
        texts = cases.ground.bench.text_set(f"warm {temperature}")
        logs = (texts.logits[:, PROMPT - 1 : -1] / temperature).log_softmax(-1)
        surprise = -logs.gather(-1, texts.tokens[:, PROMPT:, None]).sum()
        entropy = -(logs.exp() * logs).sum(-1)
        variance = (logs.exp() * logs.square()).sum(-1) - entropy.square()
        assert abs(float(surprise - entropy.sum())) < 4 * float(variance.sum().sqrt())


def test_a_healthy_server_accepts_what_the_replay_accepts(cases):
    ground = cases.ground
    server, run = healthy(ground), Run(count=3)
    texts, draft = ground.bench.text_set("greedy"), running_draft(ground.bench, server)
    states = texts.boundaries[list(TRAINED)].permute(1, 2, 0, 3)
    for i, rounds in enumerate(serve(ground.bench, server, run).rounds):
        expected = replay(draft, states[i], texts.tokens[i], run.prompt, TRAINED, server.steps, run.prompt + run.new)
        assert rounds == expected.rounds


def test_round_by_round_drafting_accepts_what_the_replay_accepts(cases):
    ground = cases.ground
    server, run = healthy(ground), Run()
    draft = running_draft(ground.bench, server)
    fused = draft.project(fed(ground.bench, server, run)[:2])
    texts = ground.bench.text_set("greedy").tokens
    expected = serve(ground.bench, server, Run(count=2)).rounds
    assert chained(server, draft, fused, texts[:2], run.prompt, run.prompt + run.new) == expected


def test_rejection_sampling_accepts_as_often_as_the_distributions_overlap(cases):
    """The chance that a first draft of q stands is the sum of min(p, q)."""
    ground = cases.ground
    server = healthy(ground)
    hot = Run(texts="warm 1.0", temperature=1.0)
    sampled = serve(ground.bench, server, hot)
    texts, draft = ground.bench.text_set("warm 1.0"), running_draft(ground.bench, server)
    rows = slice(PROMPT - 1, PROMPT + 46)
    q = torch.zeros(len(texts.tokens), texts.tokens.shape[1] - 1, texts.logits.shape[-1])
    logits = next(draft.unrolled(texts.tokens, texts.boundaries[list(TRAINED)].permute(1, 2, 0, 3), 1))
    q.index_copy_(-1, draft.target_ids, logits.softmax(-1))
    p = texts.logits[:, 1:].softmax(-1)
    chance = torch.minimum(p, q).sum(-1)[:, rows].mean()
    firsts = [a > 0 for rounds in sampled.rounds for a in rounds]
    assert abs(sum(firsts) / len(firsts) - float(chance)) < 0.1


def test_the_recorded_run_of_the_real_server_has_two_faults_and_none_when_cured(recorded_run):
    """Ids [3, 31, 59] for a draft of (0, 3, 31), and 8 draft tokens asked for where a chain of 5 steps verifies 6."""
    assert diagnose(evidence_of_run(recorded_run)).named == (1, 21)
    assert diagnose(evidence_of_run(recorded_run, cured=True)).healthy
