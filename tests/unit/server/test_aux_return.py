"""Records from SGLang's own return of the states: arguments, shapes and refusals; no server."""

import json

import httpx
import pytest
import torch

from wiring.capture.records import final_states
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.server.aux_return import DECODED, aux_flags, aux_flags_of_draft, generate_with_states, records_of
from wiring.server.client import ServerClient

PROMPT, OUTPUT = [11, 12, 13, 14], [15, 16, 17]


def row(t):
    return [t + 0.1, -float(t)]


def hidden(rows=4, decoded=2):
    """What SGLang returns where the last `rows` prompt tokens were prefilled in the last chunk."""
    return [[row(t) for t in range(4 - rows, 4)], *(row(4 + i) for i in range(decoded))]


def test_rows_stand_beside_the_token_after_them():
    prefill, decoded = records_of(PROMPT, OUTPUT, hidden(), "mine")
    assert (prefill.phase, decoded.phase) == (Phase.PREFILL, Phase.VERIFY)
    assert prefill.positions.tolist() == [0, 1, 2, 3] and prefill.token_ids.tolist() == [12, 13, 14, 15]
    assert decoded.positions.tolist() == [4, 5] and decoded.token_ids.tolist() == [16, 17]
    assert torch.equal(prefill.states, torch.tensor([row(t) for t in range(4)]))
    assert torch.equal(decoded.states, torch.tensor([row(4), row(5)]))
    assert (prefill.note, decoded.note) == ("", DECODED) and prefill.index < decoded.index
    found = final_states([prefill, decoded], PROMPT + OUTPUT)
    assert {phase: positions.tolist() for phase, (positions, _) in found.items()} == {
        Phase.PREFILL: [0, 1, 2, 3],
        Phase.VERIFY: [4, 5],
    }


def test_after_a_cached_or_chunked_beginning_the_rows_end_with_the_prompt():
    prefill, _ = records_of(PROMPT, OUTPUT, hidden(rows=1))
    assert prefill.positions.tolist() == [3] and prefill.token_ids.tolist() == [15]
    assert torch.equal(prefill.states, torch.tensor([row(3)]))


def test_one_new_token_has_no_decoded_row():
    (only,) = records_of(PROMPT, OUTPUT[:1], hidden(decoded=0))
    assert only.phase is Phase.PREFILL


@pytest.mark.parametrize(
    "states, output",
    [
        (hidden(decoded=1), OUTPUT),  # fewer rows than tokens
        (hidden(decoded=3), OUTPUT),
        ([[row(t) for t in range(5)], row(4), row(5)], OUTPUT),  # more rows than the prompt has tokens
        ([row(0), row(1), row(2)], OUTPUT),  # the prompt's rows are not grouped
        ([[row(0), [1.0]], row(4), row(5)], OUTPUT),
        ([[row(0)], row(4), [1.0, 2.0, 3.0]], OUTPUT),
        ([[]], OUTPUT[:1]),
        ([], OUTPUT),
        (["text", row(4), row(5)], OUTPUT),
        (hidden(decoded=0), []),
    ],
)
def test_another_shape_is_refused(states, output):
    with pytest.raises(WiringError, match="not the hidden states of this text"):
        records_of(PROMPT, output, states)


def test_flags():
    assert aux_flags() == ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3")
    assert aux_flags([3, 31, 59])[3:] == ("--return-aux-hidden-state-layer-ids", "3", "31", "59")
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [59, 3, 31]}}
    assert aux_flags_of_draft(nested)[4:] == ("59", "3", "31")  # as they stand
    at_the_top = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    assert aux_flags_of_draft(at_the_top) == aux_flags()  # SGLang reads no such key
    for refused in ([-1, 3, 31], [3, 3, 31], []):
        with pytest.raises(WiringError, match="does not return the states of these layers"):
            aux_flags(refused)


def test_the_request_asks_for_states_and_misses_them(monkeypatch):
    asked = []

    def answer(request):
        asked.append(json.loads(request.content))
        meta = {"id": "x"} | ({"hidden_states": hidden()} if len(asked) == 1 else {})
        return httpx.Response(200, json={"output_ids": OUTPUT, "meta_info": meta, "text": ""})

    client = ServerClient("http://127.0.0.1:9")
    monkeypatch.setattr(client, "_http", httpx.Client(transport=httpx.MockTransport(answer), base_url=client.url))
    output, records = generate_with_states(client, PROMPT, 3, request="mine")
    assert output == tuple(OUTPUT) and [record.request for record in records] == ["mine", "mine"]
    assert asked[0]["return_hidden_states"] is True and asked[0]["rid"] == "mine"
    with pytest.raises(WiringError, match="returned no hidden states.*--enable-return-aux-hidden-states"):
        generate_with_states(client, PROMPT, 3)
    client.generate(PROMPT, 3)
    assert "return_hidden_states" not in asked[2]
