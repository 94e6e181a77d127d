"""Every trainer's training states come out as one kind of sample: the same numbers, and what is known of them."""

import shutil
from pathlib import Path

import pytest
import state_formats as formats
import torch
from safetensors.torch import save_file
from state_formats import WRITERS, save, sequence

from wiring.checkpoints.states import open_states, write_sidecar
from wiring.errors import WiringError

WIDTH = 4
LENGTHS = (5, 1, 8)


def sequences():
    return [sequence(length, seed=length) for length in LENGTHS]


def mask_of(writer, saved):
    if writer.no_mask:
        return [1] * len(saved.tokens)
    return saved.mask.tolist()[: -1 if writer.last_not_counted else None] + [0] * writer.last_not_counted


@pytest.mark.parametrize("name", WRITERS)
def test_one_sample_whatever_the_format(tmp_path, name):
    writer, saved = WRITERS[name], sequences()
    folder = open_states(writer.write(tmp_path / "states", saved), hidden_size=WIDTH, stored=(2, 30, 58))
    assert (folder.format, folder.slots, folder.norm, len(folder)) == (writer.format, 3, writer.norm, 3)
    for _ in range(2):  # it can be read again
        samples = list(folder)
        assert folder.skipped == [] and len(samples) == 3
        for sample, wanted in zip(samples, saved, strict=True):
            assert (sample.format, sample.norm, sample.boundaries) == (writer.format, writer.norm, (2, 30, 58))
            assert sample.tokens.tolist() == wanted.tokens.tolist() and sample.tokens.dtype == torch.int64
            assert sample.loss_mask.tolist() == mask_of(writer, wanted) and sample.loss_mask.dtype == torch.int64
            assert torch.equal(sample.states, wanted.states) and sample.states.dtype == wanted.states.dtype
            assert torch.equal(sample.last_hidden, wanted.last)
            assert Path(sample.source).is_file()
            assert torch.equal(sample.select((58, 2)), wanted.states[:, [2, 0]])


