"""Decode throughput under the three forms of the cure, in one run: three CPU servers that take turns by prompt.

A form changes which states are kept, not what is computed, so texts and accepted drafts must be equal and speed must
not differ. What is compared is the time of each request beside the same request under another form a moment later; the
median over prompts and repeats is held against 3 %, and must be known more closely than that, or the run says nothing.
"""

from __future__ import annotations

import itertools
import random
from contextlib import ExitStack
from functools import partial
from statistics import median

import pytest

from wiring.bench.benchmark import Arm, again, measure
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.workbook.case import open_case
from wiring.workbook.fixes import applied, plan_for
from wiring.workbook.live import read_prompts, server_spec, start_server

pytestmark = [pytest.mark.benchmark(group="cures"), pytest.mark.timeout(3600)]

PROMPTS, REPEATS, NEW_TOKENS = 8, 6, 48
FORMS = ("config", "plugin", "source")
BOUND = 0.03


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Trials by form, and those of the first form that close the run."""
    case = open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="live")
    target = read_target_config(case.profile.target)
    draft = read_json(case.profile.draft / "config.json", "the draft's config")
    with ExitStack() as cures:
        arms = []
        for cure in plan_for(case, target.raw, draft).fixes:
            made = cures.enter_context(applied(case, cure))
            spec = server_spec(case.profile, draft=made.draft, env=made.environment, sglang=made.sglang)
            arms.append(Arm(str(cure.form), partial(start_server, case, spec, str(cure.form), print)))
        assert tuple(arm.name for arm in arms) == FORMS
        found = measure(
            arms,
            read_prompts(case.profile.prompts, PROMPTS),
            new_tokens=NEW_TOKENS,
            repeats=REPEATS,
            warmup_tokens=case.profile.benchmark.warmup_tokens,
            interleaved=True,
            closing_prompts=PROMPTS,
        )
    return {name: [t for t in found if t.arm == name] for name in (*FORMS, again(FORMS[0]))}


def rate(trial) -> float:
    """Tokens per second of decoding: the first token comes with the prefill."""
    return (len(trial.output_ids) - 1) / (trial.seconds - trial.prefill_s)


def ratios(ours, theirs) -> list[float]:
    """Rate of each request over that of the same request, in the same repeat, under another form."""
    others = {(t.prompt, t.repeat): rate(t) for t in theirs}
    return [rate(t) / others[t.prompt, t.repeat] for t in ours]


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    generator = random.Random(0)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def test_texts_and_accepted_drafts_are_equal_under_every_form(trials):
    for prompt in range(PROMPTS):
        seen = {
            (t.output_ids, t.rounds, t.correct_drafts, t.histogram)
            for form in FORMS
            for t in trials[form]
            if t.prompt == prompt
        }
        assert len(seen) == 1, f"prompt {prompt}"
    rounds, drafts = (sum(getattr(t, name) for t in trials["config"]) for name in ("rounds", "correct_drafts"))
    print(f"\naccept length under every form: {1 + drafts / rounds:.3f} ({rounds} rounds)")
    assert 1 + drafts / rounds > 2  # they are cures: as served it is 1.2


def test_no_form_is_slower_than_another(trials):
    for form in FORMS:
        print(f"\n{form}: {median(map(rate, trials[form])):.2f} tokens/s in decoding (median of {len(trials[form])})")
    closing = ratios(trials[again(FORMS[0])], [t for t in trials[FORMS[0]] if t.repeat == 0])
    print(f"config at the end over config in the first repeat: {median(closing):.3f} ({len(closing)} prompts)")
    found = {}
    for one, other in itertools.combinations(FORMS, 2):
        pairs = ratios(trials[other], trials[one])
        found[other, one] = median(pairs), *interval(pairs)
        share, low, high = found[other, one]
        print(f"{other} / {one}: {share:.4f} ({low:.4f} to {high:.4f}), {len(pairs)} pairs")
    for pair, (share, low, high) in found.items():
        assert high - low <= 2 * BOUND, f"{pair}: this machine is too busy to tell {BOUND:.0%}"
        assert abs(share - 1) <= BOUND, pair
