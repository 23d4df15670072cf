"""A policy from a name: the tiny one, a folder of a model or an adapter, or an id on the hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grpo_gym.chat_templates import read_template
from grpo_gym.errors import UsageError
from grpo_gym.lora import (
    ADAPTER_CONFIG,
    SavedAdapter,
    is_adapter_folder,
    merge,
    put_adapter,
    read_adapter,
)
from grpo_gym.model_kinds import check_causal, check_kind, unloadable
from grpo_gym.rendering import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY = "tiny"
_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_HUB_TIMEOUT_S = 10.0
_GGUF = "docs/models.md says how to make a model folder of a GGUF file"
TINY_FOLDER = Path(__file__).parent / "tiny" / "model"


@dataclass(frozen=True, eq=False)
class Policy:
    """A model, its tokenizer, and the renderer that speaks its chat template.

    Attributes:
        source: the folder or hub id that the model was loaded from.
        adapter: the folder of the adapter that was then merged into it; None: there is none.
    """

    name: str
    source: str
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    renderer: Renderer
    adapter: Path | None = None


def load_policy(
    name: str | Path, *, dtype: str = "float32", chat_template: str | None = None
) -> Policy:
    """Load a policy.

    Args:
        name: "tiny", a folder that `save_pretrained` wrote, a hub id such as "Qwen/Qwen3-0.6B", or the
            folder of an adapter: the model that it names is loaded, and the adapter merged into it.
        dtype: of the weights.
        chat_template: "plain", "chatml" or a file, in place of the tokenizer's own; it is saved with the
            tokenizer.

    Raises:
        UsageError: There is no such folder or id, it holds no causal language model with a tokenizer,
            its weights do not fit its configuration, or the template does not fit the tokenizer.
    """
    if _is_adapter(name):
        return _with_adapter(Path(name), dtype, chat_template)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    source = TINY_FOLDER if str(name) == TINY else name
    offline = _is_folder(source) or _without_hub(str(source))
    verbosity = logging.get_verbosity()
    # What is missing is reported below; loading bars would cut through the run's own display.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=[]):
            check_kind(str(name), source, offline)
            tokenizer = AutoTokenizer.from_pretrained(
                source, local_files_only=offline, trust_remote_code=False
            )
            model, report = cast(Any, AutoModelForCausalLM).from_pretrained(
                source,
                trust_remote_code=False,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=offline,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except UsageError:
        raise
    except Exception as error:  # whatever a foreign folder makes the loaders raise
        raise unloadable(str(name), error) from error
    finally:
        logging.set_verbosity(verbosity)
    _check_tokenizer(name, tokenizer)
    _check_weights(name, report)
    check_causal(str(name), model)
    renderer = _renderer(model, tokenizer, chat_template)
    return Policy(str(name), str(source), model, tokenizer, renderer)


def load_tokenizer(name: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a policy, without its weights; `name` is as for `load_policy`.

    Raises:
        UsageError: There is no such folder or id, or it holds no tokenizer.
    """
    from transformers import AutoTokenizer

    if _is_adapter(name):
        return load_tokenizer(_base_of(read_adapter(Path(name))))
    source = TINY_FOLDER if str(name) == TINY else name
    offline = _is_folder(source) or _without_hub(str(source))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, local_files_only=offline, trust_remote_code=False
        )
    except Exception as error:  # whatever a foreign folder makes the loader raise
        raise unloadable(str(name), error) from error
    _check_tokenizer(name, tokenizer)
    return tokenizer


def _is_adapter(name: str | Path) -> bool:
    try:
        return str(name) != TINY and is_adapter_folder(Path(name))
    except (OSError, ValueError):  # a name that can be no path
        return False


def _renderer(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", chat_template: str | None
) -> Renderer:
    """The policy's renderer; the tokenizer keeps the template, so that a saved model has it too."""
    if chat_template is not None:
        cast(Any, tokenizer).chat_template = read_template(chat_template, tokenizer)
    return Renderer(tokenizer, getattr(model.generation_config, "eos_token_id", None))


