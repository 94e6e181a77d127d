"""The id convention and the default layers of each trainer, by version or date.

Read from SpecForge (commits 94d67101 of 2025-09-01, bdbea66b of 2025-10-20 and a6b6b023), speculators
(`data_generation/custom_worker.py` of 0.3 and 0.4, `models/utils.py` at c05b95b3), SafeAILab/EAGLE at cb7e0841, Model
Optimizer (`hf_eagle.py`, `examples/speculative_decoding/collect_hidden_states`) and TorchSpec (`utils/misc.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from wiring.engines.versions import in_force, parse_version
from wiring.errors import WiringError
from wiring.layers import IdConvention, Layout, to_boundaries

_IN, _OUT = IdConvention.INPUT_ID, IdConvention.OUTPUT_ID
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


@dataclass(frozen=True)
class Numbering:
    """The rule of a producer from version or date `since` on (dates with dots; "0": the first).

    `shift` is added to the common default boundaries (2, L//2, L-3).
    """

    since: str
    convention: IdConvention
    title: str
    shift: tuple[int, int, int] = (0, 0, 0)


PRODUCERS: Mapping[str, tuple[Numbering, ...]] = {
    "specforge": (
        Numbering("0", _OUT, "SpecForge"),
        Numbering("2025.9.1", _OUT, "SpecForge's online training of 2025-09-01 to 2025-10-19", (0, 1, 0)),
        Numbering("2025.10.20", _OUT, "SpecForge"),
    ),
    "speculators": (
        Numbering("0", _OUT, "speculators before 0.5", (1, 1, 1)),
        Numbering("0.5.0", _IN, "speculators from 0.5 on"),
    ),
    "safeailab": (Numbering("0", _IN, "SafeAILab"),),
    "modelopt": (Numbering("0", _OUT, "Model Optimizer"),),
    "modelopt/hf": (Numbering("0", _OUT, "Model Optimizer, states collected with transformers"),),
    "modelopt/trtllm": (Numbering("0", _OUT, "Model Optimizer, states collected with TensorRT-LLM"),),
    "modelopt/vllm-speculators": (
        Numbering("0", _OUT, "Model Optimizer, states collected with speculators' generator of 0.3", (1, 1, 1)),
    ),
    "modelopt/vllm": (Numbering("0", _IN, "Model Optimizer, states collected with vLLM's own extraction"),),
    "torchspec": (Numbering("0", _OUT, "TorchSpec"),),
}
_BY_DATE = frozenset({"specforge"})


def numbering(producer: str, version_or_date: str | None = None) -> Numbering:
    """Return the rule of this producer, the newest one without a version or date (SpecForge: 2025-09-30).

    Raises WiringError for an unknown producer, and for an invalid version or date.
    """
    rules = PRODUCERS.get(producer)
    if rules is None:
        raise WiringError(
            "no layer numbering is known for this producer",
            code="producer-unknown",
            where=producer,
            expected=", ".join(PRODUCERS),
            found=producer,
            remedy="Name the trained layout as boundaries",
        )
    if not version_or_date:
        return rules[-1]
    rule = in_force(rules, _when(producer, version_or_date))
    return rules[0] if rule is None else rule


def trained_layout(
    producer: str, version_or_date: str | None, ids: Sequence[int] | None, num_layers: int
) -> tuple[Layout, str]:
    """Return the boundaries that a draft's ids mean to its producer, slot by slot, and an explanation.

    `ids` None is the producer's default on a target of `num_layers` layers; whether named layers exist is not checked.
    Raises WiringError as `numbering` does, and if the default has no three different boundaries.
    """
    rule = numbering(producer, version_or_date)
    if ids is None:
        common = (2, num_layers // 2, num_layers - 3)
        layout = tuple(b + more for b, more in zip(common, rule.shift, strict=True))
        if not layout[0] < layout[1] < layout[2]:
            raise WiringError(
                "the target is too shallow for the default layers",
                code="target-too-shallow",
                where=producer,
                expected="three different boundaries",
                found=f"{layout} on {num_layers} layers",
                remedy="Name the trained layout as boundaries",
            )
        return layout, f"the default layers of {rule.title}"
    return to_boundaries(ids, rule.convention), f"{list(ids)}, {rule.convention}s as {rule.title} writes them"


def _when(producer: str, text: str) -> Version:
    date = _DATE.fullmatch(text.strip())
    if producer in _BY_DATE and date is None:
        raise WiringError(
            "not a date",
            code="date-invalid",
            where=producer,
            expected="the day of the training code, such as 2025-09-30",
            found=text,
            remedy="Give the date of the commit that trained the draft",
        )
    return parse_version(".".join(date.groups()) if date else text, where=producer)
