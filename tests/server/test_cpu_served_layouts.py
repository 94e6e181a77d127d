"""What SGLang 0.5.23 feeds a draft, captured on the CPU server, equals the layout given by the rules, in each phase.

One server for each target family and list of layer ids: the boundaries computed by transformers on the captured text
identify each slot. The ids are chosen so that the rules differ: as boundaries and as output ids they name different
layers, and some are not ascending. `make test` runs one list for each family, `make test-layouts` all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cpu_server import serving
from draft_variants import VOCABULARY, Variant, write_draft

from wiring.capture.folder_summary import read_capture, summarize
from wiring.capture.matching import match_slots, matched_layout
from wiring.capture.records import capture_environment, final_states
from wiring.engines.resolve import served_layout
from wiring.engines.sglang import SUPPORTED, Speculation
from wiring.layers import Phase
from wiring.model.target_reference import ReferenceTarget
from wiring.server.server_spec import ServerSpec

pytestmark = pytest.mark.server

# (family, ids in eagle_config or None for none, whether it is one of `make test`)
CASES = (
    ("deepseek", (1, 3, 5), True),  # the first id is 1: all are output ids
    ("deepseek", None, False),
    ("deepseek", (3, 5, 7), False),
    ("deepseek", (6, 0, 3), False),  # boundaries, the embedding among them, in descending order
    ("llama", (5, -1, 2), True),
    ("llama", None, False),
    ("llama", (1, 3, 6), False),
    ("qwen3", (-1, 2, 6), True),
    ("qwen3", None, False),
    ("qwen3", (4, 0), False),  # a draft of two slots
)
LENGTHS, NEW_TOKENS = (5, 23, 40), 12


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Return a function that makes folder and reference of a family once."""
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()  # before transformers' models are imported
    from cpu_pair import write_family_target

    made = {}

    def target(family: str) -> tuple[Path, ReferenceTarget]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family) / "target"
            write_family_target(folder, family)
            made[family] = folder, ReferenceTarget.load(folder)
        return made[family]

    return target


def draft_for(folder: Path, ids: tuple[int, ...] | None) -> dict:
    """Write a random draft with these ids, or none, in its config; return the config."""
    write_draft(folder, Variant("layouts", ids or (0, 1, 2), {}, {}), seed=5)
    config = json.loads((folder / "config.json").read_text())
    if ids is None:
        del config["eagle_config"]
        (folder / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize(
    "family, ids",
    [
        pytest.param(family, ids, marks=() if always else pytest.mark.layouts, id=f"{family}-{ids or 'none'}")
        for family, ids, always in CASES
    ],
)
def test_the_captured_layout_is_that_of_the_rules(targets, tmp_path, family, ids):
    target, reference = targets(family)
    config = draft_for(tmp_path / "draft", ids)
    flags = ("--max-total-tokens", "1024", "--context-length", "256", "--skip-server-warmup")
    switches = capture_environment(tmp_path / "capture")
    spec = ServerSpec(target, tmp_path / "draft", Speculation(2, 2, 4), extra_flags=flags, env=switches)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    with serving(spec, tmp_path / "server.log") as server:
        answers = server.generate(prompts, NEW_TOKENS)
    records, summary = read_capture(tmp_path / "capture"), summarize(tmp_path / "capture")
    assert summary.missing == () and summary.truncated == ""
    served: dict[Phase, list[torch.Tensor]] = {phase: [] for phase in Phase}  # each [M, n*H]
    expected: dict[Phase, list[torch.Tensor]] = {phase: [] for phase in Phase}  # each [L+1, M, H]
    for prompt, answer in zip(prompts, answers, strict=True):
        text = prompt + answer["output_ids"]
        boundaries = reference.forward(torch.tensor([text])).boundaries[:, 0]
        found = final_states([r for r in records if r.request == answer["meta_info"]["id"]], text)
        for phase, (positions, states) in found.items():
            served[phase].append(states)
            expected[phase].append(boundaries[:, positions])
    by_rule = served_layout("sglang", SUPPORTED, json.loads((target / "config.json").read_text()), config)
    for phase in Phase:
        states = torch.cat(served[phase]).unflatten(1, (-1, reference.hidden_size))
        matches = match_slots(states, torch.cat(expected[phase], dim=1))
        print(f"{family} {ids} {phase}: captured {matched_layout(matches)}, by rule {by_rule[phase]}")
        assert matched_layout(matches) == by_rule[phase] is not None, [match.reason for match in matches]
