"""Healthy servers by simulation: prompts differ, rounds are counted, and no fault may be named by chance."""

import numpy as np
import pytest

from wiring.diagnosis.verdict import diagnose
from wiring.logs.evidence import AcceptanceRecord, AccuracyRecord, Evidence, Setting, SpeedRecord

STEPS, ROUNDS = 5, 40  # a prompt


def prompts(rng, count, mean, spread):
    """Each prompt's own probability that a draft is right."""
    return rng.beta(mean * spread, (1 - mean) * spread, count)


def rounds(rng, chances):
    """Accepted drafts of every round: chains that end at the first wrong draft."""
    right = rng.random((len(chances), ROUNDS, STEPS)) < chances[:, None, None]
    return right.cumprod(2).sum(2).ravel()


def acceptance(accepted, **condition):
    positions = tuple(float((accepted > k).mean()) for k in range(STEPS))
    return AcceptanceRecord(
        source=str(condition),
        accept_length=1 + float(accepted.mean()),
        by_position=positions,
        rounds=len(accepted),
        proposed=STEPS,
        condition=condition,
    )


def accuracy(rng, chances, rows, **more):
    """Depth by depth, each token by itself."""
    found = []
    for depth in range(STEPS):
        right = rng.random((len(chances), rows)) < chances[:, None]
        found.append(AccuracyRecord(source="alone", depth=depth, accuracy=float(right.mean()), rows=right.size, **more))
    return tuple(found)


def healthy(seed):
    """T on other text, S on the served text, acceptance, four A/B on the same prompts, lengths, temperature, cost."""
    rng = np.random.default_rng(seed)
    mean, spread, count = rng.uniform(0.55, 0.85), rng.uniform(6, 40), int(rng.integers(6, 40))
    served = prompts(rng, count, mean, spread)
    longer, hot = prompts(rng, count, mean * 0.95, spread), served * rng.uniform(0.88, 1)
    arms = [acceptance(rounds(rng, served))]
    for name, values in (("cached", (False, True)), ("cuda_graphs", (False, True)), ("batch", (1, 8)), ("tp", (1, 2))):
        arms += [acceptance(rounds(rng, served), **{name: value}) for value in values]
    arms += [acceptance(rounds(rng, served), prompt_tokens=512), acceptance(rounds(rng, longer), prompt_tokens=8192)]
    arms += [acceptance(rounds(rng, served), temperature=0.0), acceptance(rounds(rng, hot), temperature=1.0)]
    step = rng.uniform(0.01, 0.03)
    return Evidence(
        setting=Setting(steps=STEPS),
        accuracy=(
            *accuracy(rng, prompts(rng, 64, mean, spread), 80, side="T", text="held_out"),
            *accuracy(rng, served, 60, side="S", text="served"),
        ),
        acceptance=tuple(arms),
        speed=(
            SpeedRecord(source="p", arm="plain", step_s=step),
            SpeedRecord(source="d", arm="draft", round_s=step * (1 + rng.uniform(0.03, 0.15) * STEPS)),
        ),
    )


def test_no_healthy_server_has_a_fault_by_chance():
    verdicts = [diagnose(healthy(seed)) for seed in range(200)]
    assert [v.summary for v in verdicts if v.named] == []
    assert sum(v.healthy for v in verdicts) >= 180


@pytest.mark.parametrize(("name", "values", "fault"), [("cached", (False, True), 15), ("batch", (1, 8), 18)])
def test_a_fault_of_one_condition_is_found_among_the_same_noise(name, values, fault):
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        base = healthy(seed)
        chances = prompts(rng, 24, 0.7, 15)
        arms = [a for a in base.acceptance if name not in a.condition]
        parts = zip(values, (1, 0.6), strict=True)
        arms += [acceptance(rounds(rng, chances * part), **{name: value}) for value, part in parts]
        verdict = diagnose(base.model_copy(update={"acceptance": tuple(arms)}))
        found += verdict.named == (fault,)
    assert found >= 58
