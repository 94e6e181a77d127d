"""`python -m tiny` makes every file in its format, stage by stage, and leaves other folders alone."""

import json

import pytest
import torch
from tiny.__main__ import main
from tiny.config import TargetSizes
from tiny.export import load_target
from tiny.prompts import draw_prompts, greedy, varied_prompts

from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import read_target_config
from wiring.model.target_reference import ReferenceTarget


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke") / "pair"
    assert main(["--out", str(out), "--smoke", "--seed", "7"]) == 0
    return out


def test_every_file_is_there_and_reads_back(made):
    assert read_target_config(made / "target").num_layers == 61
    draft = read_draft(made / "draft")
    assert draft.tensors["fc.weight"].shape == (64, 192)
    assert draft.tensors["d2t"].dtype == torch.int64 and draft.tensors["t2d"].dtype == torch.bool
    samples = list(open_states(made / "states", hidden_size=64, stored=(0, 3, 31, 59)))
    assert [sample.tokens.shape for sample in samples] == [(64,), (64,)]
    states = open_states(made / "states", hidden_size=64)  # without being told what the slots hold
    assert (states.boundaries, states.norm, states.format) == ((0, 3, 31, 59), "post", "specforge")
    assert len(json.loads((made / "prompts.json").read_text())) == 2
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["seed"] == 7
    assert [row["seed"] for row in manifest["drafts"]] == [7]
    assert manifest["bounds_missed"]  # three steps of training cannot keep them, and it must be seen to say so


def test_saved_states_are_what_transformers_computes_from_the_written_target(made):
    sample = next(iter(open_states(made / "states", hidden_size=64, stored=(0, 3, 31, 59))))
    theirs = ReferenceTarget.load(made / "target").forward(sample.tokens[None])
    for slot, boundary in enumerate(sample.boundaries):
        expected = theirs.boundaries[boundary, 0]
        assert (sample.states[:, slot].float() - expected).norm() < 0.01 * expected.norm()
    assert (sample.last_hidden.float() - theirs.last_hidden[0]).norm() < 0.01 * theirs.last_hidden.norm()


def test_one_stage_leaves_the_others_files_alone(made):
    def contents(part):
        return {path: path.read_bytes() for path in (made / part).rglob("*") if path.is_file()}

    target, states, draft = contents("target"), contents("states"), contents("draft")
    weights = made / "draft" / "model.safetensors"
    weights.unlink()
    assert main(["--out", str(made), "--smoke", "--seed", "7", "--only", "draft"]) == 0
    assert contents("target") == target and contents("states") == states
    assert contents("draft").keys() == draft.keys()


def test_a_folder_that_holds_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("three years")
    assert main(["--out", str(tmp_path), "--smoke"]) == 2
    assert "not a folder of a tiny pair" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_stage_without_what_it_needs_says_so(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "new"), "--smoke", "--only", "draft"]) == 2
    assert "there is no target yet" in capsys.readouterr().err


def test_a_prompt_whose_text_loops_is_replaced_by_the_next_drawn(made):
    target = load_target(made / "target", TargetSizes())
    drawn = draw_prompts(3, 8, 12)
    of = {tuple(text): prompt for prompt, text in zip(drawn, greedy(target, drawn, 12), strict=True)}
    texts = list(of)
    assert len(texts) == 8  # different texts, so that each can be refused by itself

    def chosen(refused):
        prompts, kept = varied_prompts(target, 3, 4, 12, lambda text: tuple(text) not in refused)
        assert [of[tuple(text)] for text in kept] == prompts
        return prompts

    assert chosen(()) == drawn[:4]
    assert chosen((texts[1], texts[4])) == [drawn[0], drawn[5], *drawn[2:4]]
    assert chosen(texts[2:]) == drawn[:4]  # none left to take: the bounds tell
