"""Id conventions, default layouts, and which layouts are accepted."""

import pytest

from wiring.errors import WiringError
from wiring.layers import (
    IdConvention,
    classify_layout,
    default_layout,
    describe,
    is_default_layout,
    parse_layout,
    to_boundaries,
)


def test_output_ids_name_the_layer_whose_output_is_captured():
    # The case: the -1 convention asks for the embedding and the outputs of layers 2 and 30.
    assert to_boundaries([-1, 2, 30], IdConvention.OUTPUT_ID) == (0, 3, 31)
    assert to_boundaries([0, 3, 31], IdConvention.INPUT_ID) == (0, 3, 31)


def test_default_layout_of_the_61_layer_target():
    assert default_layout(61) == (2, 30, 58)


def test_default_layout_refuses_a_shallow_target():
    with pytest.raises(WiringError) as caught:
        default_layout(4)
    assert (caught.value.code, caught.value.found) == ("target-too-shallow", "4 layers")


@pytest.mark.parametrize(
    ("trained", "served", "layers", "fault"),
    [
        ((0, 3, 31), (0, 3, 31), 61, None),
        ((0, 3, 31), (3, 31, 59), 61, 1),
        ((0, 3, 31), (2, 30, 58), 61, 1),
        ((0, 3, 31), (3, 4, 58), 61, 1),
        ((3, 31, 59), (4, 30, 59), 61, 1),  # in both directions
        ((1, 21, 40), (2, 21, 40), 43, 1),  # the default layers: ids ignored
        ((1, 21, 40), (2, 21, 40), 0, 2),
        ((3, 31, 59), (2, 30, 58), 61, 2),  # the default layers, but every slot is off by one
        ((0, 3, 31), (0, 4, 32), 61, 2),
        ((0, 3, 31), (0, 2, 30), 61, 2),
        ((0, 3, 31), (1, 4, 32), 61, 2),
        ((3, 12, 20), (4, 13, 20), 20, 2),
        ((0, 3, 31), (3, 0, 31), 61, 3),
        ((0, 3, 31), (3, 31), 61, 3),
        ((0, 3), (0, 3, 31), 61, 3),
    ],
)
def test_layout_differences_are_classified_by_what_each_slot_holds(trained, served, layers, fault):
    assert classify_layout(trained, served, layers) == fault


@pytest.mark.parametrize(("layers", "default"), [(6, False), (7, True)])
def test_the_default_layout_needs_seven_layers(layers, default):
    assert is_default_layout((2, layers // 2, layers - 3), layers) is default


@pytest.mark.parametrize("text", ["0,3,31", "(0, 3, 31)", "[0,3,31]", " 0 , 3, 31 "])
def test_layouts_are_read_with_or_without_brackets(text):
    assert parse_layout(text, 61) == (0, 3, 31)


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        ("a,b", "layout-not-numbers", ""),
        ("", "layout-not-numbers", ""),
        ("0,99", "boundary-not-in-target", "99"),
        ("-1,3", "boundary-not-in-target", "-1"),
    ],
)
def test_invalid_layouts_are_refused(text, code, found):
    with pytest.raises(WiringError) as caught:
        parse_layout(text, 61)
    assert (caught.value.code, caught.value.found) == (code, found)


def test_boundaries_in_words():
    assert [describe(b, 61) for b in (0, 3, 61)] == ["embedding", "after 3 layers", "after the last layer"]


def test_an_error_names_where_what_and_the_remedy():
    error = WiringError("wrong width", where="fc.weight", expected="192", found="256", remedy="Check the layout")
    assert str(error) == "fc.weight: wrong width (expected 192, found 256). Check the layout."
