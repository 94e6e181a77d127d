"""Each widget is moved in JupyterLab, and what it shows changes; the time that takes is printed as a median."""

from __future__ import annotations

from statistics import median

import pytest
from in_lab import TEXT, button, row, slide
from small_server import metrics

THROUGHPUT, LAYOUT, PATCH, AGAIN = (
    "01_throughput_symptom",
    "03_layout_diff",
    "04_embedding_capture_patch",
    "05_rebenchmark",
)

# The states of the steps of the patch panel.
STATES = """
root => [...root.querySelectorAll("tr")].filter(line => /^(apply|prove|undo)$/.test(line.cells[0].innerText.trim()))
  .map(line => line.cells[1].innerText.trim()).join(", ")
"""


@pytest.fixture(autouse=True)
def quiet_console(books):
    """No test leaves an error on a console."""
    yield
    assert [error for book in books.opened.values() for error in book.errors] == []


def report_times(what: str, spent: list[float]) -> None:
    print(f"\n{what}: {median(spent):.0f} ms (median of {len(spent)}, {min(spent):.0f} to {max(spent):.0f})")


def test_layout_explorer_draws_each_chosen_layout(books, picture):
    book = books(LAYOUT)
    box = book.cell("slot 0", "slot 1", "slot 2")
    legend = box.locator(".legendtext", has_text="chosen")
    assert legend.text_content() == "chosen (0, 3, 31)"
    spent = [book.change(box, lambda slot=slot: slide(box, f"slot {slot}")) for slot in (0, 1, 2, 0, 1, 0)]
    assert legend.text_content() == "chosen (3, 5, 32)"
    picture(box)
    report_times("layout explorer, a slider's move to its figure", spent)
    spent = [book.change(box, button(box, name).click) for name in ("trained", "served", "trained", "served")]
    assert legend.text_content() == "chosen (3, 31, 59)"
    report_times("layout explorer, a marked layout's button to its figure", spent)
    assert "Needs no server" in box.inner_text()


def test_speculation_calculator_draws_other_curves(books, picture):
    book = books(AGAIN)
    box = book.cell("draft steps", "draft 1 accepted, if reached")
    chosen = row(box, "load").locator("select")
    chosen.wait_for()
    names = [text.replace("\xa0", " ") for text in chosen.locator("option").all_text_contents()]
    assert any("case study" in name for name in names) and len(names) > 3
    words = box.inner_text()
    spent = []
    for label, key in (
        ("draft 1 accepted, if reached", "PageDown"),
        ("draft steps", "ArrowLeft"),
        ("draft step, in plain steps", "PageUp"),
        ("verify, in plain steps", "PageUp"),
        ("each further token verified", "PageUp"),
    ):
        spent += [book.change(box, lambda label=label, key=key: slide(box, label, key)) for _ in range(2)]
    report_times("speculation calculator, a slider's move to its curves", spent)
    assert box.inner_text() != words and "set by hand" in box.inner_text()
    picture(box)
    report_times(
        "speculation calculator, measured values loaded",
        [book.change(box, lambda at=at: chosen.select_option(index=at)) for at in reversed(range(len(names)))],
    )
    assert "set by hand" not in box.inner_text() and "Needs no server" in box.inner_text()


def test_evidence_board_weighs_again(books, picture):
    book = books(AGAIN)
    box = book.cell("evidence", "fault", "L: lint")
    ticks = box.locator("label", has_text="C: slots").locator("input")
    spent = [book.change(box, ticks.uncheck)]
    assert "set aside: C" in box.inner_text()
    spent.append(book.change(box, ticks.check))
    assert "set aside" not in box.inner_text()
    fault = row(box, "fault").locator("select")
    before = box.inner_text()
    spent.append(book.change(box, lambda: fault.select_option(index=3), TEXT))
    assert box.inner_text() != before
    picture(box)
    spent.append(book.change(box, button(box, "cured").click))
    report_times("evidence board, a move to its ranking", spent)
    assert "Needs no server" in box.inner_text()
    picture(box, "cured")


