"""A sweep of speculation settings on the case's cured draft, and how well some of them predict the others.

A few servers at a time take turns prompt by prompt, plain decoding among them, so that every figure is a ratio within
one run. The price of a round is fitted over the settings of `FIT`; those of `HELD_OUT` are then predicted:

- chains: accept length from the acceptance by position of the longest fitted chain, prompt by prompt
- trees: accept length from the draft replayed without a server along the text that the plain server wrote; it cannot
  be told from chains, whose second choices were never tried

The overshoot of the last round (tokens beyond the answer) is reckoned from the same marginals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from tree_replay import tree_replay

from wiring.accuracy.replay import states_of
from wiring.accuracy.replay import summarize as count
from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.arm_results import summarize
from wiring.bench.benchmark import Arm
from wiring.bench.measurement import Measurement, Trial
from wiring.bench.round_cost import RoundModel, chain, fit_rounds, is_chain, priced_round
from wiring.bench.tuning import Workload, chain_marginals, overshoot, speedup
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.patch import draft_copy
from wiring.workbook.case import Case
from wiring.workbook.evaluate import load_reference, open_draft
from wiring.workbook.live import PLAIN, Progress, draft_arm, measure_arms, plain_arm

FIT = (chain(1), chain(4), chain(7), Speculation(5, 4, 16))
HELD_OUT = (*(chain(n) for n in (2, 3, 5, 6)), Speculation(3, 2, 6), Speculation(3, 4, 12), Speculation(6, 2, 12))
_ARM = re.compile(r"(\d+) steps, top-(\d+), (\d+) tokens")


@dataclass(frozen=True)
class SweepRow:
    """One held-out setting: predicted beside measured.

    Accept lengths are pooled over prompts, bonus included; prices in plain steps of the same run; speed-ups are medians
    over prompts of the rate over the plain rate. `from_`: what the accept length was predicted from.
    """

    setting: Speculation
    from_: str
    accept_length: float
    accept_length_measured: float
    price: float
    price_error: float | None
    price_measured: float
    speedup: float
    speedup_measured: float

    @property
    def miss(self) -> float:
        """Predicted over measured speed-up, less 1."""
        return self.speedup / self.speedup_measured - 1

    def as_json(self) -> dict:
        """The row for JSON."""
        return {**asdict(self), "miss": self.miss}


@dataclass(frozen=True)
class SweepCheck:
    """The fitted model and the held-out settings.

    `noise`: for each run its baseline against itself, as a ratio less 1; None where it was not measured twice.
    """

    model: RoundModel
    rows: tuple[SweepRow, ...]
    noise: tuple[float | None, ...]

    def within(self, tolerance: float) -> int:
        """How many held-out settings were predicted within `tolerance`."""
        return sum(abs(row.miss) <= tolerance for row in self.rows)


def arm_name(setting: Speculation) -> str:
    """The name of a setting's arm in a measurement."""
    return f"{setting.steps} steps, top-{setting.topk}, {setting.draft_tokens} tokens"


def settings_of(measured: Measurement) -> tuple[Speculation, ...]:
    """The settings that a sweep measured, in the order of their first requests."""
    arms = dict.fromkeys(t.arm for t in sorted(measured.trials, key=lambda t: t.order))
    found = (_ARM.fullmatch(arm) for arm in arms)
    return tuple(Speculation(*map(int, match.groups())) for match in found if match)


def measure_sweep(
    case: Case,
    cure: draft_copy.DraftChange,
    settings: Sequence[Speculation] = (*FIT, *HELD_OUT),
    *,
    prompts: int | None = None,
    closing: int = 2,
    at_once: int = 6,
    progress: Progress = print,
) -> tuple[Measurement, ...]:
    """Measure the draft under `cure` at every setting; arms are named by `arm_name`.

    Each run holds `at_once` settings or fewer, and plain decoding. The copy of the draft is removed afterwards. On the
    CPU a server takes 1.6 GB, and 20 to 40 s to start.
    """
    patched = draft_copy.apply(case.profile.draft, cure, case.scratch("draft-sweep"), case.profile.layout)

    def arm(setting: Speculation) -> Arm:
        return draft_arm(
            case,
            "sweep",
            arm_name(setting),
            draft=patched.folder,
            speculation=setting,
            env=patched.environment,
            progress=progress,
        )

    try:
        runs = []
        for start in range(0, len(settings), at_once):
            arms = [plain_arm(case, "sweep", progress), *map(arm, settings[start : start + at_once])]
            runs.append(measure_arms(case, arms, prompts=prompts, closing=closing, progress=progress))
        return tuple(runs)
    finally:
        draft_copy.undo(patched.folder)


