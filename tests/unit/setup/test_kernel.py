"""The kernel is this environment's Python under a name of its own, with the variables it needs and no secret."""

from __future__ import annotations

import json
import sys

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from wiring.workbook import jupyter_kernel as kernel
from wiring.workbook.jupyter_kernel import CPU, GPU, kernel_environment, main, quiet_lab, register

SHELL = {
    "CUDA_VISIBLE_DEVICES": "0,1",
    "CUDA_HOME": "/usr/local/cuda",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "NCCL_IB_DISABLE": "1",
    "SGLANG_LOG_MS": "1",
    "HF_HOME": "/models/hf",
    "HF_TOKEN": "hf_secret",
    "SGLANG_API_KEY": "secret",
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "MY_CUDA_NOTE": "no",
    "PLOTLY_RENDERER": "png",
}


def test_a_gpu_kernel_takes_the_gpus_variables_and_no_secret():
    taken = kernel_environment(SHELL, gpu=True)
    kept = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH", "NCCL_IB_DISABLE", "SGLANG_LOG_MS", "HF_HOME")
    assert taken == {name: SHELL[name] for name in kept} | {"PLOTLY_RENDERER": "plotly_mimetype"}
    assert kernel_environment(SHELL, gpu=False) == {"PLOTLY_RENDERER": "plotly_mimetype"}


def specs(prefix):
    manager = KernelSpecManager(kernel_dirs=[str(prefix / "share" / "jupyter" / "kernels")], ensure_native_kernel=False)
    return manager, manager.get_all_specs()


def test_registering_again_replaces_and_touches_nothing_else(tmp_path):
    register(False, SHELL, str(tmp_path))
    register(True, SHELL, str(tmp_path))
    register(True, SHELL | {"CUDA_VISIBLE_DEVICES": "7"}, str(tmp_path))
    _, found = specs(tmp_path)
    assert {name: spec["spec"]["display_name"] for name, spec in found.items()} == {CPU: "wiring", GPU: "wiring (GPU)"}
    assert found[GPU]["spec"]["env"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert all(spec["spec"]["argv"][0] == sys.executable for spec in found.values())
    assert [path.name for path in tmp_path.iterdir()] == ["share"]


def test_the_labs_settings_keep_what_others_set(tmp_path):
    path = quiet_lab(str(tmp_path))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"@mine/one:two": {"a": 1}}))
    assert quiet_lab(str(tmp_path)) == path == tmp_path / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    settings = json.loads(path.read_text())
    assert settings["@mine/one:two"] == {"a": 1} and len(settings) == 2
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_a_registered_kernel_runs_with_its_environment(tmp_path):
    register(True, SHELL, str(tmp_path))
    manager, _ = specs(tmp_path)
    running = KernelManager(kernel_name=GPU, kernel_spec_manager=manager)
    running.start_kernel()
    client = running.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        told = []
        code = "import json, os, sys, wiring; print(json.dumps([sys.prefix, os.environ['CUDA_VISIBLE_DEVICES']]))"
        client.execute_interactive(code, timeout=60, output_hook=lambda message: told.append(message["content"]))
        text = "".join(content["text"] for content in told if content.get("name") == "stdout")
        assert json.loads(text) == [sys.prefix, "0,1"]
    finally:
        client.stop_channels()
        running.shutdown_kernel(now=True)


@pytest.mark.parametrize("hidden", [True, False])
def test_the_command_says_where_it_registered_and_whether_gpus_are_missing(tmp_path, monkeypatch, capsys, hidden):
    monkeypatch.setattr(kernel, "register", lambda gpu, around: (str(tmp_path), {"CUDA_HOME": "/cuda"}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--gpu"] if hidden else []) == 0
    out, told = capsys.readouterr()
    assert out == f"Kernel {GPU if hidden else CPU}: {tmp_path}, with CUDA_HOME\n"
    assert ("there is no GPU here" in told) == hidden
