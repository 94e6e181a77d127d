"""SpecForge's offline files: read in order, one at a time; what is damaged is named and never unpickled.

The other formats are in test_state_formats.py, folders with bad files in test_state_folders.py.
"""

import gzip
import os
from pathlib import Path

import pytest
import torch

from wiring.checkpoints.states import iter_states, read_state, state_files, write_state
from wiring.errors import WiringError

BOUNDARIES, WIDTH = (0, 3, 31), 4


def record(length=5, slots=3, seed=0):
    """A sample as SpecForge saves it, built without the package's writer."""
    g = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(0, 9, (length,), generator=g),
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "aux_hidden_state": torch.randn(1, length, slots * WIDTH, generator=g).bfloat16(),
        "hidden_state": torch.randn(1, length, WIDTH, generator=g).bfloat16(),
    }


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            torch.save(value, file)
    else:
        torch.save(value, path)
    return path


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz"])
def test_slots_are_the_pieces_side_by_side(tmp_path, name):
    raw = record()
    path = save(tmp_path / "rows_0-2000" / name, raw)
    (sample,) = iter_states(tmp_path, BOUNDARIES, WIDTH)
    assert sample.source == str(path) and sample.boundaries == BOUNDARIES
    assert torch.equal(sample.tokens, raw["input_ids"]) and torch.equal(sample.loss_mask, raw["loss_mask"])
    for i in range(3):
        assert torch.equal(sample.states[:, i], raw["aux_hidden_state"][0, :, i * WIDTH : (i + 1) * WIDTH])
    assert torch.equal(sample.last_hidden, raw["hidden_state"][0])
    chosen = sample.select((31, 0, 31))
    assert torch.equal(chosen[:, 0], sample.states[:, 2]) and torch.equal(chosen[:, 1], sample.states[:, 0])
    with pytest.raises(WiringError, match=r"boundary 59 is not among.*stored boundaries \(0, 3, 31\)"):
        sample.select((3, 31, 59))


def test_order_is_by_number_and_files_are_opened_one_by_one(tmp_path):
    for group, number in (("rows_2000-4000", 2000), ("rows_0-2000", 10), ("rows_0-2000", 2)):
        save(tmp_path / group / f"data_{number}.ckpt", record(length=number % 7 + 1, seed=number))
    (tmp_path / "rows_2000-4000" / "data_2001.ckpt").write_bytes(b"")
    (tmp_path / "rows_0-2000" / ".data_1.ckpt.99.tmp").write_bytes(b"half written")
    samples = iter_states(tmp_path, BOUNDARIES, WIDTH)
    names = [Path(next(samples).source).name for _ in range(3)]  # before the bad file is reached
    assert names == ["data_2.ckpt", "data_10.ckpt", "data_2000.ckpt"]
    with pytest.raises(WiringError, match=r"data_2001\.ckpt: the file is empty"):
        next(samples)


