"""The server panel with SGLang's own server: started by it, attached to by another panel, read, sent to, stopped."""

import psutil
import pytest
from panel_parts import by_description

from wiring.figures import ServerSession, server_panel
from wiring.workbook.case import open_case

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def panels(tmp_path):
    """A panel to start a server with, a panel to attach with, and their benches."""
    cases = [open_case(profile="cpu-tiny", run=str(tmp_path / str(n)), measure="recorded") for n in (0, 1)]
    benches = [ServerSession(case) for case in cases]
    yield [(bench, server_panel(bench)) for bench in benches]
    for bench in reversed(benches):
        bench.stop()


def test_a_real_server_is_started_read_by_two_panels_and_ended_by_the_one_that_started_it(panels):
    (ours, panel), (guest, other) = panels
    found, looking = by_description(panel), by_description(other)
    found["Start"].click()
    error, state = panel.children[4], panel.children[5]
    assert error.value == "" and "started at http://127.0.0.1:" in state.value, (error.value, state.value)
    process = psutil.Process(ours._server.pid)
    assert process.is_running()
    rows = ours.arguments().set_index("name")
    assert rows.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]

    looking["URL"].value = ours._server.url
    looking["Attach"].click()
    assert "read only" in guest.state and not guest.ours
    seen = guest.arguments().set_index("name")  # of a stranger's server: from its own launch command
    assert seen.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]
    looking["Send a prompt"].click()
    assert "only read" in other.children[4].value and guest.readings == ()

    for _ in range(2):
        found["Send a prompt"].click()
    assert error.value == ""
    sent = ours.readings
    assert [reading.what.split(" of ")[0] for reading in sent] == ["prompt 1", "prompt 2"]
    # The case: fed three wrong layers, hardly a draft is accepted. Bonus token included, so 1 is the least.
    assert all(1 <= reading.accept_length <= 1.5 and reading.tok_per_s > 0 for reading in sent)
    looking["Read"].click()
    told = guest.readings[-1]
    assert told.tok_per_s and told.tok_per_s > 0 and 1 <= told.accept_length <= 1.5, told

    looking["Stop"].click()  # Detach: the server goes on
    assert guest.state == "no server" and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    found["Send a prompt"].click()
    assert error.value == "" and len(ours.readings) == 3
    found["Stop"].click()
    assert ours.state == "no server"
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