def replay_trees(
    case: Case, measured: Measurement, settings: Sequence[Speculation], *, progress: Progress = print
) -> dict[Speculation, tuple[tuple[int, ...], ...]]:
    """For each tree, prompt by prompt, the accepted drafts of every round, replayed on what the plain server wrote."""
    trees = [setting for setting in settings if not is_chain(setting)]
    opened, reference = open_draft(case), load_reference(case)
    rounds: dict[Speculation, list[tuple[int, ...]]] = {tree: [] for tree in trees}
    for trial in measured.arm(PLAIN):
        if trial.repeat:
            continue
        prompt = measured.prompt_ids[trial.prompt]
        text = [*prompt, *trial.output_ids]
        # A server also counts right drafts beyond the end of the answer.
        longer = [*text, *reference.greedy(text, max(tree.steps for tree in trees))] if trees else text
        states = states_of(reference, torch.tensor(longer), case.profile.layout)
        for tree in trees:
            progress(f"replaying prompt {trial.prompt + 1}: {arm_name(tree)}")
            got = tree_replay(opened.draft, states, longer, len(prompt), case.profile.layout, tree, end=len(text))
            rounds[tree].append(got.rounds)
    return {tree: tuple(found) for tree, found in rounds.items()}


def check_sweep(
    runs: Sequence[Measurement],
    *,
    fit: Sequence[Speculation] = FIT,
    held_out: Sequence[Speculation] = HELD_OUT,
    trees: Mapping[Speculation, Sequence[Sequence[int]]] | None = None,
) -> SweepCheck:
    """Fit the round's price on `fit` and predict `held_out`, of which nothing measured is used but to compare.

    `trees`: rounds by prompt from `replay_trees`; trees without are left out. Raises WiringError when `fit` holds no
    chain, or an arm is missing.
    """
    arms = {setting: _arm(runs, setting) for setting in (*fit, *held_out)}
    model = fit_rounds([priced_round(*arms[s], s) for s in fit])
    chains = [s for s in fit if is_chain(s)]
    if not chains:
        raise WiringError("acceptance by position is read from a chain", where="fit", expected="at least one chain")
    longest = max(chains, key=lambda s: s.steps)
    trials = arms[longest][0]
    work = _workload(trials, arms[longest][1])
    rows = []
    for setting in held_out:
        if is_chain(setting):
            given = _marginals(trials, longest.steps)
            marginals = {p: chain_marginals(m, setting.steps) for p, m in given.items()}
            pooled = chain_marginals(_pooled(trials, longest.steps), setting.steps)
            source = f"marginals of {arm_name(longest)}"
        elif trees and setting in trees:
            counts = trees[setting]
            marginals = {p: count(rounds, setting.steps).acceptance_by_position for p, rounds in enumerate(counts)}
            pooled = count([a for rounds in counts for a in rounds], setting.steps).acceptance_by_position
            source = "replayed without a server"
        else:
            continue
        price = model.price(setting)
        measured_arm = summarize(*arms[setting], setting.steps)
        assert measured_arm.accept_length is not None, "an arm with a draft has rounds"
        rows.append(
            SweepRow(
                setting=setting,
                from_=source,
                accept_length=1 + sum(pooled),
                accept_length_measured=measured_arm.accept_length,
                price=price.value,
                price_error=price.error,
                price_measured=priced_round(*arms[setting], setting).price,
                speedup=median(speedup(price.value, 1 + sum(m), work, overshoot(m)) for m in marginals.values()),
                speedup_measured=measured_arm.speedup,
            )
        )
    return SweepCheck(model, tuple(rows), tuple(map(_noise, runs)))


def _arm(runs: Sequence[Measurement], setting: Speculation) -> tuple[tuple[Trial, ...], tuple[Trial, ...]]:
    """The trials of a setting, and those of plain decoding in the same run."""
    for run in runs:
        if trials := run.arm(arm_name(setting)):
            return trials, run.baseline(PLAIN)
    raise WiringError(
        "the sweep did not measure this setting",
        where=arm_name(setting),
        expected="an arm of this name",
        found=", ".join(arm_name(found) for run in runs for found in settings_of(run)),
    )


def _workload(trials: Sequence[Trial], plain: Sequence[Trial]) -> Workload:
    """Tokens per request, and the prefill's price in plain steps of the same run."""
    tokens = len(plain[0].output_ids)
    step = median((t.seconds - t.prefill_s) / (tokens - 1) for t in plain)
    return Workload(tokens, *(median(t.prefill_s for t in side) / step for side in (plain, trials)))


def _pooled(trials: Sequence[Trial], steps: int) -> tuple[float, ...]:
    return acceptance(pool_histograms(t.histogram for t in trials), steps).by_position


def _marginals(trials: Sequence[Trial], steps: int) -> dict[int, tuple[float, ...]]:
    """Acceptance by position of each prompt."""
    prompts = sorted({t.prompt for t in trials})
    return {p: _pooled([t for t in trials if t.prompt == p], steps) for p in prompts}


def _noise(measured: Measurement) -> float | None:
    """The baseline's closing requests against its earlier ones on the same prompts: what drift and chance do."""
    again = {t.prompt: t.seconds for t in measured.arm(f"{PLAIN} again")}
    first = {t.prompt: t.seconds for t in measured.arm(PLAIN) if t.repeat == 0}
    ratios = [again[p] / first[p] for p in again if p in first]
    return median(ratios) - 1 if ratios else None
