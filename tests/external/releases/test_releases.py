"""`served_layout` against the code of the releases themselves: their setters and forwards are run, not described."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import pytest
from captured_states import MODELS
from packaging.version import Version
from release_source import Release
from server_start import KEY, default_calls, fc_states, ids_after_graphs, read_ids, served
from wheel_store import folder, wheel

from wiring.engines import sglang_layers
from wiring.engines.resolve import served_layout
from wiring.engines.sglang import requested_ids
from wiring.engines.sglang_layers import Ids

pytestmark = [pytest.mark.releases, pytest.mark.timeout(1800)]

# At least one release of each kind of DeepSeek code, and both sides of each change.
RELEASES = (
    os.environ.get("WIRING_RELEASES")
    or (
        "0.4.6 0.4.9 0.5.4.post1 0.5.4.post2 0.5.6.post2 0.5.7 0.5.9 0.5.10.post1 0.5.11 0.5.12.post1 0.5.13 "
        "0.5.13.post1 0.5.14 0.5.16 0.5.17 0.5.20 0.5.21 0.5.23"
    )
).split()
LAYERS = (61, 36, 24)


@cache
def release(version: str) -> Release:
    folder().mkdir(parents=True, exist_ok=True)
    return Release(wheel(version))


def id_lists(num_layers: int) -> list[list[int] | None]:
    """30 lists: none and empty, each dialect's default, the embedding, the ends, twice the same, orders, counts."""
    n, half = num_layers, num_layers // 2
    return [
        None,
        [],
        [2, half, n - 3],
        [1, half - 1, n - 4],
        [1, half, n - 3],
        [3, half + 1, n - 2],
        [0, 3, half + 1],
        [-1, 2, half],
        [0, 1, 2],
        [1, 2, 3],
        [2, 2, half],
        [1, 1, 1],
        [n - 3, half, 2],
        [half, 1, n - 3],
        [n - 4, half - 1, 1],
        [half, n - 1, n],
        [n, half, 2],
        [half, n - 2, n - 1],
        [n - 1, n - 2, n - 3],
        [2, half, n + 1],
        [-2, 2, half],
        [-1, half - 1, n - 4],
        [-1, -1, 5],
        [5],
        [-1, half],
        [0, half],
        [1, n],
        [2, half, n - 3, n - 1],
        [0, 2, half, n - 3],
        [1, 2, 4, 8, 16],
    ]


def config(ids: list[int] | None) -> dict:
    return {} if ids is None else {"eagle_config": {KEY: ids}}


def differences(version: str, architecture: str) -> list[str]:
    """Every case in which the table and the release's own code serve something else."""
    found = []
    for num_layers in LAYERS:
        target = {"architectures": [architecture], "num_hidden_layers": num_layers}
        for ids in id_lists(num_layers):
            for cuda_graphs in (True, False):
                if cuda_graphs or default_calls(release(version)):  # else graphs make no difference
                    ran = served(release(version), architecture, num_layers, config(ids), cuda_graphs=cuda_graphs)
                told = served_layout("sglang", version, target, config(ids), cuda_graphs=cuda_graphs)
                alias = any(note.fault == 5 for note in told.notes)
                if ran[:2] != (told.prefill, told.verify) or told.draft_extend != told.verify or ran[2] != alias:
                    found.append(f"L={num_layers} {ids} graphs={cuda_graphs}: ran {ran}, told {told}")
    return found


def test_there_are_30_id_lists_of_every_kind():
    for num_layers in LAYERS:
        lists = id_lists(num_layers)
        assert len({str(ids) for ids in lists}) == len(lists) == 30


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("version", RELEASES)
def test_the_table_serves_what_the_release_captures(version, architecture):
    assert differences(version, architecture) == []


@pytest.mark.parametrize(
    ("version", "architecture", "family", "change"),
    [
        ("0.5.12.post1", "DeepseekV3ForCausalLM", "deepseek_v2", {"ids": Ids.FIRST_IS_ONE}),
        ("0.5.23", "DeepseekV3ForCausalLM", "deepseek_v2", {"ids": Ids.PLUS_ONE}),
        ("0.5.16", "DeepseekV3ForCausalLM", "deepseek_v2", {"counted": True}),
        ("0.5.9", "LlamaForCausalLM", "llama", {"embedding": sglang_layers.Embedding.SERVED}),
        ("0.5.20", "Qwen3ForCausalLM", "qwen3", {"embedding": sglang_layers.Embedding.SERVED}),
        ("0.5.23", "GptOssForCausalLM", "gpt_oss", {"last": False}),
        ("0.5.23", "LlamaForCausalLM", "llama", {"one_later": True}),
        ("0.5.9", "Qwen3MoeForCausalLM", "qwen3_moe", {"flags": False}),
    ],
)
def test_a_wrong_row_is_noticed(version, architecture, family, change, monkeypatch):
    rows = tuple(replace(row, **change) for row in sglang_layers.FAMILIES[family])
    monkeypatch.setattr(sglang_layers, "FAMILIES", {**sglang_layers.FAMILIES, family: rows})
    assert differences(version, architecture) != []


@pytest.mark.parametrize("row", ["IDS_READ_SINCE", "GRAPHS_ON_DEFAULTS_UNTIL", "FC_OF_THREE_UNTIL"])
def test_a_wrong_turning_point_is_noticed(row, monkeypatch):
    monkeypatch.setattr(sglang_layers, row, "0.5.5")
    assert [difference for version in ("0.4.9", "0.5.9") for difference in differences(version, "LlamaForCausalLM")]


@pytest.mark.parametrize("version", RELEASES)
def test_only_the_nested_key_is_read(version):
    ids = [1, 29, 57]
    for written in (
        {},
        {KEY: ids},
        config(ids),
        {KEY: [9, 9, 9], **config(ids)},
        {"eagle_config": None},
        {"eagle_config": {}},
        {"eagle_config": ids},
        {"eagle_config": {KEY: None}},
        {"eagle_config": "on"},
    ):
        read = read_ids(release(version), written)
        ours = requested_ids(written) if Version(version) >= Version(sglang_layers.IDS_READ_SINCE) else None
        assert (read and tuple(read)) == ours, written


@pytest.mark.parametrize("version", RELEASES)
def test_graphs_are_captured_on_the_default_layers_up_to_one_release(version):
    early = Version(version) <= Version(sglang_layers.GRAPHS_ON_DEFAULTS_UNTIL)
    assert bool(default_calls(release(version))) == early
    if early and Version(version) >= Version(sglang_layers.IDS_READ_SINCE):
        assert ids_after_graphs(release(version)) is True


@pytest.mark.parametrize("version", RELEASES)
def test_fc_is_built_for_as_many_states_as_the_table_says(version):
    three = Version(version) <= Version(sglang_layers.FC_OF_THREE_UNTIL)
    for written, states in ((config([1, 2, 3, 4]), 4), ({"num_aux_hidden_states": 5, **config([1, 2])}, 5), ({}, 3)):
        assert fc_states(release(version), written) == (3 if three else states)
