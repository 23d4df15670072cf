"""Which models an endpoint has."""

from collections.abc import Sequence

from grpo_gym.engines.http import HttpClient, ServerError, Unreachable
from grpo_gym.errors import UsageError

_LIST_S = 15.0
_SHOWN = 10


def list_models(url: str, key_env: str) -> tuple[str, ...]:
    """Names of an endpoint's models; () where it does not list them.

    Raises:
        ServerError: There is no endpoint, or it refuses the key.
    """
    client = HttpClient(url, key_env=key_env, tries=2, timeout_s=_LIST_S)
    try:
        found = client.request("GET", "/models")
    except ServerError as error:
        if isinstance(error, Unreachable) or error.status == 401:
            raise
        return ()
    finally:
        client.close()
    rows = found.get("data") if isinstance(found, dict) else None
    names = [row.get("id") if isinstance(row, dict) else None for row in _as_list(rows)]
    return tuple(
        client.hide(name) for name in names if isinstance(name, str) and name.isprintable()
    )


def offer(model: str, models: Sequence[str]) -> str:
    """A clause that names models of an endpoint, if the one asked for is none of them."""
    if model in models or not models:
        return ""
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return f"; it offers the models {', '.join(name[:80] for name in models[:_SHOWN])}{more}"


def require_model(url: str, models: Sequence[str], model: str, default: str) -> None:
    """Refuse the default model, unless an endpoint has one of that name.

    Raises:
        UsageError: No model was named.
    """
    if model == default and model not in models:
        raise UsageError(f"{url}: --model must name a model of the endpoint{offer(model, models)}")


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