def _with_adapter(folder: Path, dtype: str, chat_template: str | None) -> Policy:
    """The model that an adapter names, with the adapter merged into it."""
    saved = read_adapter(folder)
    try:
        policy = load_policy(_base_of(saved), dtype=dtype)
    except UsageError as error:
        raise UsageError(
            f"adapter {folder}, which names the model {saved.base!r}: {error}"
        ) from error
    put_adapter(policy.model, saved)
    merge(policy.model)
    own = folder / "chat_template.jinja"
    if chat_template is None and own.is_file():
        chat_template = str(own)
    renderer = _renderer(policy.model, policy.tokenizer, chat_template)
    return replace(policy, name=str(folder), renderer=renderer, adapter=folder)


def _base_of(saved: SavedAdapter) -> str:
    """The model that an adapter was trained on."""
    if saved.base is None:
        raise UsageError(
            f"adapter {saved.folder} does not say which model it is for: write "
            "base_model_name_or_path into its adapter_config.json"
        )
    if _is_adapter(saved.base):
        raise UsageError(
            f"adapter {saved.folder} is for {saved.base}, which is an adapter itself: merge that first"
        )
    return saved.base


def _check_tokenizer(name: str | Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Refuse the tokenizer that transformers makes without tokenizer files: it knows nothing."""
    if not tokenizer.encode("0", add_special_tokens=False):
        raise UsageError(
            f"model {str(name)!r} has no tokenizer: save the tokenizer beside the model"
        )


def _hint(folder: Path) -> str:
    """What a folder without a model may be."""
    if any(folder.glob("*.gguf")):
        return _GGUF
    for inside in ("model", "checkpoints/*/model"):  # of a checkpoint, and of a run
        models = sorted(path.parent for path in folder.glob(f"{inside}/*config.json"))
        if models:
            return f"its model is {models[-1]}"
    return "is it a saved model?"


def _is_folder(source: str | Path) -> bool:
    """Whether it is a folder; what can only be one and is none is refused at once."""
    path = Path(source)
    looks_local = isinstance(source, Path) or source.startswith((".", "/", "~"))
    try:
        found = path.is_dir()
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"model folder {source} cannot be read: {error.strerror}") from error
    if found:
        if not (path / "config.json").is_file():
            raise UsageError(f"model folder {source} has no config.json: {_hint(path)}")
        return True
    if path.suffix == ".gguf" and path.is_file():
        raise UsageError(f"model {source} is a file: {_GGUF}")
    if looks_local or path.exists() or _HUB_ID.fullmatch(str(source)) is None:
        raise UsageError(f"there is no model folder {source}")
    return False


def _without_hub(name: str) -> bool:
    """Whether only the local cache is to be asked, since the hub cannot be reached.

    The loaders would try again for a minute before they gave up. And an adapter, which is refused, they
    would load by themselves, with whatever its config asks for.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    def cached(file: str) -> bool:
        return isinstance(try_to_load_from_cache(name, file), str)

    try:
        files = HfApi().model_info(name, timeout=_HUB_TIMEOUT_S).siblings or ()
        is_adapter, offline = any(file.rfilename == ADAPTER_CONFIG for file in files), False
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"there is no model folder {name}, and no model of that name on the Hugging Face hub that "
            "may be read"
        ) from error
    except Exception as error:  # offline mode, no network, a hub that is down
        is_adapter, offline = cached(ADAPTER_CONFIG), True
        if not is_adapter and not cached("config.json"):
            raise UsageError(
                f"there is no model folder {name}, the Hugging Face hub cannot be reached "
                f"({' '.join(str(error).split())[:100]}), and its cache here does not hold the model"
            ) from error
    if is_adapter:
        raise UsageError(
            f"{name} is an adapter on the hub: fetch it (hf download {name} --local-dir FOLDER) and give "
            "the folder"
        )
    return offline


def _check_weights(name: str | Path, report: Mapping[str, Any]) -> None:
    """Refuse weights that leave a part of the model random, which transformers only warns of."""
    mismatched = [entry[0] for entry in report["mismatched_keys"]]
    wrong = sorted({*report["missing_keys"], *mismatched})
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UsageError(
            f"model {str(name)!r}: its weights lack {wrong[0]}{more}, or have it in another shape than "
            "its config.json says"
        )
