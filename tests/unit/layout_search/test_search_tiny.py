"""The search on real drafts: the tiny pair's, three trained on other layouts, and spoilt ones that fit nothing."""

import json
import shutil
import subprocess
import sys

import pytest
import search_pair
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from wiring.checkpoints.states import write_sidecar, write_state
from wiring.cli.app import app
from wiring.errors import WiringError
from wiring.layout_search import search
from wiring.layout_search.data import from_samples, from_texts
from wiring.layout_search.load import open_search
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget

SHIPPED = search_pair.PAIR / "draft"
TWICE = search_pair.lines(1, 20)[0].replace(" ", "  ")
TRAINED = (0, 3, 31)


def test_the_shipped_draft_was_trained_on_0_3_31():
    result = search(search_pair.load(SHIPPED), search_pair.data())
    assert result.fits and result.layout == TRAINED
    assert result.rows > 2500
    assert all(control.low > 1 for control in result.controls)  # nats: far from anything without states


@pytest.mark.parametrize("name", search_pair.other_drafts())
def test_drafts_of_other_layouts_are_named(name):
    layout = search_pair.other_drafts()[name]
    folder = search_pair.DRAFTS / name
    result = search(search_pair.load(folder), search_pair.data(folder))
    assert result.fits and result.layout == layout


def test_the_three_layouts_are_of_the_kinds_that_matter():
    layouts = search_pair.other_drafts()
    assert len(set(layouts["repeated"])) < 3 and 61 in layouts["last"]
    assert sorted(layouts["reordered"]) == sorted(TRAINED) != list(layouts["reordered"])


@pytest.mark.parametrize(
    ("seed", "whole"),
    [(0, True), *(pytest.param(seed, whole, marks=pytest.mark.long) for seed in range(3) for whole in (True, False))],
)
def test_shuffled_columns_fit_nothing(seed, whole):
    result = search(search_pair.shuffled(search_pair.load(SHIPPED), seed, whole), search_pair.data())
    assert not result.fits and result.layout is None


@pytest.mark.long
def test_an_untrained_draft_fits_nothing():
    shipped = search_pair.load(SHIPPED)
    fresh = Eagle3Draft.fresh(shipped.config, shipped.embedding, 0, shipped.target_ids).requires_grad_(False)
    assert not search(fresh, search_pair.data()).fits


def test_the_targets_own_pytorch_gives_the_same_material_as_transformers():
    target_ids = search_pair.load(SHIPPED).target_ids
    texts = search_pair.texts(4, 24)
    ours = from_texts(texts, search_pair.reference(), target_ids, 10**6)
    theirs = from_texts(texts, ReferenceTarget.load(search_pair.TARGET), target_ids, 10**6)
    assert torch.equal(ours.labels, theirs.labels) and ours.outside == theirs.outside
    torch.testing.assert_close(ours.states, theirs.states, rtol=1e-3, atol=2e-3)


def test_only_rows_count_where_the_text_goes_on_as_the_target_would():
    texts = search_pair.texts(4, 30)
    data = from_texts(texts, search_pair.reference(), search_pair.load(SHIPPED).target_ids, 10**6)
    ids = search_pair.load(SHIPPED).target_ids
    logits = search_pair.reference().forward(torch.tensor(texts)).logits
    for d, text in enumerate(texts):
        for row in range(29):
            choice = int(logits[d, row + 1].argmax())
            follows = row + 2 < len(text) and text[row + 2] == choice
            label = int(data.labels[d, row])
            assert (label >= 0) == (follows and choice in ids.tolist())
            if label >= 0:
                assert int(ids[label]) == choice


def every_boundary(folder, missing=()):
    """Four documents of saved states with all boundaries but `missing`."""
    reference = search_pair.reference()
    texts = torch.tensor(search_pair.texts(4, 40))
    seen = reference.forward(texts)
    kept = [b for b in range(62) if b not in missing]
    for d, tokens in enumerate(texts):
        write_state(
            folder / f"data_{d}.ckpt",
            tokens.clone(),
            torch.ones(40, dtype=torch.int64),
            seen.boundaries[kept, d].transpose(0, 1).contiguous(),
            seen.last_hidden[d].clone(),
        )
    write_sidecar(folder, kept, "post")
    return folder


def test_saved_states_with_every_boundary_serve(tmp_path):
    draft, data = open_search(SHIPPED, search_pair.TARGET, states=every_boundary(tmp_path))
    texts = search_pair.texts(4, 40)
    by_text = from_texts(texts, search_pair.reference(), draft.target_ids, 10**6)
    assert torch.equal(data.tokens, by_text.tokens)
    torch.testing.assert_close(data.states, by_text.states)
    both = data.counted & by_text.counted
    assert int(both.sum()) == int(by_text.counted.sum()) < int(data.counted.sum())
    assert torch.equal(data.labels[both], by_text.labels[both])


