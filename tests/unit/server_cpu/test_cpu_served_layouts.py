"""What SGLang 0.5.23 feeds a draft, by capture on the CPU server, is what the rules say, phase by phase.

One server for each target family and list of layer ids: the state of every boundary by transformers on the captured
text says which boundary each slot is. The ids are chosen so that the rules differ: read as boundaries and read as
output ids they name other layers, and some are out of order. In `make test` one list for each family, in
`make test-layouts` all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cpu_server import serving
from draft_variants import VOCABULARY, Variant, write_draft

from wiring.capture.folder_summary import summarize
from wiring.capture.matching import match_slots, matched_layout
from wiring.capture.records import capture_environment, final_states, read_capture
from wiring.engines.resolve import served_layout
from wiring.engines.sglang import SUPPORTED
from wiring.layers import Phase
from wiring.model.target_reference import ReferenceTarget

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
    """Folder and reference of a family, made when first asked for."""
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()  # before transformers' models are imported
    from family_targets import write_family_target

    made = {}

    def target(family: str) -> tuple[Path, ReferenceTarget]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family) / "target"
            write_family_target(folder, family)
            made[family] = folder, ReferenceTarget.load(folder)
        return made[family]

    return target


def draft_for(folder: Path, ids: tuple[int, ...] | None) -> dict:
    """Write a random draft that asks for these ids, or for none; return its config."""
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
    flags = [
        *("--model-path", str(target), "--dtype", "float32", "--mem-fraction-static", "0.3"),
        *("--max-total-tokens", "1024", "--max-running-requests", "4", "--context-length", "256"),
        *("--skip-server-warmup", "--sleep-on-idle"),
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(tmp_path / "draft")),
        *("--speculative-num-steps", "2", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "4"),
    ]
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    with serving(flags, tmp_path / "server.log", capture_environment(tmp_path / "capture")) as server:
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
