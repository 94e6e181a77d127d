#!/usr/bin/env bash
# Install what requirements/*.txt pin into .venv (or .venv-peers), unless it is installed already.
# Usage: tools/setup.sh [main|browser|lint|peers]. Settings: PYTHON, ROUTE (cpu, gpu, or empty: by CUDA device).
# uv does the work where PyPI has it, pip otherwise; uv takes over the index settings of pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-main}
venv=.venv
if [ "$what" = peers ]; then venv=.venv-peers; fi

stop() { echo "$*" >&2; exit 2; }

python=${PYTHON:-}
for candidate in ${python:+"$python"} ${python:-python3.11 python3.12 python3.13 python3}; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then python=$candidate; break; fi
  if [ -n "${PYTHON:-}" ]; then stop "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13."; fi
done
if [ -z "$python" ]; then
  stop "Python 3.11, 3.12 or 3.13 was not found. Debian, Ubuntu: apt install python3 python3-venv. Or: make PYTHON=/path/to/python3.11"
fi

route=${ROUTE:-auto}
if [ "$route" = auto ]; then
  route=cpu
  if compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L 2>/dev/null | grep -q GPU; then route=gpu; fi
fi
case $what in
  main) lists=("$route"); bare=(); if [ "$route" = cpu ]; then bare=(cpu-nodeps); fi ;;
  peers) lists=(peers); bare=(peers-nodeps) ;;
  browser | lint) lists=("$what"); bare=() ;;
  *) stop "tools/setup.sh: there is no list '$what' (expected main, browser, lint or peers)." ;;
esac
files=(installer "${lists[@]}" ${bare[@]+"${bare[@]}"})
files=("${files[@]/#/requirements/}"); files=("${files[@]/%/.txt}")
for file in "${files[@]}"; do
  [ -f "$file" ] || stop "$file does not exist (ROUTE=$route; expected cpu or gpu)."
done

# One installation at a time; what identifies an environment, and what identifies its contents.
exec 9<.; flock 9
identity="$(pwd) $("$python" -c 'import sys; print(*sys.version_info[:2])') $([ "$what" = peers ] || echo "$route")"
if [ "$what" = browser ] || [ "$what" = lint ]; then identity=$(cat "$venv/identity"); fi
contents=$(cat "${files[@]}" pyproject.toml | sha256sum)
if [ "$(cat "$venv/identity" 2>/dev/null)" = "$identity" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  if [ "$(cat "$venv/installed-$what" 2>/dev/null)" = "$contents" ]; then exit 0; fi
else
  echo "Creating $venv with $("$python" --version)."
  "$python" -m venv --clear "$venv" || stop "Python could not create $venv. Debian, Ubuntu: apt install python3-venv"
  echo "$identity" >"$venv/identity"
fi

began=$SECONDS
pip=("$venv/bin/python" -I -m pip --disable-pip-version-check)
echo "Installing ${files[*]} into $venv; usually 1 to 3 minutes and 1.6 to 2.9 GB to download (gpu: 10 GB)."
"${pip[@]}" install -q -r requirements/installer.txt || true
setting() { "${pip[@]}" config list | sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" | tail -n 1; }
if "$venv/bin/uv" --version >/dev/null 2>&1; then
  index=$(setting index-url) extra=$(setting extra-index-url) links=$(setting find-links) constraint=$(setting constraint)
  export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${index:-https://pypi.org/simple}} UV_INDEX=${UV_INDEX:-$extra}
  export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}} UV_CONSTRAINT=${UV_CONSTRAINT:-$constraint}
  export UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy # as pip chooses and installs
  install=("$venv/bin/uv" pip install --python "$venv/bin/python")
else
  install=("${pip[@]}" install --progress-bar off)
fi
help="The installation failed; see above. Check the network (HTTPS_PROXY, PIP_INDEX_URL) and the disk, then call make again."
options=(); for list in "${lists[@]}"; do options+=(-r "requirements/$list.txt"); done
"${install[@]}" "${options[@]}" || stop "$help"
for list in ${bare[@]+"${bare[@]}"}; do "${install[@]}" --no-deps -r "requirements/$list.txt" || stop "$help"; done
if [ "$what" = main ]; then "${install[@]}" --no-deps --no-build-isolation -e . || stop "$help"; fi
echo "$contents" >"$venv/installed-$what"
echo "Installed into $venv in $((SECONDS - began)) s."
