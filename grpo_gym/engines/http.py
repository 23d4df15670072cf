"""JSON over HTTP to a server that is not to be trusted: many requests at once, each with an end."""

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from grpo_gym.engines.http_text import (
    ServerError,
    TooSlow,
    Unreachable,
    error_message,
    one_line,
    parsed,
    seconds_to_wait,
)

__all__ = ["HttpClient", "ServerError", "TooSlow", "Unreachable"]

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 10.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
# Servers close idle connections, uvicorn after 5 s: one that is about to be closed is not used again.
_IDLE_S = 2.0
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")

_NOT_DONE = frozenset({429, 503})
"""Answers that say that nothing was done, so that any request may be sent again."""
_PASSING = frozenset({500, 502, 504})
"""Answers that may be others the next time; only a request that can be sent twice is."""


class HttpClient:
    """Requests to one server. They run in a thread of their own and share a pool of connections.

    Args:
        url: of the server, such as http://127.0.0.1:8000 or https://HOST/v1; paths are appended to it.
        key_env: environment variable that holds the key, sent as a bearer token; None, or an unset one:
            no key.
        timeout_s: seconds an answer may take, to its last byte.
        concurrency: most requests at once; the others wait.
        max_bytes: longest answer.
        tries: how often a request is sent before its failure counts.

    Raises:
        ServerError: The address is wrong, or the key has characters that no key has.
    """

    def __init__(
        self,
        url: str,
        *,
        key_env: str | None = None,
        timeout_s: float = 600.0,
        concurrency: int = 256,
        max_bytes: int = 64 * 2**20,
        tries: int = 5,
    ) -> None:
        self.url = url.rstrip("/")
        self._host = _host(self.url)
        self._key_env = key_env
        self._key = os.environ.get(key_env, "") if key_env is not None else ""
        if not (self._key.isascii() and self._key.isprintable()):
            raise ServerError(f"the key in {key_env} has characters that no key has")
        self._timeout_s, self._max_bytes, self._tries = timeout_s, max_bytes, tries
        self._concurrency = concurrency
        self._jitter = random.Random()
        self._client: httpx2.AsyncClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float | None = None,
        repeatable: bool = True,
    ) -> "Future[Any]":
        """Send a request; the future has the answer's JSON. Cancelling it closes the connection.

        Args:
            method: GET or POST.
            path: after the client's url.
            body: sent as JSON; None: no body.
            timeout_s: in place of the client's.
            repeatable: whether it does no harm to send it twice. It is then sent again after a
                connection that broke or an error of the server; otherwise only when it surely was
                not dealt with.

        Raises (from the future):
            ServerError: There is no answer, or not a good one.
        """
        if self._loop.is_closed():
            raise ServerError(f"{self.url} cannot be asked: this client is closed")
        limit = self._timeout_s if timeout_s is None else timeout_s
        return self._run(self._send(method, path, body, limit, repeatable))

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """As `start`, but wait for the answer and return it."""
        future = self.start(method, path, body, **options)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Drop all requests and connections."""
        if self._loop.is_running():
            self._run(self._close()).result(_CONNECT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CONNECT_S)
            self._loop.close()

    def hide(self, text: str) -> str:
        """What a server said, as one line that can be printed, without the key."""
        return one_line(text.replace(self._key, "***") if self._key else text)

    def _run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _close(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> "httpx2.AsyncClient":
        """The client, made when it is first needed."""
        import httpx2

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            try:
                self._client = httpx2.AsyncClient(
                    headers={**headers, "Accept-Encoding": "identity"},
                    timeout=httpx2.Timeout(None, connect=_CONNECT_S),
                    limits=httpx2.Limits(
                        max_connections=self._concurrency, keepalive_expiry=_IDLE_S
                    ),
                    # A proxy for the world is none for this machine.
                    trust_env=self._host not in _LOCAL,
                )
            except (ImportError, OSError, ValueError) as error:
                raise ServerError(
                    f"{self.url} cannot be asked with the proxy and the certificates that the environment "
                    f"names, by variables such as HTTPS_PROXY or SSL_CERT_FILE: {self._clean(str(error))}"
                ) from None
        return self._client

    async def _send(
        self, method: str, path: str, body: Any, timeout_s: float, repeatable: bool
    ) -> Any:
        """Try until there is an answer that counts."""
        for left in reversed(range(self._tries)):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._once(method, path, body)
            except TimeoutError:
                raise TooSlow(
                    f"{self.url}{path} gave no answer in {timeout_s:g} s: is the server overloaded, or "
                    "does it hang?"
                ) from None
            except _Failure as failure:
                if not left or not (failure.harmless or (failure.passing and repeatable)):
                    raise failure.error from None
                await asyncio.sleep(self._wait(self._tries - 1 - left, failure))
        raise AssertionError("unreachable")

    async def _once(self, method: str, path: str, body: Any) -> Any:
        import httpx2

        url = f"{self.url}{path}"
        try:
            async with self._opened().stream(method, url, json=body) as response:
                content = bytearray()
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > self._max_bytes:
                        raise ServerError(f"{url} answers with more than {self._max_bytes} bytes")
        except httpx2.TransportError as error:
            what = self._clean(str(error)) or type(error).__name__
            connecting = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            verb = "cannot be reached" if connecting else "broke off"
            kind = Unreachable if connecting else ServerError
            raise _Failure(
                kind(f"{url} {verb} ({what}): is the server running?"), connecting, True
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise ServerError(f"{url} cannot be asked: {self._clean(str(error))}") from None
        if response.is_success:
            try:
                return parsed(bytes(content))
            except ValueError:
                start = self._clean(content[:1000].decode("utf-8", "replace"))[:60]
                raise ServerError(
                    f"{url} answers with something else than JSON: {start!r}"
                ) from None
        if response.has_redirect_location:  # elsewhere the key has no business
            to = self._clean(response.headers["Location"])
            raise ServerError(
                f"{url} sends on to {to}: give that server's address", response.status_code
            )
        raise _Failure(
            self._refusal(url, response.status_code, bytes(content)),
            response.status_code in _NOT_DONE,
            response.status_code in _PASSING,
            response.headers.get("Retry-After"),
        )

    def _refusal(self, url: str, status: int, content: bytes) -> ServerError:
        """What an answer with an error says, in one line."""
        said = self._clean(error_message(content))
        if status in (401, 403):
            key = f"the key in {self._key_env}" if self._key else "no key"
            hint = f"; set {self._key_env}" if self._key_env and not self._key else ""
            return ServerError(f"{url} refuses {key} ({status}: {said}){hint}", status)
        return ServerError(f"{url} answers {status}: {said}", status)

    def _clean(self, text: str) -> str:
        return self.hide(text)[:300]

    def _wait(self, failed: int, failure: "_Failure") -> float:
        """Seconds until the next try: twice as long each time, up to a minute, or what the server asks for.

        Raises:
            ServerError: The server asks for too long a time.
        """
        asked = seconds_to_wait(failure.retry_after)
        if asked > _LONGEST_WAIT_S:
            raise ServerError(
                f"{failure.error}; it asks to wait {asked:.0f} s", failure.error.status
            )
        usual = min(_FIRST_WAIT_S * 2.0 ** min(failed, 30), _LONGEST_WAIT_S)
        return max(asked, usual * self._jitter.uniform(0.5, 1))


def _host(url: str) -> str:
    """The host of a server's address."""
    with contextlib.suppress(ValueError):  # such as a port above 65535
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    raise ServerError(f"{url} is not the address of a server; one is like http://127.0.0.1:8000")


class _Failure(Exception):
    """A try that failed; what it would be called, and whether there may be another one."""

    def __init__(
        self, error: ServerError, harmless: bool, passing: bool, retry_after: str | None = None
    ) -> None:
        self.error, self.harmless, self.passing = error, harmless, passing
        self.retry_after = retry_after
