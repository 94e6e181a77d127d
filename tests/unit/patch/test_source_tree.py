"""Where SGLang is found, and how: by its files, whatever way it was installed, and never by importing it."""

import subprocess
import sys
import zipfile
from importlib.metadata import version

import pytest
from stand_in import write_tree

from wiring.errors import WiringError
from wiring.patch.source import find_tree, prepare


def test_site_packages_a_checkout_and_the_package_itself_lead_to_the_same_folder(tmp_path):
    tree = write_tree(tmp_path / "checkout" / "python")
    package = (tmp_path / "checkout" / "python" / "sglang").resolve()
    for given in (tmp_path / "checkout", tmp_path / "checkout" / "python", package):
        assert (find_tree(given).package, find_tree(given).version) == (package, "0.5.7")
    assert not tree.installed


def test_links_are_resolved_and_the_real_file_is_named(tmp_path):
    write_tree(tmp_path / "real")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sglang").symlink_to(tmp_path / "real" / "sglang")
    assert find_tree(tmp_path / "site").package == (tmp_path / "real" / "sglang").resolve()


def test_an_editable_install_is_followed_by_path_and_by_finder(tmp_path):
    package = write_tree(tmp_path / "work" / "python").package
    by_path, by_finder = tmp_path / "one", tmp_path / "two"
    by_path.mkdir(), by_finder.mkdir()
    (by_path / "__editable__.sglang-0.5.7.pth").write_text(f"{package.parent}\n")
    (by_finder / "__editable__.sglang-0.5.7.pth").write_text("import __editable___sglang_0_5_7_finder\n")
    mapping = {"sglang": str(package)}
    (by_finder / "__editable___sglang_0_5_7_finder.py").write_text(f"MAPPING: dict[str, str] = {mapping!r}\n")
    assert find_tree(by_path).package == find_tree(by_finder).package == package


@pytest.mark.parametrize(
    ("files", "release"),
    [
        ({"version.py": '__version__ = "0.4.9"\n'}, "0.4.9"),
        (
            {"version.py": "from ._version import __version__\n", "_version.py": "__version__ = version = '0.5.9'\n"},
            "0.5.9",
        ),
        (
            {"version.py": "", "../sglang-0.5.4.post2.dist-info/METADATA": "Name: sglang\nVersion: 0.5.4.post2\n"},
            "0.5.4.post2",
        ),
        ({"version.py": ""}, None),
        ({"version.py": "__version__ = broken(\n"}, None),
    ],
)
def test_the_version_is_read_from_the_trees_own_files(tmp_path, files, release):
    package = write_tree(tmp_path).package
    for path, text in files.items():
        (package / path).parent.mkdir(exist_ok=True)
        (package / path).write_text(text)
    assert find_tree(tmp_path).version == release


def test_a_packed_wheel_is_to_be_unpacked_first(tmp_path):
    wheel = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/srt/x.py", "")
    with pytest.raises(WiringError) as error:
        find_tree(wheel)
    assert (error.value.code, error.value.where) == ("sglang-packed", str(wheel))


def test_what_is_no_sglang_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "", "file"):
        with pytest.raises(WiringError) as error:
            find_tree(tmp_path / name)
        assert (error.value.code, error.value.where) == ("sglang-not-found", str(tmp_path / name))


def test_the_installed_one_is_found_without_importing_it(tmp_path):
    write_tree(tmp_path, {"srt/x.py": "", "__init__.py": "raise SystemExit('imported')\n"})
    (tmp_path / "sglang" / "__init__.py").write_text("raise SystemExit('imported')\n")
    code = "from wiring.patch.source import find_tree; t = find_tree(); print(t.package, t.version, t.installed)"
    paths = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; {code}"
    ran = subprocess.run([sys.executable, "-c", paths], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == [str((tmp_path / "sglang").resolve()), "0.5.7", "True"], ran.stderr


def test_a_zip_on_the_import_path_is_told(tmp_path):
    wheel = tmp_path / "sglang.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/__init__.py", "")
    code = f"import sys; sys.path[:0] = [{str(wheel)!r}]; from wiring.patch.source import find_tree; find_tree()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "zip file" in ran.stderr and "Unpack it first" in ran.stderr


def test_the_installed_release_needs_one_edit_of_one_line():
    tree = find_tree()
    assert tree.installed and tree.version == version("sglang")
    change = prepare(tree, "DeepseekV3ForCausalLM")
    assert [edit.site.name for edit in change.edits] == ["setter"]
    signs = [line[0] for line in change.diff().splitlines()[2:]]
    assert [sign for sign in signs if sign in "+-"] == ["-", "+", "+"]  # the test, and a comment over it
    assert prepare(tree, "LlamaForCausalLM").edits == ()
