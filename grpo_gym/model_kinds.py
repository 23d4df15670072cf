"""Which models are refused before their weights are read, and why."""

from pathlib import Path

from grpo_gym.errors import UsageError


def check_kind(name: str, source: str | Path, offline: bool) -> None:
    """Refuse what is no causal language model of text.

    Code that comes with a model is never run.

    Args:
        name: of the model, as the user gave it.
        source: its folder or hub id.
        offline: look for it here alone.

    Raises:
        UsageError: It is a model of another kind.
        ValueError: Its config.json makes no sense to transformers.
        OSError: It cannot be read.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(source, local_files_only=offline, trust_remote_code=False)
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"model {name!r} is an encoder and a decoder ({kind}): give a causal language model, which "
            "has no encoder"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(
            f"model {name!r} is a {kind}, which transformers does not load as a causal language model: "
            "give one of text alone"
        )


def unloadable(name: str, error: Exception) -> UsageError:
    """What to tell a user whose model a loader refused with `error`."""
    if "trust_remote_code" in str(error):
        return UsageError(
            f"model {name!r} needs code that comes with it, which is never run here: give a model that "
            "transformers knows by itself"
        )
    return UsageError(f"model {name!r} cannot be loaded: {' '.join(str(error).split())[:300]}")
