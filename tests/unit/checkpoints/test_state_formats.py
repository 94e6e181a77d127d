"""Training states of every trainer are read as the same samples; fields that do not fit are named."""

import gzip
import shutil
from pathlib import Path

import pytest
import state_formats as formats
import torch
from safetensors.torch import save_file
from state_formats import WRITERS, save, sequence
from test_state_folders import refusal

from wiring.checkpoints.states import open_states, write_sidecar, write_state
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
    error = refusal(folder)
    assert (error.code, error.expected, error.found) == ("state-field-invalid", "shape [5, 1, 1]", "[5]")


@pytest.mark.parametrize("name", ["specforge", "speculators", "torchspec", "modelopt"])
def test_boundaries_in_the_folder_of_the_data(tmp_path, name):
    folder = WRITERS[name].write(tmp_path / "states", sequences())
    write_sidecar(folder, (0, 3, 31))
    opened = open_states(folder, hidden_size=WIDTH)
    assert opened.boundaries == (0, 3, 31)
    (alone,) = open_states(next(iter(opened)).source, hidden_size=WIDTH)
    assert alone.boundaries == (0, 3, 31)
    assert open_states(folder, hidden_size=WIDTH, stored=(0, 3, 31)).boundaries == (0, 3, 31)
    error = refusal(folder, stored=(2, 3, 31))
    assert (error.code, error.found) == ("states-boundaries-contradictory", "(2, 3, 31) (the call)")
    assert error.expected == f"(0, 3, 31) ({folder / 'boundaries.json'})"


def test_the_norm_in_the_folder_of_the_data(tmp_path):
    folder = WRITERS["tensorrt"].write(tmp_path / "a", sequences())
    write_sidecar(folder, (0, 3, 31), "pre")
    opened = open_states(folder, hidden_size=WIDTH)
    assert opened.norm == "pre" and {sample.norm for sample in opened} == {"pre"}
    folder = WRITERS["v1"].write(tmp_path / "b", sequences())
    write_sidecar(folder, (0, 3, 31), "post")
    error = refusal(folder, skip_bad=True)
    assert (error.code, error.expected) == ("states-norm-contradictory", f'"post" ({folder / "boundaries.json"})')
    assert '"pre"' in error.found


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{", "json-unreadable"),
        ("[1]", "json-not-an-object"),
        ("{}", "config-field-invalid"),
        ('{"boundaries": ["a"]}', "config-field-invalid"),
        ('{"boundaries": []}', "sidecar-invalid"),
        ('{"boundaries": [0, -3]}', "boundary-not-in-target"),
        ('{"boundaries": [0, 3, 31], "norm": "both"}', "config-field-invalid"),
    ],
)
def test_an_invalid_sidecar(tmp_path, content, code):
    WRITERS["v0"].write(tmp_path, sequences())
    (tmp_path / "boundaries.json").write_text(content)
    error = refusal(tmp_path)
    assert (error.code, error.where) == (code, str(tmp_path / "boundaries.json"))


def test_boundaries_that_are_not_stored_cannot_be_selected(tmp_path):
    folder = WRITERS["v0"].write(tmp_path, sequences())
    unnamed = open_states(folder, hidden_size=WIDTH)
    assert unnamed.boundaries is None and unnamed.slots == 3
    named = open_states(folder, hidden_size=WIDTH, stored=(0, 3, 31))
    for opened, found in ((unnamed, "3 states per token without names"), (named, "stored boundaries (0, 3, 31)")):
        with pytest.raises(WiringError) as caught:
            next(iter(opened)).select((3, 31, 59))
        assert (caught.value.code, caught.value.found) == ("boundary-not-stored", found)


def test_more_or_fewer_names_than_slots(tmp_path):
    WRITERS["v1"].write(tmp_path, sequences())
    for options in ({"stored": (0, 3, 31, 59)}, {"stored": (0, 3, 31, 59), "skip_bad": True}, {"stored": ()}):
        error = refusal(tmp_path, **options)
        assert (error.code, error.found) == ("states-boundaries-count", str(options["stored"]))
        assert error.expected.startswith("3 boundaries")
    write_sidecar(tmp_path, (0, 3))
    assert refusal(tmp_path).code == "states-boundaries-count"


def changed(**changes):
    return formats.specforge_record(sequence(5)) | changes


NAN = torch.zeros(1, 5, 12)
NAN[0, 3, 1] = float("nan")


