# Sourced by ./quickstart and ./check: makes .venv and installs the project in it.
# usage: setup EXTRAS      e.g. setup ""   or   setup "[dev]"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "grpo_gym needs Python 3.11 or newer, and none was found: install one, or set PYTHON to it" >&2
  return 1
}

setup() {
  local extras="$1" python stamp wanted
  local pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
  if [ ! -x .venv/bin/python ]; then
    python="$(find_python)"
    "$python" -m venv .venv
  fi
  stamp=".venv/.installed$extras"
  wanted="$(cat pyproject.toml constraints-cpu.txt | cksum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  echo "installing into .venv (a few minutes the first time)"
  local options=() configured
  if ! nvidia-smi >/dev/null 2>&1; then
    # No GPU: known versions, and the CPU build of torch. It comes from torch's own index, unless
    # pip has been told where to look for packages.
    options+=(--constraint constraints-cpu.txt)
    configured="$(.venv/bin/python -m pip --disable-pip-version-check config list)"
    if [[ "$configured" != *find-links* && "$configured" != *index-url* ]]; then
      "${pip[@]}" install --no-deps --retries 1 --constraint constraints-cpu.txt \
        --index-url https://download.pytorch.org/whl/cpu torch ||
        echo "the CPU build of torch is not to be had from its own index; trying the default one"
    fi
  fi
  "${pip[@]}" install "${options[@]}" --editable ".$extras"
  echo "$wanted" > "$stamp"
}