def test_patch_panel_applies_proves_and_undoes_in_the_run_folder(books, lab, picture):
    book = books(PATCH)
    box = book.cell("apply to", "form", "Prove")
    draft = lab.checkout / "data" / "tiny" / "draft" / "config.json"
    before = draft.read_bytes()

    def copies() -> list[str]:
        return sorted(path.name for path in (lab.checkout / "runs").glob("*/scratch/panel/*"))

    spent = [book.change(box, button(box, form).click, TEXT) for form in ("source", "plugin", "config")]
    report_times("patch panel, another form to its diff", spent)
    assert copies() == []
    spent = [book.change(box, button(box, "Apply").click, STATES)]
    assert box.evaluate(STATES) == "done, not yet, not yet"
    assert copies() == ["draft"] and draft.read_bytes() == before
    assert button(box, "Apply").is_disabled()
    spent.append(book.change(box, button(box, "Prove").click, STATES))
    assert box.evaluate(STATES) == "done, done, not yet"
    picture(box)
    spent.append(book.change(box, button(box, "Undo").click, STATES))
    assert box.evaluate(STATES) == "done, done, done"
    report_times("patch panel, a step to its state", spent)
    assert copies() == [] and draft.read_bytes() == before and "byte for byte" in box.inner_text()


def test_patch_panel_asks_before_it_writes_elsewhere(books, lab, picture):
    book = books(PATCH)
    box = book.cell("apply to", "form", "Prove")
    goal = lab.checkout.parent / "cured"
    row(box, "apply to").locator("select").select_option(index=1)
    folder = row(box, "copy in").locator("input")
    folder.fill(str(goal))
    folder.press("Enter")
    book.change(box, button(box, "Apply").click, TEXT)
    assert str(goal) in box.inner_text() and "Go on?" in box.inner_text()
    picture(box)
    book.change(box, button(box, "No").click, TEXT)
    assert "Go on?" not in box.inner_text() and not goal.exists()
    row(box, "apply to").locator("select").select_option(index=0)


def test_server_panel_attaches_reads_and_detaches(books, picture, small_server):
    book = books(THROUGHPUT)
    box = book.cell("URL", "API key")
    url = row(box, "URL").locator("input")

    def attach(address: str) -> None:
        url.fill(address)
        url.press("Enter")
        button(box, "Attach").click()

    book.change(box, lambda: attach("http://127.0.0.1:9"), TEXT)
    book.until(lambda: "nothing answers" in box.inner_text(), "the refusal is shown")
    attach(small_server.url)
    book.until(lambda: "read only" in box.inner_text() and "draft tokens" in box.inner_text(), "attached")
    spent = []
    for rate in ("14.9", "15.3", "16.1"):
        small_server.answers["/metrics"] = metrics(rate)
        spent.append(book.change(box, button(box, "Read").click, TEXT))
        book.until(lambda rate=rate: rate in box.inner_text(), "the reading is in the table")
    report_times("server panel, Read to its table", spent)
    small_server.answers["/metrics"] = metrics("17.7")
    box.locator(".jupyter-widgets.widget-play button").first.click()  # from here on the browser's clock reads
    book.until(lambda: "17.7" in box.inner_text(), "it is read by the clock", 30)
    picture(box)
    button(box, "Detach").click()
    book.until(lambda: "no server" in box.inner_text(), "detached")
    assert {method for method, _, _ in small_server.requests} == {"GET"}


def test_index_shows_the_steps_of_the_chosen_case(books, picture):
    book = books("00_index")
    box = book.cell("Case", "Write notebooks for this case")
    book.until(lambda: box.locator("table tr").count() == 6, "five steps under a head")
    assert box.inner_text().count("not run") >= 5 and "05 rebenchmark" in box.inner_text()
    chosen = row(box, "Case").locator("select")
    other = next(text for text in chosen.locator("option").all_text_contents() if "gpu" in text)
    spent = [book.change(box, lambda: chosen.select_option(label=other), TEXT)]
    picture(box)
    spent.append(book.change(box, lambda: chosen.select_option(index=0), TEXT))
    report_times("index, another case to its steps", spent)