@pytest.mark.parametrize(
    ("value", "field", "found"),
    [
        (changed(aux_hidden_state=torch.zeros(1, 5, 14)), "aux_hidden_state", "14"),
        (changed(aux_hidden_state=torch.zeros(2, 5, 12)), "aux_hidden_state", "[2, 5, 12]"),
        (changed(aux_hidden_state=torch.zeros(1, 5, 12).int()), "aux_hidden_state", "int32"),
        (changed(aux_hidden_state="0.5"), "aux_hidden_state", "str"),
        (changed(aux_hidden_state=torch.zeros(1, 6, 12)), "aux_hidden_state", "[1, 6, 12]"),
        (changed(hidden_state=torch.zeros(1, 5, 8)), "hidden_state", "[1, 5, 8]"),
        (changed(hidden_state=torch.zeros(1, 4, 4)), "hidden_state", "[1, 4, 4]"),
        (changed(aux_hidden_state=NAN), "aux_hidden_state", "NaN or infinity in 1 of 5 rows, first at token 3"),
        (changed(hidden_state=torch.full((1, 5, 4), torch.inf)), "hidden_state", None),
        (changed(loss_mask=torch.full((5,), 2)), "loss_mask", "2"),
        (changed(loss_mask=torch.ones(4, dtype=torch.int64)), "loss_mask", "4"),
        (changed(input_ids=torch.tensor([1, 2, -100, 3, 4])), "input_ids", "-100"),
        (changed(input_ids=torch.ones(5)), "input_ids", "[5] torch.float32"),
        (formats.specforge_record(sequence(0)), "input_ids", "no ids"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path, value, field, found):
    error = refusal(save(tmp_path / "data_7.ckpt", value))
    assert (error.code, error.where) == ("state-field-invalid", str(tmp_path / "data_7.ckpt"))
    assert error.problem.split()[0] == field and (found is None or error.found == found)


@pytest.mark.parametrize(
    ("value", "code", "found"),
    [
        ({k: v for k, v in changed().items() if k != "loss_mask"}, "state-field-missing", None),
        ({"input_ids": torch.ones(3)}, "states-format-unknown", "input_ids"),
        ({}, "states-format-unknown", "an empty dict"),
        ([1, 2], "states-not-a-record", "a list of 2"),
        (torch.ones(3), "states-not-a-record", "Tensor"),
    ],
)
def test_a_record_of_no_format_is_refused(tmp_path, value, code, found):
    error = refusal(save(tmp_path / "data_7.ckpt", value))
    assert (error.code, error.where) == (code, str(tmp_path / "data_7.ckpt"))
    assert found is None or error.found == found


def test_token_ids_are_checked_against_a_vocabulary(tmp_path):
    save(tmp_path / "a.ckpt", changed(input_ids=torch.tensor([0, 7, 1, 2, 3])))
    assert len(list(open_states(tmp_path, hidden_size=WIDTH, vocab_size=8))) == 1
    error = refusal(tmp_path, vocab_size=7)
    assert (error.code, error.expected, error.found) == ("states-token-outside-vocabulary", "0..6", "7")


@pytest.mark.parametrize("suffix", [".ckpt", ".ckpt.gz"])
def test_what_is_written_is_what_the_trainer_reads(tmp_path, suffix):
    saved, raw = sequence(6), formats.specforge_record(sequence(6))
    raw["loss_mask"][4:] = 0  # padding is kept
    paths = [tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"]
    for path in paths:
        write_state(path, raw["input_ids"], raw["loss_mask"].bool(), saved.states, saved.last)
    with (gzip.open if suffix.endswith("gz") else open)(paths[0], "rb") as file:
        again = torch.load(file, weights_only=True)
    assert again.keys() == raw.keys()
    for key, value in raw.items():
        assert torch.equal(again[key], value) and again[key].dtype == value.dtype, key
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == paths
    (sample, _) = open_states(tmp_path, hidden_size=WIDTH)
    assert sample.loss_mask.tolist() == raw["loss_mask"].tolist()


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz", "old"])
def test_pickled_objects_are_not_opened(tmp_path, name):
    sprung, path = tmp_path / "sprung", tmp_path / "data_0.ckpt"
    value = changed(extra=Trap(sprung))
    if name == "old":
        torch.save(value, path, _use_new_zipfile_serialization=False)
    else:
        path = save(tmp_path / name, value)
    assert refusal(path).code == "file-holds-objects"
    assert not sprung.exists()
