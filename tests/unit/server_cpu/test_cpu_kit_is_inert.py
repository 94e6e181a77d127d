"""Nothing of the kit acts, or is even imported, in a process that did not ask for it; and it refuses other releases."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from wiring.capture.capture_plugin import DRAFT, FORWARD, REPLAY, SAMPLE
from wiring.capture.records import capture_environment
from wiring.engines.sglang import SUPPORTED
from wiring.errors import WiringError
from wiring.server.cpu import launcher
from wiring.server.cpu.kit_version import SGLANG_VERSION, installed_sglang, require_sglang

# Without triton SGLang's attention modules cannot be imported at all: take the stand-ins, then forget who made them.
STAND_INS = """
import os
os.environ["WIRING_SGLANG_CPU"] = "1"
import wiring.server.cpu.boot
del os.environ["WIRING_SGLANG_CPU"]
for name in [name for name in sys.modules if name.partition(".")[0] == "wiring"]:
    del sys.modules[name]
"""
OURS = ("WIRING_SGLANG_CPU", "WIRING_CAPTURE_DIR", "WIRING_EMBEDDING_ID")


def plain_environment() -> dict[str, str]:
    """This process's environment without anything of ours, but with `lib/`, as after an installation."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    lib = str(Path(launcher.__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([lib, *filter(None, [environment.get("PYTHONPATH")])])
    environment["OMP_NUM_THREADS"] = "1"
    return environment


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


# SGLang's own loader loads every installed plugin and swallows what they raise, so what it loaded is reported.
LOAD = """
import json, sys
{before}
from sglang.srt import plugins
plugins.load_plugins()
{after}
print(json.dumps(report), file=sys.stderr)
"""

REPORT = """
from sglang.srt.layers.attention import attention_registry
from sglang.srt.plugins.hook_registry import HookRegistry
report = {
    "loaded": sorted(name for name, _ in plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP).items()),
    "ours": sorted(name for name in sys.modules if name.partition(".")[0] in ("wiring", "wiring_plugins")),
    "torch_native": attention_registry.ATTENTION_BACKENDS["torch_native"].__module__,
    "sgl_kernel": getattr(sys.modules.get("sgl_kernel"), "__file__", None),
    "hooks": sorted(HookRegistry._hooks),
}
"""


def report_of(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def installed():
    entries = {entry.name: entry.value for entry in metadata.entry_points(group="sglang.srt.plugins")}
    assert entries.get(launcher.PLUGIN) == "wiring_plugins:cpu", "install the project: pip install -e . --no-deps"
    return entries


def test_a_server_without_our_switch_imports_nothing_of_ours(installed):
    report = report_of(run(LOAD.format(before=STAND_INS, after=REPORT), plain_environment()))
    assert {"wiring_cpu", "wiring_capture", "wiring_embedding_id"} <= set(report["loaded"])
    assert report["ours"] == ["wiring_plugins"]
    assert report["torch_native"] == "sglang.srt.layers.attention.attention_registry"
    assert report["sgl_kernel"] is None
    assert report["hooks"] == []


def test_with_our_switch_the_plugin_registers(installed):
    before = "import wiring.server.cpu.boot"
    environment = launcher.cpu_environment(plain_environment())
    report = report_of(run(LOAD.format(before=before, after=REPORT), environment))
    assert report["torch_native"] == "wiring.server.cpu.torch_native"
    assert Path(report["sgl_kernel"]).is_relative_to(launcher.KERNELS)
    assert report["hooks"] == ["sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"]
    assert not any(name.startswith(("wiring.patch", "wiring.capture.records")) for name in report["ours"])


CAPTURE_REPORT = """
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.speculative import eagle_utils, eagle_worker_common
sample = eagle_utils.eagle_sample
report = {
    "applied": sorted(HookRegistry._patched),
    "handed_on": hasattr(sample, "__wrapped__") and eagle_worker_common.eagle_sample is sample,
}
"""


def test_with_the_capture_s_switch_its_hooks_are_in_place(installed, tmp_path):
    environment = launcher.cpu_environment(plain_environment()) | capture_environment(tmp_path, drafts=True)
    report = report_of(run(LOAD.format(before="import wiring.server.cpu.boot", after=CAPTURE_REPORT), environment))
    assert {FORWARD, SAMPLE, DRAFT} <= set(report["applied"]) and REPLAY not in report["applied"]
    assert report["handed_on"] is True  # verify calls what the hook stands around
    assert list(tmp_path.iterdir()) == []  # nothing is written before a request comes


def test_what_is_hooked_on_a_gpu_is_there_in_this_release():
    """Its module cannot be imported without CUDA, so the source is read."""
    module, of_class, method = REPLAY.rsplit(".", 2)
    source = metadata.distribution("sglang").locate_file(module.replace(".", "/") + ".py").read_text()
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == of_class]
    (hooked,) = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method]
    assert [argument.arg for argument in hooked.args.args][:2] == ["self", "forward_batch"]


