"""Settings for nbval: which outputs of a notebook are not compared, whatever the cell."""


def pytest_collectstart(collector):
    """Leave figures and HTML to the tests of what draws them, and stderr (progress, warnings) to nobody."""
    if type(collector).__name__ == "IPyNbFile":
        collector.skip_compare += ("application/vnd.plotly.v1+json", "text/html", "stderr")
