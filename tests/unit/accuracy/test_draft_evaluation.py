"""One draft, one text, every states format: the same counts; and what a user of `wiring accuracy` sees."""

import gzip
import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_draft import random_tensors, tiny_config
from state_formats import WRITERS, Saved, _numbered, modelopt_record, save, specforge_record
from typer.testing import CliRunner

from wiring.accuracy.counting import PRESETS
from wiring.accuracy.draft_evaluation import open_evaluation
from wiring.accuracy.evaluation import evaluate
from wiring.accuracy.evaluation_result import measure
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.states import StateSample
from wiring.cli.app import app
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Draft

G = torch.Generator().manual_seed(0)
EMBEDDING, HEAD = torch.randn(40, 16, generator=G), torch.randn(40, 16, generator=G)
NORM = torch.exp(torch.randn(16, generator=G))
VOCAB = 40
LENGTHS = (60, 33, 48, 7, 51)


def final_norm(x):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * NORM


def written(normed, slots=3):
    """Texts that follow the target's choice in four tokens of five; the last hidden state in one of its two forms."""
    g = torch.Generator().manual_seed(5)
    sequences = []
    for length in LENGTHS:
        raw = torch.randn(length, 16, generator=g)
        choice, random = (final_norm(raw) @ HEAD.T).argmax(-1), torch.randint(0, 40, (length,), generator=g)
        after = torch.where(torch.rand(length, generator=g) < 0.8, choice, random)
        mask = (torch.rand(length, generator=g) < 0.7).long()
        states = torch.randn(length, slots, 16, generator=g)
        sequences.append(Saved(torch.cat([random[:1], after[:-1]]), mask, states, final_norm(raw) if normed else raw))
    return sequences


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folders of a random draft (flat format, three slots) and of its target's first and last weights."""
    root = tmp_path_factory.mktemp("pair")
    draft, target = root / "draft", root / "target"
    draft.mkdir(), target.mkdir()
    config = tiny_config(eagle_config={})
    (draft / "config.json").write_text(json.dumps(config))
    shapes = {name.replace("layers.0", "midlayer"): shape for name, shape in _shapes(config).items()}
    save_file({n: t.contiguous() for n, t in random_tensors(shapes).items()}, draft / "model.safetensors")
    (target / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "num_hidden_layers": 61,
                "hidden_size": 16,
                "vocab_size": 40,
                "rms_norm_eps": 1e-6,
            }
        )
    )
    tensors = {"model.embed_tokens.weight": EMBEDDING, "lm_head.weight": HEAD, "model.norm.weight": NORM}
    save_file(tensors, target / "model.safetensors")
    return draft, target


def _shapes(config):
    from wiring.checkpoints.draft_config import Eagle3Config

    return Eagle3Config.from_dict(config).required_shapes()


def counts(report):
    return [(d.correct, d.total) for d in report.depths]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_counts_of_the_states_in_memory(pair, tmp_path, name):
    writer = WRITERS[name]
    saved = written(normed=writer.norm != "pre")
    path = writer.write(tmp_path / "states", saved)
    opened = open_evaluation(pair[0], path, pair[1], layout=(0, 3, 31))
    assert opened.states.format == writer.format
    if writer.norm == "undecided":
        assert opened.norm.state == "post"
    found = measure(opened, 3, preset="specforge")
    samples = [
        StateSample(
            source="memory",
            tokens=s.tokens,
            states=s.states,
            boundaries=(0, 3, 31),
            loss_mask=torch.ones_like(s.mask) if writer.no_mask else s.mask,
            last_hidden=s.last if writer.norm != "pre" else final_norm(s.last),
        )
        for s in saved
    ]
    draft = Eagle3Draft.from_checkpoint(read_draft(pair[0]), EMBEDDING)
    expected = evaluate(draft, samples, (0, 3, 31), 3, TargetHead(HEAD))["none"]
    assert counts(found.report) == counts(expected)
    assert found.report.depths[0].correct > 0
    assert set(found.controls) == {"zeroed", "shifted", "permuted", "other_sequence"}


def run(*arguments):
    return CliRunner().invoke(app, ["accuracy", *map(str, arguments)], catch_exceptions=True)


