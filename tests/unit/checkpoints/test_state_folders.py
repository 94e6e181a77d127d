"""Folders with bad files, mixed folders, and folders larger than memory."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import state_formats as formats
import torch
from safetensors.torch import save_file
from state_formats import WRITERS, save, sequence

from wiring.checkpoints.states import open_states
from wiring.errors import WiringError

WIDTH = 4


def refusal(path, **options):
    """The error of opening `path` and reading all of it."""
    with pytest.raises(WiringError) as caught:
        list(open_states(path, **{"hidden_size": WIDTH} | options))
    return caught.value


def good(folder, *numbers, slots=3):
    for number in numbers:
        save(folder / f"data_{number}.ckpt", formats.specforge_record(sequence(number + 2, slots, seed=number)))
    return folder


def changed(**changes):
    return formats.specforge_record(sequence(6)) | changes


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def compressed_half(path):
    """A whole gzip around half a torch file: the writer died before compressing."""
    save(path, formats.specforge_record(sequence(200)))
    content = path.read_bytes()
    path.write_bytes(gzip.compress(content[: len(content) // 2]))


BAD = {
    "twentieth": (lambda p: cut(save(p, changed()), 0.05), "file-damaged"),
    "half": (lambda p: cut(save(p, changed())), "file-damaged"),
    "without its end": (lambda p: cut(save(p, changed()), 0.95), "file-damaged"),
    "compressed half": (compressed_half, "file-damaged"),
    "half compressed": (lambda p: p.write_bytes(gzip.compress(os.urandom(5000))[:3000]), "file-damaged"),
    "compressed nothing": (lambda p: p.write_bytes(gzip.compress(b"")), "file-damaged"),
    "empty file": (lambda p: p.write_bytes(b""), "file-empty"),
    "zeros": (lambda p: p.write_bytes(bytes(5000)), "file-damaged"),
    "text": (lambda p: p.write_text("<html>not found</html>"), "file-damaged"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps({"input_ids": [1]})), "file-holds-objects"),
    "field": (lambda p: save(p, changed(loss_mask=torch.ones(5).long())), "state-field-invalid"),
    "another width": (lambda p: save(p, formats.specforge_record(sequence(6, 4))), "states-slots-differ"),
    "missing key": (
        lambda p: save(p, {k: v for k, v in changed().items() if k != "hidden_state"}),
        "state-field-missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_an_error_or_a_counted_skip(tmp_path, name):
    corrupt, code = BAD[name]
    good(tmp_path, 0, 2)
    corrupt(tmp_path / "data_1.ckpt")
    samples = iter(open_states(tmp_path, hidden_size=WIDTH))
    assert len(next(samples).tokens) == 2  # files are opened one by one
    with pytest.raises(WiringError) as caught:
        next(samples)
    assert (caught.value.code, caught.value.where) == (code, str(tmp_path / "data_1.ckpt"))
    folder = open_states(tmp_path, hidden_size=WIDTH, skip_bad=True)
    assert folder.skipped == [] and len(folder) == 3
    for _ in range(2):  # the count is of the latest iteration
        assert [len(s.tokens) for s in folder] == [2, 4]
        ((source, reason),) = [(s.source, s.reason) for s in folder.skipped]
        assert source == caught.value.where and str(caught.value) == f"{source}: {reason}"


@pytest.mark.parametrize("name", [name for name in BAD if name != "another width"])
def test_nothing_but_bad_files(tmp_path, name):
    for number in range(3):
        BAD[name][0](tmp_path / f"data_{number}.ckpt")
    first = refusal(tmp_path)
    assert (first.code, first.where) == (BAD[name][1], str(tmp_path / "data_0.ckpt"))
    every = refusal(tmp_path, skip_bad=True)
    assert (every.code, every.where) == ("states-all-unusable", first.where)
    assert "3 files" in every.problem and first.problem in every.problem


def test_files_that_go_bad_after_opening(tmp_path):
    folder = open_states(good(tmp_path, 0, 1), hidden_size=WIDTH, skip_bad=True)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(WiringError) as caught:
        list(folder)
    assert caught.value.code == "states-all-unusable" and len(folder.skipped) == 2


def test_the_first_file_may_be_the_odd_one(tmp_path):
    good(tmp_path, 1, 2, 3)
    save(tmp_path / "data_0.ckpt", formats.specforge_record(sequence(6, 4)))
    folder = open_states(tmp_path, hidden_size=WIDTH, stored=(0, 3, 31), skip_bad=True)
    assert [len(s.tokens) for s in folder] == [3, 4, 5] and len(folder.skipped) == 1


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "expected", "found"),
    [
        (formats.specforge_record, formats.normalised_record, "specforge", "specforge-normalised"),
        (
            lambda s: formats.modelopt_record(s, hidden_states_prenorm=False),
            lambda s: formats.modelopt_record(s, hidden_states_prenorm=True),
            "post-norm",
            "pre-norm",
        ),
    ],
)
def test_two_formats_or_norms_in_one_folder(tmp_path, skip_bad, first, second, expected, found):
    save(tmp_path / "0.pt", first(sequence(6)))
    save(tmp_path / "1.pt", second(sequence(6)))
    error = refusal(tmp_path, skip_bad=skip_bad)
    assert (error.code, error.where, error.found) == ("states-formats-mixed", str(tmp_path / "1.pt"), found)
    assert error.expected == f"{expected} as {tmp_path / '0.pt'}"


def test_a_dataset_folder_with_another_trainers_files(tmp_path):
    formats.write_speculators(tmp_path, [sequence(6)])
    good(tmp_path, 0)
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("states-formats-mixed", str(tmp_path / "data_0.ckpt"))
    assert "hs_0.safetensors" in error.expected


def test_order_links_and_files_that_are_no_states(tmp_path):
    data = good(tmp_path / "elsewhere", 0, 2, 10, 1)
    for name in ("vocab_mapping.pt", "token_freq.pt", ".data_3.ckpt", ".data_1.ckpt.99.tmp"):
        (data / name).write_bytes(b"no states")
    good(tmp_path / "states" / "rows_2000-4000", 3)
    (tmp_path / "states" / "rows_0-2000").symlink_to(data)
    (data / "back").symlink_to(tmp_path / "states")
    folder = open_states(tmp_path / "states", hidden_size=WIDTH)
    assert [Path(s.source).name for s in folder] == [f"data_{i}.ckpt" for i in (0, 1, 2, 10, 3)]


def test_a_folder_without_states(tmp_path):
    assert refusal(tmp_path / "no").code == "states-folder-missing"
    assert refusal(tmp_path).code == "states-missing"


class TestSpeculators:
    @pytest.fixture
    def prepared(self, tmp_path):
        return formats.write_speculators(
            tmp_path / "data", [sequence(n + 3, seed=n) for n in range(6)], batch=2, shards=3
        )

    def read(self, folder):
        """The lengths of the good samples, and the number of skipped files."""
        opened = open_states(folder, hidden_size=WIDTH, skip_bad=True)
        return [len(s.tokens) for s in opened], len(opened.skipped)

    def test_tokens_of_another_row(self, prepared):
        path = prepared / "hidden_states" / "hs_1.safetensors"
        payload = formats.speculators_payload(sequence(4, seed=1))
        payload["token_ids"][2] += 1
        wanted, wrong = sequence(4, seed=1).tokens[2:].tolist(), payload["token_ids"][2:].tolist()
        save_file(payload, path)
        error = refusal(prepared)
        assert (error.code, error.where) == ("states-of-another-row", str(path)) and "token 2" in error.problem
        assert (error.expected, error.found) == (f"4 tokens, {wanted} there", f"4 tokens, {wrong} there")
        assert self.read(prepared) == ([3, 5, 6, 7, 8], 1)
        save_file(formats.speculators_payload(sequence(2, seed=0)), path)  # fewer tokens than the row
        assert self.read(prepared) == ([3, 5, 6, 7, 8], 1)

    def test_a_row_that_does_not_exist(self, prepared):
        for row in (6, 9):
            save_file(formats.speculators_payload(sequence(2)), prepared / "hidden_states" / f"hs_{row}.safetensors")
        error = refusal(prepared)
        assert (error.code, error.where, error.expected) == ("dataset-row-missing", str(prepared), "0..5")
        assert self.read(prepared) == ([3, 4, 5, 6, 7, 8], 2)

    def test_half_a_file(self, prepared):
        cut(prepared / "hidden_states" / "hs_2.safetensors")
        (prepared / "hidden_states" / "hs_3.safetensors").write_bytes(b"")
        assert refusal(prepared).code == "file-damaged"
        assert self.read(prepared) == ([3, 4, 7, 8], 2)

    @pytest.mark.parametrize(
        ("damage", "code"),
        [
            (cut, "dataset-file-damaged"),
            (lambda p: p.write_bytes(b""), "dataset-file-damaged"),
            (lambda p: p.write_bytes(b"nothing like it" * 99), "dataset-file-damaged"),
            (Path.unlink, "dataset-file-missing"),
        ],
    )
    def test_a_broken_dataset_file_loses_all_rows_from_there_on(self, prepared, damage, code):
        file = prepared / "data-00001-of-00003.arrow"
        damage(file)
        error = refusal(prepared)
        assert (error.code, error.where) == (code, str(file))
        assert self.read(prepared) == ([3, 4], 4)

    def test_columns_and_masks_that_do_not_fit(self, prepared):
        file = prepared / "data-00000-of-00003.arrow"
        columns = {"input_ids": [[1, 2, 3]] * 2, "attention_mask": [[1, 1, 1]] * 2}
        file.write_bytes(formats.arrow_stream(columns))
        error = refusal(prepared)
        assert (error.code, error.where, error.found) == (
            "dataset-column-missing",
            str(file),
            "input_ids, attention_mask",
        )
        file.write_bytes(formats.arrow_stream({"input_ids": [[1, 2, 3]] * 2, "loss_mask": [[1, 1, 1], [1, 1]]}))
        payload = formats.speculators_payload(sequence(3)) | {"token_ids": torch.tensor([1, 2, 3])}
        for row in range(2):
            save_file(payload, prepared / "hidden_states" / f"hs_{row}.safetensors")
        error = refusal(prepared)
        assert (error.code, error.where, error.found) == ("state-field-invalid", f"{file}, row 1", "2")
        assert self.read(prepared) == ([3, 5, 6, 7, 8], 1)  # the rows after it are read

    def test_states_of_another_width_or_without_names(self, prepared):
        error = refusal(prepared, hidden_size=8)
        assert (error.code, error.expected) == ("state-field-invalid", "shape [3, 2 or more, 8]")
        save_file({"hidden_states": torch.ones(3, 4, 4)}, prepared / "hidden_states" / "hs_0.safetensors")
        error = refusal(prepared)
        assert (error.code, error.found) == ("state-field-missing", "hidden_states")

    def test_hidden_states_without_their_dataset(self, prepared, tmp_path):
        (prepared / "hidden_states").rename(tmp_path / "hidden_states")
        assert refusal(tmp_path / "hidden_states").code == "states-dataset-missing"
        error = refusal(prepared)
        assert (error.code, error.found) == ("states-missing", "a prepared dataset without hidden states")


class TestTorchSpec:
    @pytest.fixture
    def dataset(self, tmp_path):
        return WRITERS["torchspec"].write(tmp_path, [sequence(n + 3, seed=n) for n in range(3)])

    def test_a_manifest_that_was_cut_off(self, dataset):
        manifest = dataset / "manifest.jsonl"
        manifest.write_text(manifest.read_text()[:-20])
        error = refusal(dataset)
        assert (error.code, error.where) == ("manifest-line-invalid", f"{manifest}, line 3")
        opened = open_states(dataset, hidden_size=WIDTH, skip_bad=True)
        assert [len(s.tokens) for s in opened] == [3, 4] and len(opened.skipped) == 1 and len(opened) == 3

    def test_samples_outside_missing_and_of_another_id(self, dataset):
        rows = [json.loads(line) for line in (dataset / "manifest.jsonl").read_text().splitlines()]
        (dataset / rows[1]["file"]).unlink()
        rows[2]["data_id"] = "somebody else"
        rows.append({"split": "train", "data_id": "x", "file": "../../etc/x.pt"})
        (dataset / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        opened = open_states(dataset, hidden_size=WIDTH, skip_bad=True)
        assert [len(s.tokens) for s in opened] == [3]
        places = [str(dataset / "manifest.jsonl") + ", line 4", *(str(dataset / row["file"]) for row in rows[1:3])]
        assert [skipped.source for skipped in opened.skipped] == places
        assert "conversation-2" in opened.skipped[2].reason

    @pytest.mark.parametrize(
        ("packed", "found"), [("2,3", "5"), ("2,x", "'2,x'"), (None, "None"), ("9,-2", "'9,-2'"), ("", "''")]
    )
    def test_masks_that_do_not_fit(self, tmp_path, packed, found):
        save(tmp_path / "x.pt", formats.torchspec_record(sequence(7), "x") | {"packed_loss_mask": packed})
        error = refusal(tmp_path)
        assert (error.code, error.where, error.found) == ("state-field-invalid", str(tmp_path / "x.pt"), found)

    def test_logits_are_no_last_hidden_state(self, tmp_path):
        record = formats.torchspec_record(sequence(7), "x", last="target") | {"target": torch.ones(1, 7, 50)}
        error = refusal(save(tmp_path / "x.pt", record))
        assert error.code == "state-field-invalid" and error.problem.startswith("target ")
        assert (error.expected, error.found) == ("shape [7, 4]", "[1, 7, 50]")


PEAK = """
import resource, sys
from pathlib import Path
import torch
from wiring.checkpoints.states import open_states

def peak():
    # the value of getrusage includes the peak of the parent process; /proc does not
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024

torch.set_num_threads(1)
before = peak()
folder = open_states(sys.argv[1], hidden_size=1024)
logical, total = 0, 0.0
for sample in folder:
    chosen = sample.select((0, 3, 31))
    logical += sample.states.nbytes + sample.last_hidden.nbytes
    total += float(chosen[-1].sum())
print(logical, total, peak() - before)
"""


def test_a_folder_larger_than_memory_is_streamed(tmp_path):
    saved = sequence(3000, 4, 1024)
    first = save(tmp_path / "data_0.ckpt", formats.specforge_record(saved))
    assert first.stat().st_size > 30e6
    for number in range(1, 100):
        os.link(first, tmp_path / f"data_{number}.ckpt")
    (tmp_path / "boundaries.json").write_text('{"boundaries": [0, 3, 31, 59]}')
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    logical, total, grown = ran.stdout.split()
    assert int(logical) == 100 * (saved.states.nbytes + saved.last.nbytes) > 3e9
    assert float(total) == pytest.approx(100 * float(saved.states[-1, :3].sum()))
    assert int(grown) < 300 * 2**20
