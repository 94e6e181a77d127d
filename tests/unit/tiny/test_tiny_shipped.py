"""The pair in data/tiny: its formats, its sizes, and its bounds measured again."""

import json
from collections import Counter

import pytest
import torch
from tiny import corpus
from tiny.config import TargetSizes
from tiny.export import load_target
from tiny.measure import BEYOND, Bounds, broken_bounds
from tiny.prompts import draw_prompts, greedy

from wiring.accuracy.evaluation import accuracy_by_depth
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import read_target_config, read_tensor
from wiring.engines.resolve import served_layout
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget

BOUNDS = Bounds()
GREEDY = 96  # tokens per prompt


@pytest.fixture(scope="module")
def manifest(pair_folder):
    return json.loads((pair_folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def samples(pair_folder):
    return list(open_states(pair_folder / "states", hidden_size=64, stored=(0, 3, 31, 59)))


@pytest.fixture(scope="module")
def prompts(pair_folder):
    return json.loads((pair_folder / "prompts.json").read_text())


@pytest.fixture(scope="module")
def reference(pair_folder):
    return ReferenceTarget.load(pair_folder / "target")


def test_the_manifest_keeps_every_bound_for_three_drafts(manifest):
    assert [row["seed"] for row in manifest["drafts"]] == [0, 1, 2]
    assert broken_bounds(manifest) == [] == manifest["bounds_missed"]


def test_a_broken_bound_is_seen(manifest):
    spoilt = json.loads(json.dumps(manifest))
    spoilt["drafts"][1]["trained"][0] = 0.9
    spoilt["drafts"][2]["served"][0] = 0.2
    spoilt["text"]["least_unique_4grams"] = 0.5
    assert len(broken_bounds(spoilt)) == 3


def test_sizes(pair_folder, manifest):
    def size(folder):
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    for part in ("target", "draft", "states"):
        assert manifest["bytes"][part] == size(pair_folder / part)
    assert size(pair_folder / "target") + size(pair_folder / "draft") <= 24_000_000
    assert size(pair_folder.parent) <= 40_000_000


@pytest.mark.parametrize("condition", ["trained", "served", "zeroed"])
def test_accuracy_measured_again_on_some_of_the_states(pair_folder, manifest, samples, condition):
    embedding = read_tensor(pair_folder / "target", "model.embed_tokens.weight")
    draft = Eagle3Draft.from_checkpoint(read_draft(pair_folder / "draft"), embedding)
    head = read_tensor(pair_folder / "target", "lm_head.weight")
    layout = (3, 31, 59) if condition == "served" else (0, 3, 31)
    control = "zeroed" if condition == "zeroed" else "none"
    depth = accuracy_by_depth(draft, samples[:24], layout, 1, head, control).depths[0]
    low, high = {
        "trained": (BOUNDS.trained_low, BOUNDS.trained_high),
        "served": (0.0, BOUNDS.served_high),
        "zeroed": (0.0, BOUNDS.zeroed_high),
    }[condition]
    assert low <= depth.accuracy <= high
    assert abs(depth.accuracy - manifest["drafts"][0][condition][0]) < 0.05


def test_saved_states_are_what_transformers_computes(samples, reference):
    for sample in samples[:2]:
        theirs = reference.forward(sample.tokens[None])
        for slot, boundary in enumerate(sample.boundaries):
            expected = theirs.boundaries[boundary, 0]
            assert (sample.states[:, slot].float() - expected).norm() < 0.01 * expected.norm()
        assert (sample.last_hidden.float() - theirs.last_hidden[0]).norm() < 0.01 * theirs.last_hidden.norm()
        labels = (sample.last_hidden.float() @ reference.head.weight.T).argmax(-1)
        assert (labels == theirs.logits[0].argmax(-1)).float().mean() > 0.98
        right = (labels[:-1] == sample.tokens[1:])[sample.loss_mask[1:].bool()]
        assert right.float().mean() > 0.8  # held-out, so the target has learned the rule


def header_of(words):
    """The header's words, found from the text alone."""
    if words[0] == "market":
        return words[: words.index(".") + 1]
    stop = words.index(";") + 1
    return words[: stop + next(i for i, word in enumerate(words[stop:]) if not word.isdigit())]


def split_of(ids):
    words = tuple(corpus.WORDS[i] for i in ids)
    return corpus.Document(words[0], words, len(header_of(words)), 0).split


def test_states_and_prompts_are_held_out_and_disjoint(samples, prompts):
    assert len(samples) >= 64 and len(prompts) >= 16
    stored = [sample.tokens.tolist() for sample in samples]
    asked = [prompt["input_ids"] for prompt in prompts]
    assert {split_of(ids) for ids in stored} == {"states"}
    assert {split_of(ids) for ids in asked} == {"prompts"}
    assert {len(ids) for ids in stored} == {160}
    assert all(40 <= len(ids) <= 60 for ids in asked)
    for group in (stored, asked):
        assert Counter(corpus.WORDS[ids[0]] for ids in group) == {"market": len(group) // 2, "lists": len(group) // 2}


def test_the_tokenizer_gives_the_prompts_ids_and_their_text_back(pair_folder, prompts):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pair_folder / "target", local_files_only=True)
    for prompt in prompts:
        assert tokenizer(prompt["text"])["input_ids"] == prompt["input_ids"]
        assert tokenizer.decode(prompt["input_ids"]) == prompt["text"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)


def test_the_configs_ask_for_the_case(pair_folder):
    target = read_target_config(pair_folder / "target")
    assert (target.architecture, target.num_layers, target.hidden_size) == ("DeepseekV3ForCausalLM", 61, 64)
    draft = read_draft(pair_folder / "draft")
    assert draft.config["architectures"] == ["LlamaForCausalLMEagle3"]
    served = served_layout("sglang", None, target.raw, draft.config)
    assert served.prefill == served.verify == (3, 31, 59)
    assert draft.config["draft_vocab_size"] == 88 < target.vocab_size
    ids = torch.arange(88) + draft.tensors["d2t"]
    assert torch.equal(draft.tensors["t2d"].nonzero().flatten(), ids)


@pytest.fixture(scope="module")
def texts(prompts, reference):
    """transformers' greedy continuations of one prompt of each kind."""
    return [reference.greedy(prompt["input_ids"], GREEDY) for prompt in prompts[:2]]


def test_greedy_text_does_not_loop(texts, manifest):
    for text in texts:
        bigrams, fourgrams = (set(zip(*(text[start:] for start in range(n)), strict=False)) for n in (2, 4))
        assert len(bigrams) >= max(BOUNDS.bigrams_low, manifest["text"]["least_unique_bigrams"]) * (GREEDY - 1) - 1
        assert len(fourgrams) >= max(BOUNDS.fourgrams_low, manifest["text"]["least_unique_4grams"]) * (GREEDY - 3) - 1


def test_greedy_by_fixed_point_equals_greedy_token_by_token(pair_folder, prompts, texts):
    drawn = draw_prompts(0, len(prompts), GREEDY + BEYOND)[:2]
    assert [prompt.ids for prompt in drawn] == [prompt["input_ids"] for prompt in prompts[:2]]
    ours = greedy(load_target(pair_folder / "target", TargetSizes()), drawn, 24)
    assert ours == [text[:24] for text in texts]
