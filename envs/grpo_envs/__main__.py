"""`python -m grpo_envs` prints the catalogue; `python -m grpo_envs envs/README.md` writes it there."""

import sys
from pathlib import Path

from grpo_envs.catalogue import README, readme

target = Path(sys.argv[1]) if len(sys.argv) > 1 else README
page = readme(target.read_text(encoding="utf-8") if target.is_file() else "")
if len(sys.argv) > 1:
    target.write_text(page, encoding="utf-8")
else:
    print(page, end="")