@pytest.fixture
def wide(tmp_path):
    """SpecForge files that hold four states."""
    return _numbered(specforge_record, "rows_0-2000/data_{}.ckpt")(tmp_path / "wide", written(True, slots=4))


def test_json_of_a_wider_file(pair, wide):
    asked = ("--draft", pair[0], "--target", pair[1], "--states", wide, "--ttt-steps", 3, "--json")
    assert run(*asked).exception.code == "stored-boundaries-unnamed"
    (wide / "boundaries.json").write_text(json.dumps({"boundaries": [0, 3, 31, 59]}))
    assert run(*asked).exception.code == "layout-ambiguous"

    trained, other = (json.loads(run(*asked, "--layout", layout).stdout) for layout in ("0,3,31", "3,31,59"))
    assert trained["layout"] == [0, 3, 31] and trained["preset"] == "specforge" and trained["skipped"] == []
    assert [sorted(d) for d in trained["depths"]] == [
        ["accuracy", "correct", "depth", "floor", "high", "low", "out_of_vocabulary", "out_of_vocabulary_of", "total"]
    ] * 3
    assert trained["accept_length_with_bonus"] == pytest.approx(1 + trained["accept_length"])
    assert set(trained["controls"]) == {"zeroed", "shifted", "permuted", "other_sequence"}
    assert set(trained["floors"]) == {"unigram", "bigram"}
    # The choice of slots by hand: the first three of four, and the last three.
    draft = Eagle3Draft.from_checkpoint(read_draft(pair[0]), EMBEDDING)
    for found, kept in ((trained, [0, 1, 2]), (other, [1, 2, 3])):
        samples = [
            StateSample("m", s.tokens, s.mask, s.states[:, kept], (0, 1, 2), s.last) for s in written(True, slots=4)
        ]
        expected = evaluate(draft, samples, (0, 1, 2), 3, TargetHead(HEAD))["none"]
        assert [(d["correct"], d["total"]) for d in found["depths"]] == counts(expected)


def test_presets_and_tables_on_the_command_line(pair, wide):
    asked = ("--draft", pair[0], "--target", pair[1], "--states", wide, "--stored", "0,3,31,59", "--layout", "0,3,31")
    shown = run(*asked, "--preset", "speculators-full")
    assert shown.exit_code == 0, shown.output
    assert PRESETS["speculators-full"].describe in " ".join(shown.output.split())
    one = run(*asked, "--limit", 1, "--ttt-steps", 2)
    assert one.exit_code == 0, one.output


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--preset", "sglang"), "preset-unknown"),
        (("--device", "nowhere"), "device-unknown"),
        (("--dtype", "int8"), "dtype-unknown"),
        (("--target", "."), "accuracy-inputs-incomplete"),
        (("--draft", "."), "accuracy-inputs-incomplete"),
    ],
)
def test_unusable_options_are_refused(options, code):
    assert run(*options).exception.code == code


