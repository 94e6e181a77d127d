"""Captured states survive their file, and the bit-for-bit count finds exactly the rows that are the embedding."""

import pytest
import torch

from wiring.boundary import Phase
from wiring.case import captured as cap
from wiring.errors import WiringError

HIDDEN, SLOTS, VOCAB = 4, 3, 10


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


def test_a_missing_or_damaged_capture_says_what_to_do(tmp_path):
    with pytest.raises(WiringError, match='no captured states.*measure = "live"'):
        cap.load(tmp_path / "absent.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not tensors")
    with pytest.raises(WiringError, match="bad.safetensors: no captured states"):
        cap.load(tmp_path / "bad.safetensors")


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