@pytest.mark.parametrize("name", WRITERS)
def test_a_single_file(tmp_path, name):
    writer, saved = WRITERS[name], sequences()
    every = list(open_states(writer.write(tmp_path / "states", saved), hidden_size=WIDTH))
    (alone,) = open_states(every[2].source, hidden_size=WIDTH)
    assert (alone.format, alone.norm, alone.boundaries) == (writer.format, writer.norm, None)
    assert torch.equal(alone.states, saved[2].states) and alone.loss_mask.tolist() == mask_of(writer, saved[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_keep_their_type(tmp_path, dtype):
    saved = sequence(4, dtype=dtype)
    save(tmp_path / "a.ckpt", formats.specforge_record(saved))
    (sample,) = open_states(tmp_path, hidden_size=WIDTH)
    assert sample.states.dtype == sample.last_hidden.dtype == dtype


def test_files_of_torch_before_1_6(tmp_path):
    saved = sequence(6)
    torch.save(formats.v0_record(saved), tmp_path / "data_0.pt", _use_new_zipfile_serialization=False)
    (sample,) = open_states(tmp_path, hidden_size=WIDTH)
    assert torch.equal(sample.states, saved.states)


def test_the_content_tells_the_compression(tmp_path):
    saved = sequence(6)
    save(tmp_path / "a.ckpt.gz", formats.specforge_record(saved)).rename(tmp_path / "a.ckpt")
    (sample,) = open_states(tmp_path, hidden_size=WIDTH)
    assert torch.equal(sample.states, saved.states)


def test_more_keys_than_known_are_no_error(tmp_path):
    saved = sequence(6)
    save(tmp_path / "a.ckpt", formats.specforge_record(saved) | {"version": 3, "tags": ["new"], "scale": torch.ones(2)})
    (sample,) = open_states(tmp_path, hidden_size=WIDTH)
    assert torch.equal(sample.last_hidden, saved.last)


def test_files_that_tensorrt_wrote_for_modelopt(tmp_path):
    # compute_hidden_states_trtllm.py renames hidden_state and leaves the other name alone
    saved = sequence(6)
    record = formats.modelopt_record(saved)
    record["hidden_state_features"] = record.pop("aux_hidden_states")
    (sample,) = open_states(save(tmp_path / "c1.pt", record), hidden_size=WIDTH)
    assert sample.format == "modelopt" and torch.equal(sample.states, saved.states)


def test_tensorrt_states_that_end_with_the_last_hidden_state_again(tmp_path):
    saved = sequence(6)
    record = formats.tensorrt_record(saved)
    record[0]["hidden_state_features"] = torch.cat([saved.wide, saved.last], 1)  # id -1 was among the captured
    (sample,) = open_states(save(tmp_path / "dp_0_1.pt", record), hidden_size=WIDTH, stored=(2, 30, 58))
    assert torch.equal(sample.states, saved.states) and torch.equal(sample.last_hidden, saved.last)


@pytest.mark.parametrize(
    ("packed", "mask"),
    [
        ("2,3,2", [0, 0, 1, 1, 1, 0, 0]),
        ("0,7", [1] * 7),
        ("7", [0] * 7),
        ("0,1,5,1", [1, 0, 0, 0, 0, 0, 1]),
    ],
)
def test_run_lengths_start_with_tokens_that_do_not_count(tmp_path, packed, mask):
    record = formats.torchspec_record(sequence(7), "x") | {"packed_loss_mask": packed}
    (sample,) = open_states(save(tmp_path / "x.pt", record), hidden_size=WIDTH)
    assert sample.loss_mask.tolist() == mask


RECORDED = Path(__file__).parent / "recorded" / "speculators"  # by datasets 5.2.0, save_to_disk in two files


def test_a_dataset_that_the_datasets_library_wrote(tmp_path):
    folder = tmp_path / "prepared"
    shutil.copytree(RECORDED, folder)
    rows = [([5, 6, 7, 8], [0, 0, 1, 1]), ([9], [1]), ([3, 1, 4, 1, 5, 9], [0, 1, 1, 0, 1, 1])]
    (folder / "hidden_states").mkdir()
    for number, (tokens, _) in enumerate(rows):
        payload = formats.speculators_payload(sequence(len(tokens))) | {"token_ids": torch.tensor(tokens)}
        save_file(payload, folder / "hidden_states" / f"hs_{number}.safetensors")
    samples = list(open_states(folder, hidden_size=WIDTH))
    assert [(s.tokens.tolist(), s.loss_mask.tolist()) for s in samples] == rows


@pytest.mark.parametrize("kind", ["int32", "int64", "bool"])
def test_masks_of_any_whole_type(tmp_path, kind):
    rows = [sequence(n, seed=n, vocab=2) for n in (9, 3, 17, 1, 4)]
    folder = formats.write_speculators(tmp_path, rows)
    columns = {"input_ids": [s.tokens.tolist() for s in rows], "loss_mask": [s.mask.tolist() for s in rows]}
    (folder / "data-00000-of-00001.arrow").write_bytes(formats.arrow_stream(columns, kind, batch=2))
    samples = list(open_states(folder, hidden_size=WIDTH))
    assert [s.loss_mask.tolist() for s in samples] == columns["loss_mask"]


def test_rows_belong_to_files_by_number_also_where_some_are_missing(tmp_path):
    rows = [sequence(n % 5 + 1, seed=n) for n in range(25)]
    wanted = [1, 2, 3, 10, 11, 24]
    folder = open_states(formats.write_speculators(tmp_path, rows, wanted, batch=4, shards=3), hidden_size=WIDTH)
    samples = list(folder)
    assert [Path(s.source).name for s in samples] == [f"hs_{i}.safetensors" for i in wanted]
    for number, sample in zip(wanted, samples, strict=True):
        assert (
            torch.equal(sample.states, rows[number].states) and sample.loss_mask.tolist() == rows[number].mask.tolist()
        )
    (again,) = open_states(tmp_path / "hidden_states" / "hs_10.safetensors", hidden_size=WIDTH)
    assert torch.equal(again.tokens, rows[10].tokens)
    assert len(list(open_states(tmp_path / "hidden_states", hidden_size=WIDTH))) == 6


def test_states_saved_in_eight_bits_are_scaled_per_token(tmp_path):
    saved = sequence(5)
    folder = formats.write_speculators(tmp_path, [saved])
    payload = formats.speculators_payload(saved)
    scales = payload["hidden_states"].float().abs().amax((1, 2), keepdim=True) / 448  # the largest float8_e4m3
    payload["hidden_states"] = (payload["hidden_states"].float() / scales).to(torch.float8_e4m3fn)
    save_file(payload | {"hidden_states_scales": scales}, folder / "hidden_states" / "hs_0.safetensors")
    (sample,) = open_states(folder, hidden_size=WIDTH)
    assert sample.states.dtype == torch.bfloat16
    for token in range(5):  # 3 bits behind the point: half a step is 1/16
        for slot in range(3):
            assert torch.allclose(sample.states[token, slot], saved.states[token, slot], rtol=0.08, atol=0.01)
    save_file(payload | {"hidden_states_scales": scales[:, 0, 0]}, folder / "hidden_states" / "hs_0.safetensors")
    with pytest.raises(
        WiringError, match=r"hidden_states_scales has the wrong shape \(expected \[5, 1, 1\], found \[5\]"
    ):
        open_states(folder, hidden_size=WIDTH)


@pytest.mark.parametrize("name", ["specforge", "speculators", "torchspec", "modelopt"])
def test_boundaries_written_beside_the_data(tmp_path, name):
    folder = WRITERS[name].write(tmp_path / "states", sequences())
    write_sidecar(folder, (0, 3, 31))
    opened = open_states(folder, hidden_size=WIDTH)
    assert opened.boundaries == (0, 3, 31)
    (alone,) = open_states(next(iter(opened)).source, hidden_size=WIDTH)
    assert alone.boundaries == (0, 3, 31)
    assert open_states(folder, hidden_size=WIDTH, stored=(0, 3, 31)).boundaries == (0, 3, 31)
    with pytest.raises(WiringError, match=r"told in two ways.*\(0, 3, 31\).*boundaries\.json.*\(2, 3, 31\)"):
        open_states(folder, hidden_size=WIDTH, stored=(2, 3, 31))


def test_the_norm_written_beside_the_data(tmp_path):
    folder = WRITERS["tensorrt"].write(tmp_path / "a", sequences())
    write_sidecar(folder, (0, 3, 31), "pre")
    opened = open_states(folder, hidden_size=WIDTH)
    assert opened.norm == "pre" and {sample.norm for sample in opened} == {"pre"}
    folder = WRITERS["v1"].write(tmp_path / "b", sequences())
    write_sidecar(folder, (0, 3, 31), "post")
    with pytest.raises(
        WiringError, match=r'the norm.*told in two ways.*"post".*boundaries\.json.*"pre".*speculators-v1'
    ):
        open_states(folder, hidden_size=WIDTH, skip_bad=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "no list of boundaries"),
        ('{"boundaries": ["a"]}', "no list of boundaries"),
        ('{"boundaries": [0, -3]}', "boundary -3 does not exist"),
        ('{"boundaries": [0, 3, 31], "norm": "both"}', "no such norm"),
    ],
)
def test_a_sidecar_that_is_none(tmp_path, content, message):
    WRITERS["v0"].write(tmp_path, sequences())
    (tmp_path / "boundaries.json").write_text(content)
    with pytest.raises(WiringError, match=rf"boundaries\.json: .*{message}"):
        open_states(tmp_path, hidden_size=WIDTH)


def test_slots_without_names_can_be_counted_but_not_chosen(tmp_path):
    folder = open_states(WRITERS["v0"].write(tmp_path, sequences()), hidden_size=WIDTH)
    assert folder.boundaries is None and folder.slots == 3
    with pytest.raises(WiringError, match="nobody said which boundaries are stored.*3 states per token"):
        next(iter(folder)).select((0, 3, 31))


def test_more_or_fewer_names_than_slots(tmp_path):
    WRITERS["v1"].write(tmp_path, sequences())
    for skip_bad in (False, True):
        with pytest.raises(
            WiringError, match=r"differ in number.*expected 3 boundaries.*found \(0, 3, 31, 59\), as asked"
        ):
            open_states(tmp_path, hidden_size=WIDTH, stored=(0, 3, 31, 59), skip_bad=skip_bad)
    with pytest.raises(WiringError, match=r"differ in number.*expected 3 boundaries.*found \(\), as asked"):
        open_states(tmp_path, hidden_size=WIDTH, stored=())
    write_sidecar(tmp_path, (0, 3))
    with pytest.raises(WiringError, match=r"differ in number.*found \(0, 3\), as .*boundaries\.json says"):
        open_states(tmp_path, hidden_size=WIDTH)