def test_a_damaged_file_is_an_error_or_a_counted_skip(pair, wide):
    (wide / "boundaries.json").write_text(json.dumps({"boundaries": [0, 3, 31, 59]}))
    whole = (wide / "rows_0-2000" / "data_1.ckpt").read_bytes()
    (wide / "rows_0-2000" / "data_1.ckpt").write_bytes(whole[: len(whole) // 2])
    asked = ("--draft", pair[0], "--target", pair[1], "--states", wide, "--layout", "0,3,31", "--json")
    stopped = run(*asked)
    assert isinstance(stopped.exception, WiringError) and "data_1.ckpt" in stopped.exception.where
    found = json.loads(run(*asked, "--skip-bad").stdout)
    assert [entry["file"].endswith("data_1.ckpt") for entry in found["skipped"]] == [True]
    assert found["skipped"][0]["reason"]
    assert found["sequences"] == len(LENGTHS) - 1


def test_a_token_outside_the_vocabulary_is_an_error_or_a_counted_skip(pair, wide):
    file = wide / "rows_0-2000" / "data_1.ckpt"
    record = torch.load(file, weights_only=True)
    record["input_ids"][2] = VOCAB
    torch.save(record, file)
    asked = ("--draft", pair[0], "--target", pair[1], "--states", wide, "--stored", "0,3,31,59", "--layout", "0,3,31")
    stopped = run(*asked)
    error = stopped.exception
    assert (error.where.split("/")[-1], error.expected, error.found) == ("data_1.ckpt", f"0..{VOCAB - 1}", str(VOCAB))
    found = json.loads(run(*asked, "--skip-bad", "--json").stdout)
    assert [entry["file"].endswith("data_1.ckpt") for entry in found["skipped"]] == [True]


def test_a_boundary_deeper_than_the_target_is_refused(pair, wide):
    (wide / "boundaries.json").write_text(json.dumps({"boundaries": [0, 3, 31, 62]}))
    found = run("--draft", pair[0], "--target", pair[1], "--states", wide, "--layout", "0,3,31")
    assert (found.exception.code, found.exception.where) == ("boundary-not-in-target", str(wide))


def test_a_head_with_nan_is_refused(pair, wide, tmp_path):
    broken = shutil.copytree(pair[1], tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["lm_head.weight"][3, 1] = float("nan")
    save_file(tensors, broken / "model.safetensors")
    found = run("--draft", pair[0], "--target", broken, "--states", wide, "--stored", "0,3,31,59", "--layout", "0,3,31")
    assert found.exception.code == "target-not-finite"


def test_files_without_a_loss_mask_are_noted(pair, tmp_path):
    asked = ("--draft", pair[0], "--target", pair[1], "--layout", "0,3,31", "--last-hidden", "post", "--json")
    for name, told, record in (
        ("with", [], lambda one: modelopt_record(one, loss_mask=one.mask)),
        ("without", [True], modelopt_record),
    ):
        folder = _numbered(record, "{}.pt")(tmp_path / name, written(True))
        notes = json.loads(run(*asked, "--states", folder).stdout)["notes"]
        assert ["every token counts" in note for note in notes if "loss mask" in note] == told


def test_without_a_target_the_labels_are_unknown(pair, wide):
    with pytest.raises(WiringError) as error:
        open_evaluation(pair[0], wide)
    assert error.value.code == "target-missing"


MEMORY = """
import sys, torch
from wiring.accuracy.evaluation_result import measure
from wiring.accuracy.counting import PRESETS
from wiring.accuracy.draft_evaluation import open_evaluation
torch.set_num_threads(1)

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

draft, target, states = sys.argv[1:]
opened = open_evaluation(draft, states, target, layout=(0, 3, 31))
measure(opened, 2, limit=4, batch=1)
before = peak()
measure(opened, 2, batch=1, control_sequences=2)
print(peak() - before)
"""


def test_a_folder_larger_than_the_limit_is_streamed(pair, tmp_path):
    """60 links to one file of 12 MB of states, of which each alone is evaluated: memory grows by much less than all."""
    g = torch.Generator().manual_seed(1)
    n = 40_000
    one = Saved(
        torch.randint(0, 40, (n,), generator=g),
        (torch.arange(n) < 300).long(),
        torch.randn(n, 3, 16, generator=g),
        torch.randn(n, 16, generator=g),
    )
    # Long texts with few counted rows would take minutes in attention: keep the file wide, evaluate a short text.
    short = Saved(one.tokens[:400], one.mask[:400], one.states[:400], one.last[:400])
    ballast = {**specforge_record(short), "ballast": torch.zeros(3_000_000)}
    first = save(tmp_path / "states" / "rows_0-2000" / "data_0.ckpt", ballast)
    for i in range(1, 60):
        first.with_name(f"data_{i}.ckpt").hardlink_to(first)
    assert sum(p.stat().st_size for p in first.parent.iterdir()) > 700e6
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, *map(str, pair), str(tmp_path / "states")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 150_000, f"{ran.stdout} kB more"


def test_compressed_files_too(pair, tmp_path):
    path = _numbered(specforge_record, "rows_0-2000/data_{}.ckpt.gz")(tmp_path / "s", written(True))
    assert gzip.decompress((path / "rows_0-2000" / "data_0.ckpt.gz").read_bytes())[:2] == b"PK"
    opened = open_evaluation(pair[0], path, pair[1], layout=(0, 3, 31))
    assert measure(opened, 1).report.sequences == len(LENGTHS)
