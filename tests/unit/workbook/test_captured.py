"""Captured states survive their file, and the bit-for-bit count finds exactly the rows that are the embedding."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.workbook import captured_states as cap

HIDDEN, SLOTS, VOCAB = 4, 3, 10
RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "cpu-tiny"


def request(seed=0, prompt=5, output=3):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (prompt + output,), generator=generator)
    positions = {Phase.PREFILL: torch.arange(prompt), Phase.VERIFY: torch.arange(prompt, prompt + output - 1)}
    states = {p: torch.randn(len(where), SLOTS * HIDDEN, generator=generator) for p, where in positions.items()}
    return cap.CapturedRequest(tokens=tokens, prompt_len=prompt, positions=positions, states=states)


def test_a_capture_survives_its_file(tmp_path):
    requests = (request(0), request(1, prompt=2))
    cap.save(tmp_path / "x.safetensors", requests)
    again = cap.load(tmp_path / "x.safetensors")
    assert [r.output_ids for r in again] == [r.output_ids for r in requests]
    for a, b in zip(again, requests, strict=True):
        for phase in cap.PHASES:
            assert torch.equal(a.states[phase], b.states[phase]) and torch.equal(a.positions[phase], b.positions[phase])
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_missing_or_damaged_capture_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"not tensors")
    for path in (tmp_path / "absent.safetensors", tmp_path / "bad.safetensors"):
        with pytest.raises(WiringError) as error:
            cap.load(path)
        assert (error.value.code, error.value.where) == ("captured-states-unreadable", str(path))
        assert 'measure = "live"' in error.value.remedy


def test_states_of_all_requests_are_stacked_slot_by_slot():
    requests = (request(0), request(1))
    stacked = cap.phase_states(requests, Phase.PREFILL, HIDDEN)
    assert stacked.shape == (10, SLOTS, HIDDEN)
    assert torch.equal(stacked[5, 1], requests[1].states[Phase.PREFILL][0, HIDDEN : 2 * HIDDEN])


def test_embedding_rows_are_counted_bit_for_bit():
    one = request()
    embedding = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(9))
    assert cap.embedding_rows_equal([one], embedding) == (7, 0)
    for phase in cap.PHASES:
        one.states[phase][:, :HIDDEN] = embedding[one.tokens[one.positions[phase]]]
    assert cap.embedding_rows_equal([one], embedding) == (7, 7)
    one.states[Phase.VERIFY][0, 0] = torch.nextafter(one.states[Phase.VERIFY][0, 0], torch.tensor(9.0))
    assert cap.embedding_rows_equal([one], embedding) == (7, 6)


def test_draft_extend_is_kept_where_it_was_captured_and_older_files_do_without(tmp_path):
    old, new = request(0), request(1)
    positions, states = new.positions[Phase.VERIFY].clone(), new.states[Phase.VERIFY] + 1
    third = Phase.DRAFT_EXTEND
    new = replace(new, positions=new.positions | {third: positions}, states=new.states | {third: states})
    for name, one, expected in (("old", old, cap.PHASES), ("new", new, tuple(Phase))):
        cap.save(tmp_path / name, (one,))
        (again,) = cap.load(tmp_path / name)
        assert cap.phases([again]) == expected and set(again.states) == set(expected)
        assert all(torch.equal(again.states[phase], one.states[phase]) for phase in expected)
    assert cap.phases([old, new]) == cap.PHASES


def test_recorded_files_are_read():
    for name in ("03_as_served", "04_config", "04_plugin", "04_source"):
        assert set(cap.phases(cap.load(RECORDED / f"{name}.safetensors"))) == set(Phase)


def test_every_captured_phase_is_matched_on_its_own():
    """Each phase holds other boundaries; the layout names them phase by phase."""
    held = {Phase.PREFILL: (0, 2, 3), Phase.VERIFY: (1, 2, 3), Phase.DRAFT_EXTEND: (3, 2, 1)}
    boundaries = torch.randn(5, 1, 8, HIDDEN, generator=torch.Generator().manual_seed(3))  # [L+1, 1, N, H]
    positions = {phase: torch.arange(6) for phase in held}
    states = {p: torch.cat([boundaries[b, 0, :6] for b in layout], dim=-1) for p, layout in held.items()}
    one = cap.CapturedRequest(tokens=torch.arange(8), prompt_len=5, positions=positions, states=states)
    reference = SimpleNamespace(hidden_size=HIDDEN, forward=lambda tokens: SimpleNamespace(boundaries=boundaries))
    assert cap.phase_layout(cap.match_phases([one], reference)).model_dump() == {p.value: held[p] for p in held}
