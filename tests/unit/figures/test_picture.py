"""The picture for README.md: drawn from artefacts, the same bytes each time."""

from wiring.figures.picture import draw
from wiring.workbook import artefacts as a


def test_the_picture_is_a_png_and_reproducible(tmp_path, five):
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in paths:
        draw(five["03_layout"], five["04_patch"], five["05_rebenchmark"], path)
    one, two = (path.read_bytes() for path in paths)
    assert one[:8] == b"\x89PNG\r\n\x1a\n" and one == two
    served = a.PhaseLayout(prefill=(0, 3, 31), verify=(0, 3, 31))
    draw(five["03_layout"].model_copy(update={"captured": served}), five["04_patch"], five["05_rebenchmark"], paths[1])
    assert paths[1].read_bytes() != one
