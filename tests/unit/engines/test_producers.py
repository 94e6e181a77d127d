"""The layout of a draft's ids by the rules of its trainer, by version or date."""

import pytest

from wiring.engines.trainers import PRODUCERS, trained_layout
from wiring.errors import WiringError


@pytest.mark.parametrize(
    ("producer", "when", "ids", "layout"),
    [
        ("specforge", None, (1, 29, 57), (2, 30, 58)),
        ("specforge", None, None, (2, 30, 58)),
        ("specforge", "2025-08-31", None, (2, 30, 58)),
        ("specforge", "2025-09-01", None, (2, 31, 58)),  # the middle layer of its online default was one too late
        ("specforge", "2025-10-19", None, (2, 31, 58)),
        ("specforge", "2025-10-20", None, (2, 30, 58)),
        ("specforge", "2025-09-15", (1, 29, 57), (2, 30, 58)),  # ids that were named were meant
        ("speculators", "0.4.0", None, (3, 31, 59)),
        ("speculators", "0.4.0.1", (2, 30, 58), (3, 31, 59)),
        ("speculators", "0.5.0", (2, 30, 58), (2, 30, 58)),
        ("speculators", None, None, (2, 30, 58)),
        ("safeailab", None, (2, 30, 58), (2, 30, 58)),
        ("modelopt", None, (1, 29, 57), (2, 30, 58)),
        ("modelopt/vllm-speculators", None, None, (3, 31, 59)),
        ("modelopt/vllm", None, (1, 29, 57), (1, 29, 57)),
        ("torchspec", None, (1, 29, 57), (2, 30, 58)),
    ],
)
def test_trained_layouts(producer, when, ids, layout):
    assert trained_layout(producer, when, ids, 61)[0] == layout


def test_every_numbering_starts_with_the_producer_and_goes_forward():
    for rules in PRODUCERS.values():
        assert rules[0].since == "0"
        assert all(shift in (0, 1) for rule in rules for shift in rule.shift)


@pytest.mark.parametrize(
    ("producer", "when", "ids", "code"),
    [
        ("nobody", None, (1,), "producer-unknown"),
        ("specforge", "0.2.0", (1,), "date-invalid"),
        ("speculators", "yesterday", (1,), "version-invalid"),
        ("specforge", None, None, "target-too-shallow"),
    ],
)
def test_unknown_producers_versions_and_defaults_are_refused(producer, when, ids, code):
    with pytest.raises(WiringError) as caught:
        trained_layout(producer, when, ids, 4)
    assert (caught.value.code, caught.value.where) == (code, producer)