@pytest.mark.parametrize("suffix", [".ckpt", ".ckpt.gz"])
def test_what_is_written_is_what_the_trainer_reads(tmp_path, suffix):
    raw = record(length=6)
    states = raw["aux_hidden_state"].view(6, 3, WIDTH)
    paths = [tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"]
    for path in paths:
        write_state(path, raw["input_ids"], raw["loss_mask"].bool(), states, raw["hidden_state"][0])
    opened = gzip.open(paths[0]) if suffix.endswith("gz") else open(paths[0], "rb")
    with opened as file:
        again = torch.load(file, weights_only=True)
    assert again.keys() == raw.keys()
    for key, value in raw.items():
        assert torch.equal(again[key], value) and again[key].dtype == value.dtype, key
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(os.listdir(tmp_path)) == sorted(p.name for p in paths)


def test_padding_at_the_end_is_kept(tmp_path):
    raw = record(length=6)
    raw["input_ids"][4:] = 0
    raw["loss_mask"][4:] = 0
    raw["aux_hidden_state"][:, 4:] = 0
    assert read_state(save(tmp_path / "a.ckpt", raw), BOUNDARIES, WIDTH).loss_mask.tolist() == [1, 1, 1, 1, 0, 0]


def spoilt(**changes):
    return record() | changes


NAN = torch.zeros(1, 5, 12)
NAN[0, 3, 1] = float("nan")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            spoilt(aux_hidden_state=torch.zeros(1, 5, 16)),
            r"differ in number \(expected 4 boundaries.*4 states of width 4 per token, found \(0, 3, 31\), as asked",
        ),
        (
            spoilt(aux_hidden_state=torch.zeros(1, 5, 14)),
            r"aux_hidden_state is no whole number of states wide \(expected a multiple of the hidden size 4, found 14\)",
        ),
        (spoilt(aux_hidden_state=torch.zeros(2, 5, 12)), r"aux_hidden_state has the wrong shape.*found \[2, 5, 12\]"),
        (spoilt(aux_hidden_state=torch.zeros(1, 5, 12).int()), r"aux_hidden_state has the wrong type.*found int32"),
        (spoilt(aux_hidden_state="0.5"), "aux_hidden_state is no tensor.*found str"),
        (
            spoilt(aux_hidden_state=torch.zeros(1, 6, 12)),
            r"aux_hidden_state and the tokens differ in length \(expected 5, found 6\)",
        ),
        (spoilt(hidden_state=torch.zeros(1, 5, 8)), r"hidden_state has the wrong shape.*target's hidden size"),
        (
            spoilt(hidden_state=torch.zeros(1, 4, 4)),
            r"hidden_state and the tokens differ in length \(expected 5, found 4\)",
        ),
        (spoilt(aux_hidden_state=NAN), r"aux_hidden_state holds NaN.*found 1 of 5 rows, first at token 3"),
        (spoilt(hidden_state=torch.full((1, 5, 4), torch.inf)), r"hidden_state holds NaN or infinity.*5 of 5 rows"),
        (spoilt(loss_mask=torch.full((5,), 2)), "loss_mask is not made of 0 and 1.*found 2"),
        (spoilt(input_ids=torch.tensor([1, 2, -100, 3, 4])), "input_ids holds a negative token id.*found -100"),
        (
            {k: v for k, v in record().items() if k != "loss_mask"},
            "loss_mask is missing from this SpecForge offline sample.*expected input_ids, loss_mask.*found input_ids, aux",
        ),
        (spoilt(loss_mask=torch.ones(4, dtype=torch.int64)), r"differ in length \(expected 5, found 4\)"),
        (spoilt(input_ids=torch.ones(5)), r"input_ids is not a row of whole numbers.*found \[5\] torch\.float32"),
        (record(length=0), "the sample is empty"),
        ({"input_ids": torch.ones(3)}, "no known trainer saves such.*found input_ids.* is missing"),
        ({}, "no known trainer saves such.*found an empty dict"),
        ([1, 2], "not one sequence as TensorRT-LLM saves it.*found a list of 2"),
        (torch.ones(3), "not training states.*found Tensor"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(tmp_path, value, message):
    path = save(tmp_path / "data_7.ckpt", value)
    with pytest.raises(WiringError, match=rf"data_7\.ckpt: .*{message}"):
        read_state(path, BOUNDARIES, WIDTH)


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_file_that_is_cut_off(tmp_path, name, share):
    path = save(tmp_path / name, record(length=200))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(WiringError, match=rf"{name}: .*cut off"):
        read_state(path, BOUNDARIES, WIDTH)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz", "old"])
def test_pickled_objects_are_not_opened(tmp_path, name):
    sprung = tmp_path / "sprung"
    value = record() | {"extra": Trap(sprung)}
    path = tmp_path / "data_0.ckpt"
    if name == "old":
        torch.save(value, path, _use_new_zipfile_serialization=False)
    else:
        path = save(tmp_path / name, value)
    with pytest.raises(WiringError, match="holds pickled objects.*It was not opened"):
        read_state(path, BOUNDARIES, WIDTH)
    assert not sprung.exists()


def test_a_folder_without_states(tmp_path):
    with pytest.raises(WiringError, match="does not exist"):
        iter_states(tmp_path / "no", BOUNDARIES, WIDTH)
    with pytest.raises(WiringError, match="no training states here"):
        state_files(tmp_path)
