#!/usr/bin/env bash
# Trains a random model of half a billion parameters for two steps with every engine that the machine has,
# and prints one line of JSON for each: tokens a second, peak memory, gap after the sync. Nothing is
# downloaded. Without an NVIDIA GPU it says so and does nothing; --dry-run does the same with a tiny model on
# whatever there is. Ends with status 1 if an engine failed.
#   PYTHON=python3 benchmarks/gpu_smoke.sh [--dry-run] [--layers 32] [--hidden 896]
# Where packages are missing and cannot be installed, SITE may name a folder made elsewhere with
#   pip install --no-deps --target FOLDER gymnasium farama-notifications cloudpickle accelerate tyro ...
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3}"
export PYTHONPATH="$root:$root/envs:$root/agents${SITE:+:$SITE}${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if ! nvidia-smi >/dev/null 2>&1; then
  if [[ " $* " != *" --dry-run "* ]]; then
    echo '{"skipped": "no NVIDIA GPU"}'
    exit 0
  fi
  export DS_ACCELERATOR=cpu  # else DeepSpeed, where it is installed, says so on stdout
fi
status=0
for mode in hf:fp32 hf:bf16 vllm:fp32 vllm:bf16; do
  timeout 140 "$python" "$root/benchmarks/gpu_smoke.py" "${mode%:*}" "${mode#*:}" "$@" || {
    echo "{\"mode\": \"$mode\", \"error\": \"exit status $?\"}"
    status=1
  }
done
exit "$status"