@pytest.mark.parametrize("missing", [(17,), tuple(range(4, 31))])
def test_saved_states_without_some_boundaries_are_refused(tmp_path, missing):
    with pytest.raises(WiringError) as error:
        open_search(SHIPPED, search_pair.TARGET, states=every_boundary(tmp_path, missing))
    assert error.value.code == "boundaries-missing"
    assert f"missing: {missing[0]}" in error.value.found


def test_shipped_states_are_refused_with_what_is_missing():
    with pytest.raises(WiringError) as error:
        open_search(SHIPPED, search_pair.TARGET, states=search_pair.PAIR / "states")
    assert error.value.found.endswith("missing: 1, 2, 4, 5, 6, 7, 8, 9 and 50 more")


def test_a_draft_without_numbers_is_refused():
    draft, data = search_pair.load(SHIPPED), search_pair.data()
    with torch.no_grad():
        draft.fc.weight[0, 0] = torch.nan
    with pytest.raises(WiringError) as error:
        search(draft, data)
    assert error.value.code == "losses-not-finite"


@pytest.mark.parametrize(
    ("content", "code", "where"),
    [
        ("a b c\n\nd e f\n", "text-line-empty", "line 2"),
        ("", "too-few-documents", "documents.txt"),
        ("\n".join([*search_pair.lines(4, 20), TWICE]), "text-line-repeated", "line 5"),
        ("\n".join(search_pair.lines(3, 20)), "too-few-documents", "documents.txt"),
        ("\n".join([*search_pair.lines(4, 20), "rev rot"]), "document-too-short", "line 5"),
    ],
)
def test_bad_texts_are_refused(tmp_path, content, code, where):
    (tmp_path / "documents.txt").write_text(content)
    with pytest.raises(WiringError) as error:
        open_search(SHIPPED, search_pair.TARGET, text=tmp_path / "documents.txt")
    assert error.value.code == code
    assert error.value.where.endswith(where)


def test_text_or_states_but_not_both(tmp_path):
    for given in ({}, {"text": tmp_path / "x", "states": tmp_path}):
        with pytest.raises(WiringError) as error:
            open_search(SHIPPED, search_pair.TARGET, **given)
        assert error.value.code == "search-data-missing"


def test_states_of_too_few_documents_are_refused():
    with pytest.raises(WiringError) as error:
        from_samples([], 0, 61, None, torch.arange(88), 100)
    assert error.value.code == "too-few-documents"


def test_a_draft_for_another_target_is_refused(tmp_path):
    config = json.loads((search_pair.TARGET / "config.json").read_text()) | {"hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WiringError) as error:
        open_search(SHIPPED, tmp_path, text="documents.txt")
    assert error.value.code == "fc-width-of-another-target"


def test_the_command(tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(search_pair.lines(16, 64)))
    call = ["search", "--draft", str(SHIPPED), "--target", str(search_pair.TARGET), "--text"]
    done = CliRunner().invoke(app, [*call, str(tmp_path / "documents.txt"), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    first = found["ranking"][0]
    assert found["fits"] is True and set(first) >= {"layout", "cross_entropy", "difference", "low", "high"}
    assert first["layout"][:2] == [0, 3] and first["difference"] == 0
    assert list(TRAINED) == first["layout"] or list(TRAINED) in found["alike"]
    assert found["documents"] == 16 and found["method"] == "coordinate" and found["rule"]
    table = CliRunner().invoke(app, [*call, str(tmp_path / "documents.txt")], catch_exceptions=False)
    assert "Trained on (0, 3," in table.stdout and "other_sequence" in table.stdout


def test_a_draft_that_fits_nothing_ends_the_command_with_1_and_in_silence(tmp_path):
    """Its fc's columns are shuffled. stderr is a pipe here, where a bar of transformers is nothing but noise."""
    (tmp_path / "documents.txt").write_text("\n".join(search_pair.lines(16, 64)))
    shutil.copytree(SHIPPED, tmp_path / "draft")
    tensors = load_file(SHIPPED / "model.safetensors")
    order = torch.randperm(tensors["fc.weight"].shape[1], generator=torch.Generator().manual_seed(4))
    tensors["fc.weight"] = tensors["fc.weight"][:, order].contiguous()
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    call = ["search", "--draft", str(tmp_path / "draft"), "--target", str(search_pair.TARGET), "--json"]
    command = [sys.executable, "-m", "wiring", *call, "--text", str(tmp_path / "documents.txt")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 1 and json.loads(ran.stdout)["fits"] is False
    assert ran.stderr == ""
    assert "1 no layout fits" in CliRunner().invoke(app, ["search", "--help"], terminal_width=200).stdout
