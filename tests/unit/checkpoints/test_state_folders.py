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

from wiring.checkpoints.states import open_states, state_files
from wiring.errors import WiringError

WIDTH = 4


def good(folder, *numbers, slots=3):
    for number in numbers:
        save(folder / f"data_{number}.ckpt", formats.specforge_record(sequence(number + 2, slots, seed=number)))
    return folder


def changed(**changes):
    return formats.specforge_record(sequence(6)) | changes


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def compressed_half(path):
    """A whole gzip around half a torch file: the writer died before compressing."""
    save(path, formats.specforge_record(sequence(200)))
    content = path.read_bytes()
    path.write_bytes(gzip.compress(content[: len(content) // 2]))


NAN = torch.zeros(1, 6, 12)
NAN[0, 2, 5] = float("nan")
BAD = {
    "half": (lambda p: cut(save(p, changed())), "cut off"),
    "compressed half": (compressed_half, "cut off or is no torch file"),
    "half compressed": (lambda p: p.write_bytes(gzip.compress(os.urandom(5000))[:3000]), "compressed file is cut off"),
    "compressed nothing": (lambda p: p.write_bytes(gzip.compress(b"")), "compressed file holds nothing"),
    "empty file": (lambda p: p.write_bytes(b""), "the file is empty"),
    "zeros": (lambda p: p.write_bytes(bytes(5000)), "cut off or is no torch file"),
    "text": (lambda p: p.write_text("<html>not found</html>"), "cut off or is no torch file"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps({"input_ids": [1]})), "pickled objects"),
    "objects": (lambda p: save(p, changed(extra=Path("x"))), "pickled objects"),
    "not finite": (lambda p: save(p, changed(aux_hidden_state=NAN)), "NaN or infinity.*1 of 6 rows, first at token 2"),
    "no tokens": (lambda p: save(p, formats.specforge_record(sequence(0))), "the sample is empty"),
    "shorter mask": (
        lambda p: save(p, changed(loss_mask=torch.ones(5).long())),
        "differ in length.*expected 6, found 5",
    ),
    "whole numbers": (lambda p: save(p, changed(hidden_state=torch.ones(1, 6, 4).int())), "wrong type.*found int32"),
    "another width": (
        lambda p: save(p, formats.specforge_record(sequence(6, 4))),
        r"another width than the others.*expected 3 states per token, as in .*data_0\.ckpt, found 4 states",
    ),
    "another target": (lambda p: save(p, formats.specforge_record(sequence(6, 3, 5))), "multiple of the hidden size 4"),
    "missing key": (
        lambda p: save(p, {k: v for k, v in changed().items() if k != "hidden_state"}),
        "hidden_state is missing.*expected .*hidden_state",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_an_error_or_a_counted_skip(tmp_path, name):
    spoil, message = BAD[name]
    good(tmp_path, 0, 2)
    spoil(tmp_path / "data_1.ckpt")
    before = []
    with pytest.raises(WiringError, match=rf"data_1\.ckpt: .*{message}"):
        for sample in open_states(tmp_path, hidden_size=WIDTH):
            before.append(sample)
    assert [len(s.tokens) for s in before] == [2]
    folder = open_states(tmp_path, hidden_size=WIDTH, skip_bad=True)
    assert folder.skipped == [] and len(folder) == 3
    for _ in range(2):  # the count is of the latest iteration
        assert [len(s.tokens) for s in folder] == [2, 4]
        ((source, reason),) = [(s.source, s.reason) for s in folder.skipped]
        assert source == str(tmp_path / "data_1.ckpt")
        assert source not in reason
        with pytest.raises(WiringError, match=message):
            raise WiringError(reason)


@pytest.mark.parametrize("name", [name for name in BAD if name != "another width"])
def test_nothing_but_bad_files(tmp_path, name):
    for number in range(3):
        BAD[name][0](tmp_path / f"data_{number}.ckpt")
    with pytest.raises(
        WiringError, match=rf"data_0\.ckpt: not one of 3 files can be used; the first: .*{BAD[name][1]}"
    ):
        open_states(tmp_path, hidden_size=WIDTH, skip_bad=True)
    with pytest.raises(WiringError, match=rf"data_0\.ckpt: .*{BAD[name][1]}"):
        open_states(tmp_path, hidden_size=WIDTH)


def test_files_that_go_bad_after_opening(tmp_path):
    folder = open_states(good(tmp_path, 0, 1), hidden_size=WIDTH, skip_bad=True)
    for path in state_files(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(WiringError, match="not one of 2 files can be used"):
        list(folder)
    assert len(folder.skipped) == 2


def test_the_first_file_may_be_the_odd_one(tmp_path):
    good(tmp_path, 1, 2, 3)
    save(tmp_path / "data_0.ckpt", formats.specforge_record(sequence(6, 4)))
    folder = open_states(tmp_path, hidden_size=WIDTH, stored=(0, 3, 31), skip_bad=True)
    assert [len(s.tokens) for s in folder] == [3, 4, 5] and len(folder.skipped) == 1


@pytest.mark.parametrize("skip_bad", [False, True])
def test_two_formats_in_one_folder(tmp_path, skip_bad):
    good(tmp_path, 0, 1)
    save(tmp_path / "data_2.ckpt", formats.normalised_record(sequence(6)))
    with pytest.raises(
        WiringError, match=r"different kinds.*data_0\.ckpt is specforge, .*data_2\.ckpt is specforge-normalised"
    ):
        list(open_states(tmp_path, hidden_size=WIDTH, skip_bad=skip_bad))


def test_two_norms_in_one_folder(tmp_path):
    for number in range(2):
        record = formats.modelopt_record(sequence(6), hidden_states_prenorm=bool(number))
        save(tmp_path / f"{number}.pt", record)
    with pytest.raises(WiringError, match=r"different kinds.*0\.pt is post-norm, .*1\.pt is pre-norm"):
        list(open_states(tmp_path, hidden_size=WIDTH, skip_bad=True))


def test_a_dataset_folder_with_another_trainers_files(tmp_path):
    formats.write_speculators(tmp_path, [sequence(6)])
    good(tmp_path, 0)
    with pytest.raises(WiringError, match=r"different kinds.*hs_0\.safetensors.*data_0\.ckpt"):
        open_states(tmp_path, hidden_size=WIDTH)


def test_order_links_and_files_that_are_no_states(tmp_path):
    data = good(tmp_path / "elsewhere", 0, 2, 10, 1)
    for name in ("vocab_mapping.pt", "token_freq.pt", ".data_3.ckpt"):
        (data / name).write_bytes(b"no states")
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "rows_0-2000").symlink_to(data)
    (data / "back").symlink_to(tmp_path / "states")
    folder = open_states(tmp_path / "states", hidden_size=WIDTH)
    assert [Path(s.source).name for s in folder] == [f"data_{i}.ckpt" for i in (0, 1, 2, 10)]


class TestSpeculators:
    @pytest.fixture
    def prepared(self, tmp_path):
        return formats.write_speculators(
            tmp_path / "data", [sequence(n + 3, seed=n) for n in range(6)], batch=2, shards=3
        )

    def only(self, folder, reason):
        opened = open_states(folder, hidden_size=WIDTH, skip_bad=True)
        lengths = [len(s.tokens) for s in opened]
        assert all(reason in skipped.reason for skipped in opened.skipped), opened.skipped
        return lengths, len(opened.skipped)

    def test_tokens_of_another_row(self, prepared):
        payload = formats.speculators_payload(sequence(4, seed=1))
        payload["token_ids"][2] += 1
        wanted, wrong = sequence(4, seed=1).tokens[2:].tolist(), payload["token_ids"][2:].tolist()
        save_file(payload, prepared / "hidden_states" / "hs_1.safetensors")
        with pytest.raises(WiringError) as caught:
            list(open_states(prepared, hidden_size=WIDTH))
        message = str(caught.value)
        assert "hs_1.safetensors: token_ids differ from the dataset's row, first at token 2" in message
        assert f"expected 4 tokens, {wanted} there, found 4 tokens, {wrong} there" in message
        assert self.only(prepared, "token_ids differ") == ([3, 5, 6, 7, 8], 1)

    def test_fewer_tokens_than_the_row(self, prepared):
        save_file(formats.speculators_payload(sequence(2, seed=0)), prepared / "hidden_states" / "hs_1.safetensors")
        assert self.only(prepared, "token_ids differ") == ([3, 5, 6, 7, 8], 1)

    def test_a_row_that_does_not_exist(self, prepared):
        for row in (6, 9):
            save_file(formats.speculators_payload(sequence(2)), prepared / "hidden_states" / f"hs_{row}.safetensors")
        with pytest.raises(WiringError, match=r"data: the dataset has no row 6 \(expected 0\.\.5\)"):
            list(open_states(prepared, hidden_size=WIDTH))
        assert self.only(prepared, "the dataset has no row") == ([3, 4, 5, 6, 7, 8], 2)

    def test_half_a_file(self, prepared):
        cut(prepared / "hidden_states" / "hs_2.safetensors")
        (prepared / "hidden_states" / "hs_3.safetensors").write_bytes(b"")
        with pytest.raises(WiringError, match=r"hs_2\.safetensors: the file is cut off"):
            list(open_states(prepared, hidden_size=WIDTH))
        assert self.only(prepared, "the file is") == ([3, 4, 7, 8], 2)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (cut, "cut off or damaged"),
            (lambda p: p.write_bytes(b""), "cut off or damaged"),
            (lambda p: p.write_bytes(b"nothing like it" * 99), "cut off or damaged"),
            (Path.unlink, "is missing"),
        ],
    )
    def test_a_broken_dataset_file_loses_all_rows_from_there_on(self, prepared, damage, message):
        damage(prepared / "data-00001-of-00003.arrow")
        with pytest.raises(WiringError, match=rf"data-00001-of-00003\.arrow: .*{message}"):
            list(open_states(prepared, hidden_size=WIDTH))
        assert self.only(prepared, message) == ([3, 4], 4)

    def test_columns_that_are_not_there(self, prepared):
        columns = {"input_ids": [[1, 2, 3]] * 2, "attention_mask": [[1, 1, 1]] * 2}
        (prepared / "data-00000-of-00003.arrow").write_bytes(formats.arrow_stream(columns))
        with pytest.raises(
            WiringError, match=r"data-00000.*column loss_mask is missing.*found input_ids, attention_mask"
        ):
            open_states(prepared, hidden_size=WIDTH)

    def test_a_mask_of_another_length(self, prepared):
        columns = {"input_ids": [[1, 2, 3]] * 2, "loss_mask": [[1, 1, 1], [1, 1]]}
        (prepared / "data-00000-of-00003.arrow").write_bytes(formats.arrow_stream(columns))
        payload = formats.speculators_payload(sequence(3)) | {"token_ids": torch.tensor([1, 2, 3])}
        for row in range(2):
            save_file(payload, prepared / "hidden_states" / f"hs_{row}.safetensors")
        with pytest.raises(WiringError, match="data-00000.*, row 1: loss_mask and the tokens differ in length"):
            list(open_states(prepared, hidden_size=WIDTH))

    def test_states_of_another_width_or_without_names(self, prepared):
        path = prepared / "hidden_states" / "hs_0.safetensors"
        with pytest.raises(WiringError, match=r"hidden_states has the wrong shape \(expected \[3, 2 or more, 8\]"):
            open_states(prepared, hidden_size=8)
        save_file({"hidden_states": torch.ones(3, 4, 4)}, path)
        with pytest.raises(WiringError, match="token_ids is missing.*found hidden_states"):
            open_states(prepared, hidden_size=WIDTH)

    def test_hidden_states_without_their_dataset(self, prepared, tmp_path):
        (prepared / "hidden_states").rename(tmp_path / "hidden_states")
        with pytest.raises(WiringError, match="the dataset that these hidden states belong to is not here"):
            open_states(tmp_path / "hidden_states", hidden_size=WIDTH)
        with pytest.raises(WiringError, match="no training states here.*no hidden states were generated"):
            open_states(prepared, hidden_size=WIDTH)


class TestTorchSpec:
    @pytest.fixture
    def dataset(self, tmp_path):
        return WRITERS["torchspec"].write(tmp_path, [sequence(n + 3, seed=n) for n in range(3)])

    def test_a_manifest_that_was_cut_off(self, dataset):
        manifest = dataset / "manifest.jsonl"
        manifest.write_text(manifest.read_text()[:-20])
        with pytest.raises(WiringError, match=r"manifest\.jsonl, line 3: this line of the manifest names no sample"):
            open_states(dataset, hidden_size=WIDTH)
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
        reasons = " ".join(s.reason for s in opened.skipped)
        assert len(opened.skipped) == 3
        for part in ("names no sample", "cannot be read", "expected data_id somebody else, found conversation-2"):
            assert part in reasons

    @pytest.mark.parametrize(
        ("packed", "message"),
        [
            ("2,3", "packed_loss_mask and the tokens differ in length.*expected 7, found 5"),
            ("2,x", "packed_loss_mask does not say which tokens count.*'2,x'"),
            (None, "does not say which tokens count"),
            ("9,-2", "does not say"),
            ("", "does not say"),
        ],
    )
    def test_masks_that_do_not_fit(self, tmp_path, packed, message):
        save(tmp_path / "x.pt", formats.torchspec_record(sequence(7), "x") | {"packed_loss_mask": packed})
        with pytest.raises(WiringError, match=rf"x\.pt: .*{message}"):
            open_states(tmp_path, hidden_size=WIDTH)

    def test_logits_are_no_last_hidden_state(self, tmp_path):
        record = formats.torchspec_record(sequence(7), "x", last="target") | {"target": torch.ones(1, 7, 50)}
        with pytest.raises(WiringError, match=r"target has the wrong shape \(expected \[7, 4\], found \[7, 50\]"):
            open_states(save(tmp_path / "x.pt", record), hidden_size=WIDTH)


PEAK = """
import resource, sys
from pathlib import Path
import torch
from wiring.checkpoints.states import open_states

def peak():
    # what getrusage says starts from the peak of the process that started this one, where there is /proc this does not
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
