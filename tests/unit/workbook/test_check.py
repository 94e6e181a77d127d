"""A claim holds exactly where its bound says so, and NaN never does."""

import pytest

from wiring.workbook import check


@pytest.mark.parametrize(
    "claim, holds",
    [
        (check.equals("c", expected=(0, 3, 31), actual=(0, 3, 31)), True),
        (check.equals("c", expected=(0, 3, 31), actual=(3, 31, 59)), False),
        (check.at_most("c", bound=0.97, actual=0.97), True),
        (check.at_most("c", bound=0.97, actual=0.971), False),
        (check.at_least("c", bound=1.8, actual=2.2), True),
        (check.at_least("c", bound=1.8, actual=1.7), False),
        (check.between("c", low=0.70, high=0.82, actual=0.82), True),
        (check.between("c", low=0.70, high=0.82, actual=0.69), False),
        (check.close("c", expected=2.0, actual=2.39, tolerance=0.2), True),
        (check.close("c", expected=2.0, actual=2.41, tolerance=0.2), False),
        (check.at_most("c", bound=1, actual=float("nan")), False),
        (check.close("c", expected=1, actual=float("nan"), tolerance=1), False),
    ],
)
def test_bounds(claim, holds):
    assert claim.holds is holds


def test_a_claim_shows_both_sides_and_is_safe_in_html():
    claim = check.equals("slots <b>", expected=(0, 3, 31), actual=(3, 31, 59))
    assert repr(claim) == "FAILS: slots <b> | expected (0, 3, 31) | actual (3, 31, 59)"
    assert "slots &lt;b&gt;" in claim._repr_html_()
