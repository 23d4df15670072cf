"""`python -m grpo_gym.cli`."""

import sys

from grpo_gym.cli import main

sys.exit(main())