def test_the_cpu_kernels_cannot_be_imported_here():
    result = run("import sgl_kernel; print(sgl_kernel.__file__)", plain_environment())
    assert str(launcher.KERNELS) not in result.stdout
    on_path = {**plain_environment(), "PYTHONPATH": str(launcher.KERNELS)}
    result = run("import sgl_kernel", on_path)
    assert result.returncode != 0 and "must not be imported elsewhere" in result.stderr.replace("\n", " ")


# --- launcher ---------------------------------------------------------------------------------------------------


def test_command_holds_the_kit_s_flags_and_the_caller_s():
    command = launcher.cpu_command("/some/python", ["--model-path", "m", "--port", "1"])
    assert command[:3] == ["/some/python", "-m", "wiring.server.cpu.serve"]
    assert command[3:-4] == list(launcher.CPU_FLAGS) and command[-4:] == ["--model-path", "m", "--port", "1"]


def test_environment_extends_a_copy():
    base = {"PYTHONPATH": "/a" + os.pathsep + "/b", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "0"}
    before = dict(base)
    made = launcher.cpu_environment(base)
    assert base == before
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(launcher.KERNELS)
    assert made["PYTHONPATH"].split(os.pathsep)[-2:] == ["/a", "/b"]
    assert made["HOME"] == "/h" and made["CUDA_VISIBLE_DEVICES"] == ""
    assert "SGLANG_PLUGINS" not in made
    assert launcher.cpu_environment(made) == made  # a second time changes nothing


def test_a_restricted_plugin_list_gains_the_kit():
    assert launcher.cpu_environment({"SGLANG_PLUGINS": "other, x"})["SGLANG_PLUGINS"] == "other,x,wiring_cpu"


def test_importing_the_launcher_is_light():
    code = "import sys, wiring.server.cpu.launcher; print([m for m in ('torch', 'sglang') if m in sys.modules])"
    assert run(code, plain_environment()).stdout.strip() == "[]"


# --- versions ---------------------------------------------------------------------------------------------------


def test_the_supported_release_is_the_one_whose_rules_we_know():
    assert SGLANG_VERSION == SUPPORTED == installed_sglang()
    require_sglang(SGLANG_VERSION)


@pytest.mark.parametrize("found", ["0.5.22", "0.5.24", "0.5.23.post1", None])
def test_another_release_is_refused(found):
    with pytest.raises(WiringError, match=r"expected 0\.5\.23.*Install sglang==0\.5\.23"):
        require_sglang(found)


def test_the_server_refuses_another_release_before_it_imports_anything(tmp_path):
    other = tmp_path / "sglang-0.5.24.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    environment = launcher.cpu_environment({**plain_environment(), "PYTHONPATH": str(tmp_path)})
    command = launcher.cpu_command(sys.executable, ["--model-path", "nowhere"])
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines() == [
        "sglang: the CPU server cannot run with this SGLang release (expected 0.5.23, found 0.5.24). "
        "Install sglang==0.5.23 into this environment, or serve on a GPU."
    ]


def test_the_server_refuses_to_start_without_its_environment():
    command = launcher.cpu_command(sys.executable, ["--model-path", "nowhere"])
    result = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("WIRING_SGLANG_CPU: the CPU server was started without its environment")
    assert "Traceback" not in result.stderr
