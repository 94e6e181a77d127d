"""A slider's move draws the figure again with its value."""

import plotly.graph_objects as go

from wiring.show import widgets


def test_each_move_draws_with_the_slider_value():
    drawn = []

    def draw(acceptance):
        drawn.append(acceptance)
        return go.Figure()

    slider = widgets.acceptance_slider(0.756)
    box = widgets.over(draw, acceptance=slider)
    slider.value = 0.3
    slider.value = 0.9
    assert drawn == [0.3, 0.9]
    assert box.children[0] is slider
