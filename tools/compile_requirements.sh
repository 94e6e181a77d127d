#!/usr/bin/env bash
# Compile the lists of pyproject.toml to requirements/*.txt: pins and markers, no addresses (`make requirements`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=${UV:-.venv/bin/uv}
compile() { # compile NAME OPTIONS...: write requirements/NAME.txt
  local out=requirements/$1.txt; shift
  "$uv" pip compile -q --universal --python-version 3.11 --no-header --no-annotate "$@" -o "$out"
  # What holds on every supported machine is left out: Linux on x86_64 or aarch64, Python 3.11 to 3.13.
  python3 - "$out" "$platform" <<'PYTHON'
import pathlib, sys
path, platform = pathlib.Path(sys.argv[1]), sys.argv[2]
lines = path.read_text().splitlines()
lines = [line.removesuffix(f" ; python_full_version < '3.14' and {platform}").replace(f" and {platform}", "") for line in lines]
path.write_text("\n".join(lines) + "\n")
PYTHON
}
mkdir -p requirements
platform="((platform_machine == 'aarch64' and sys_platform == 'linux') or (platform_machine == 'x86_64' and sys_platform == 'linux'))"
compile installer --group installer
compile cpu pyproject.toml --extra lab --extra test --group cpu
# PyPI's torch names its CUDA packages; the CPU build has none, so they are left to whichever torch is installed.
sed -i -E '/^(nvidia-|cuda-|triton==)/d' requirements/cpu.txt
compile cpu-nodeps --no-deps --group cpu-nodeps
compile gpu pyproject.toml --extra lab --extra test --extra gpu
compile browser --group browser -c requirements/cpu.txt
compile lint --group lint -c requirements/cpu.txt
compile peers --group peers -c requirements/cpu.txt
sed -i -E '/^(nvidia-|cuda-)/d' requirements/peers.txt
compile peers-nodeps --no-deps --group peers-nodeps
