"""The server panel with a real server: one panel starts it, another attaches to it."""

import psutil
import pytest
from panel_parts import by_description

from wiring.figures import ServerSession, server_panel
from wiring.workbook.case import open_case

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def panels(tmp_path):
    """A panel that starts a server and a panel that attaches to it, each with its session."""
    cases = [open_case(profile="cpu-tiny", run=str(tmp_path / str(n)), measure="recorded") for n in (0, 1)]
    benches = [ServerSession(case) for case in cases]
    yield [(bench, server_panel(bench)) for bench in benches]
    for bench in reversed(benches):
        bench.stop()


def test_one_panel_starts_and_stops_a_server_that_another_reads(panels):
    (owner, panel), (guest, other) = panels
    found, looking = by_description(panel), by_description(other)
    found["Start"].click()
    error, state = panel.children[4], panel.children[5]
    assert error.value == "" and "started at http://127.0.0.1:" in state.value, (error.value, state.value)
    process = psutil.Process(owner._server.pid)
    assert process.is_running()
    rows = owner.arguments().set_index("name")
    assert rows.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]

    looking["URL"].value = owner._server.url
    looking["Attach"].click()
    assert "read only" in guest.state and not guest.started_here
    seen = guest.arguments().set_index("name")  # of an attached server: from its launch command
    assert seen.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]
    looking["Send a prompt"].click()
    assert "read-only" in other.children[4].value and guest.readings == ()

    for _ in range(2):
        found["Send a prompt"].click()
    assert error.value == ""
    sent = owner.readings
    assert [reading.what.split(" of ")[0] for reading in sent] == ["prompt 1", "prompt 2"]
    # The draft is fed three wrong layers, so few drafts are accepted. The minimum is 1, the bonus token.
    assert all(1 <= reading.accept_length <= 1.5 and reading.tok_per_s > 0 for reading in sent)
    looking["Read"].click()
    reading = guest.readings[-1]
    assert reading.tok_per_s and reading.tok_per_s > 0 and 1 <= reading.accept_length <= 1.5, reading

    looking["Stop"].click()  # Detach: the server still runs
    assert guest.state == "no server" and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    found["Send a prompt"].click()
    assert error.value == "" and len(owner.readings) == 3
    found["Stop"].click()
    assert owner.state == "no server"
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
