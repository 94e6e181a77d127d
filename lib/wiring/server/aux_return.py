"""The target's states from a server without a draft: SGLang's own return of the auxiliary hidden states.

A second source beside the capture, for servers in which no plugin can be loaded or no draft can be served. The server
is started with `aux_flags`, the request asks for `return_hidden_states`, and `records_of` turns the answer into the
records that the capture writes. The server takes the layer ids through the same function of the target's model
(`set_eagle3_layers_to_capture`) as for a draft, so the ids of a draft's config mean the same boundaries here.

Read from SGLang 0.5.23: `srt/arg_groups/validation_hook.py` (`handle_aux_hidden_state_capture`),
`srt/managers/scheduler_components/batch_result_processor.py`. What follows from it:

- the states come as JSON numbers, some 20 bytes each: at width 7168 and three slots 430 kB per token. Ask for short
  texts;
- only the last chunk of a prompt is returned, and nothing of what was found in the prefix cache: rows are counted from
  the prompt's end. For all rows start the server with a chunk size above the prompt and with --disable-radix-cache;
- decoding feeds one token at a time. Its rows have phase VERIFY, as the states that the target puts out in decoding,
  but no draft was verified: what goes wrong in a verify forward alone does not show here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wiring.capture.records import CaptureRecord
from wiring.engines.sglang import requested_ids
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.server.client import ServerClient

if TYPE_CHECKING:
    from torch import Tensor

DECODED = "decoded one token at a time by a server without a draft"


def aux_flags(layer_ids: Sequence[int] | None = None) -> tuple[str, ...]:
    """The arguments that make a server without a draft return the states of these layers; None: SGLang's default ones.

    The ids are passed as they stand in a draft's config (`eagle_config.eagle_aux_hidden_state_layer_ids`).
    Raises WiringError for ids that SGLang refuses here although it takes them from a draft: negative or repeated ones.
    """
    flags = ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3")
    if layer_ids is None:
        return flags
    ids = tuple(int(i) for i in layer_ids)
    if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
        raise WiringError(
            "SGLang does not return the states of these layers",
            where="--return-aux-hidden-state-layer-ids",
            expected="ids from 0, none of them twice",
            found=str(list(ids)),
            remedy="Capture what a served draft is fed instead (wiring.capture.records)",
        )
    return (*flags, "--return-aux-hidden-state-layer-ids", *map(str, ids))


def aux_flags_of_draft(draft_config: Mapping[str, Any]) -> tuple[str, ...]:
    """`aux_flags` with the ids that SGLang would read from this draft's parsed config.json, or with none."""
    return aux_flags(requested_ids(draft_config))


def generate_with_states(
    client: ServerClient, prompt: Sequence[int], max_new_tokens: int, *, request: str = "aux"
) -> tuple[tuple[int, ...], tuple[CaptureRecord, ...]]:
    """Generate greedily; return the new token ids and the records of the request.

    Raises WiringError when the server refuses, or returns no states: it runs without `aux_flags`.
    """
    reply = client.generate(prompt, max_new_tokens, rid=request, return_hidden_states=True)
    states = reply.meta.get("hidden_states")
    if not states:
        raise WiringError(
            "the server returned no hidden states",
            where=client.url,
            expected="meta_info.hidden_states",
            found=", ".join(sorted(reply.meta))[:200],
            remedy="Start it with --enable-return-aux-hidden-states",
        )
    return reply.output_ids, records_of(prompt, reply.output_ids, states, request)


def records_of(
    prompt: Sequence[int], output: Sequence[int], hidden_states: Sequence[Any], request: str = "aux"
) -> tuple[CaptureRecord, ...]:
    """The records of one request from SGLang's `meta_info["hidden_states"]`.

    `hidden_states` is a list: first the rows of the prompt [m][n*H], the last m of its positions, then one row [n*H]
    for each token that was decoded from. There are two records, PREFILL and VERIFY with `note` DECODED, the second
    only where more than one token was generated. States are float32: the JSON numbers are exact.

    Raises WiringError when the list is of another shape: more rows than tokens, or rows of several widths.
    """
    import torch

    text = [int(token) for token in (*prompt, *output)]
    try:
        prefill = torch.tensor(hidden_states[0], dtype=torch.float32)
        decoded = torch.tensor(list(hidden_states[1:]), dtype=torch.float32).reshape(-1, prefill.shape[-1])
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise _wrong_shape(request, str(error)) from None
    rows = prefill.shape[0] if prefill.dim() == 2 else 0
    if not 0 < rows <= len(prompt) or not output or len(decoded) != len(output) - 1:
        found = f"{list(prefill.shape)} for {len(prompt)} prompt tokens, {len(decoded)} rows for {len(output)} new ones"
        raise _wrong_shape(request, found)

    def record(phase: Phase, first: int, states: Tensor, note: str) -> CaptureRecord:
        after = torch.tensor(text[first + 1 : first + 1 + len(states)], dtype=torch.int64)
        positions = torch.arange(first, first + len(states))
        return CaptureRecord(phase, after, positions, states, request, int(phase is Phase.VERIFY), note=note)

    made = [record(Phase.PREFILL, len(prompt) - rows, prefill, "")]
    return (*made, record(Phase.VERIFY, len(prompt), decoded, DECODED)) if len(decoded) else tuple(made)


def _wrong_shape(request: str, found: str) -> WiringError:
    return WiringError(
        "not the hidden states of this text",
        where=f"request {request}, meta_info.hidden_states",
        found=found,
        expected="the prompt's rows [m][n*H], then one row [n*H] for each new token but the last",
        remedy="Give prompt and output of this very request; SGLang 0.5.23 returns them so",
    )
