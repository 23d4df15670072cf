"""JSON over HTTP: tries, limits, keys, and what a bad server may do."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from grpo_gym.engines import http
from grpo_gym.engines.http import HttpClient, ServerError
from tests.loopback import Asked, Crowd, Reply, serving

KEY = "sk-not-to-be-seen"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("TEST_KEY", KEY)


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    """Ask a server that gives these replies, one after the other, then the last for ever."""
    clients = []

    def ask(*replies: Any, repeatable: bool = True, **options: Any) -> tuple[Any, list[Asked]]:
        asked: list[Asked] = []

        def answer(request: Asked) -> Reply:
            asked.append(request)
            reply = replies[min(len(asked), len(replies)) - 1]
            return reply() if callable(reply) else reply

        with serving(answer) as url:
            clients.append(HttpClient(url, key_env="TEST_KEY", **options))
            try:
                got = clients[-1].request("POST", "/x", {"a": 1}, repeatable=repeatable)
            except ServerError as error:
                got = error
        return got, asked

    yield ask
    for client in clients:
        client.close()


def test_an_answer_is_its_json_and_the_key_travels_in_the_header(ask: Callable[..., Any]) -> None:
    got, (asked,) = ask(Reply({"b": [1, None]}))
    assert got == {"b": [1, None]}
    assert (asked.path, asked.body) == ("/x", {"a": 1})
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert ask(Reply(b""))[0] is None


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(ask: Callable[..., Any], status: int) -> None:
    got, asked = ask(Reply("no", status), Reply("no", status), Reply("yes"))
    assert (got, len(asked)) == ("yes", 3)


@pytest.mark.parametrize(("status", "tries"), [(429, 2), (503, 2), (500, 1), (502, 1)])
def test_what_cannot_be_sent_twice_is_not(ask: Callable[..., Any], status: int, tries: int) -> None:
    assert len(ask(Reply("no", status), Reply("yes"), repeatable=False)[1]) == tries


@pytest.mark.parametrize("status", [301, 400, 401, 404, 422])
def test_what_stays_is_not_tried_again(ask: Callable[..., Any], status: int) -> None:
    error, asked = ask(Reply({"error": {"message": "not that\nway"}}, status))
    assert error.status == status
    assert f"{status}: not that way" in str(error)
    assert len(asked) == 1


def test_tries_have_an_end(ask: Callable[..., Any]) -> None:
    error, asked = ask(Reply({"detail": "broken"}, 500), tries=3)
    assert "answers 500: broken" in str(error)
    assert len(asked) == 3


def test_retry_after_is_kept_to_within_reason(ask: Callable[..., Any]) -> None:
    started = time.monotonic()
    got, _ = ask(Reply("no", 429, {"Retry-After": "1"}), Reply("yes"))
    assert got == "yes"
    assert time.monotonic() - started > 0.9
    error, asked = ask(Reply("no", 429, {"Retry-After": "3600"}), Reply("yes"))
    assert "asks to wait 3600 s" in str(error)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "value",
    ["Wed, 21 Oct 2015 07:28:00 GMT", f"Wed, 21 Oct {10**20} 07:28:00 GMT", "soon", "-3", "²", "0"],
)
def test_what_asks_for_no_pause_gets_the_usual_one(
    ask: Callable[..., Any], value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd of clients that is told to come back at once must not."""
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.4)
    started = time.monotonic()
    no = Reply("no", 429, {"Retry-After": value})
    assert ask(no, no, Reply("yes"))[0] == "yes"
    assert time.monotonic() - started > 0.6


def test_pauses_grow_to_a_longest_one(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LONGEST_WAIT_S", 0.02)
    assert len(ask(Reply("no", 429), tries=50)[1]) == 50


def test_a_key_goes_nowhere_else(ask: Callable[..., Any]) -> None:
    with serving(lambda asked: Reply(asked.headers)) as other:
        error, asked = ask(Reply(None, 308, {"Location": f"{other}/x"}))
    assert f"sends on to {other}/x" in str(error)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "ftp://u:hidden-word@h:1"),
        ("ALL_PROXY", "socks5://h:1"),
        ("SSL_CERT_FILE", "/x"),
    ],
)
def test_an_environment_that_no_request_can_be_sent_with(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    client = HttpClient("http://nowhere.invalid")
    with pytest.raises(ServerError, match="proxy and the certificates") as refused:
        client.request("GET", "/x")
    assert "hidden-word" not in str(refused.value)
    client.close()


def test_a_proxy_is_none_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving(lambda asked: Reply("here")) as url:
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            client = HttpClient(url.replace("127.0.0.1", host))
            assert client.request("GET", "/x") == "here"
            client.close()


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"\xff\xfe",
        b"[" * 100_000,
        b"NaN",
        b'{"a": Infinity}',
        b"1" * 10_000,
        b'"\x1b[31m',
        b"{",
    ],
)
def test_what_is_not_json_is_refused(ask: Callable[..., Any], content: bytes) -> None:
    error, _ = ask(Reply(content))
    assert "something else than JSON" in str(error)
    assert str(error).isprintable()


def test_an_answer_has_a_longest_length(ask: Callable[..., Any]) -> None:
    assert "more than 1000 bytes" in str(ask(Reply("x" * 1000), max_bytes=1000)[0])


def test_a_silent_server_is_given_up_on(ask: Callable[..., Any]) -> None:
    started = time.monotonic()
    error, asked = ask(lambda: time.sleep(20) or Reply("late"), timeout_s=0.2)
    assert "gave no answer in 0.2 s" in str(error)
    assert len(asked) == 1
    assert time.monotonic() - started < 10


def test_a_server_that_drips_is_given_up_on() -> None:
    """Every byte comes in time, the answer does not."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(100):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)
    with pytest.raises(ServerError, match=r"no answer in 0\.3 s"):
        client.request("GET", "/")
    client.close()
    listener.close()


def test_a_connection_that_breaks_is_made_again_where_that_is_safe(
    ask: Callable[..., Any],
) -> None:
    assert ask(None, Reply("yes"))[0] == "yes"
    error, asked = ask(None, Reply("yes"), repeatable=False)
    assert "broke off" in str(error)
    assert len(asked) == 1


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = HttpClient(f"http://127.0.0.1:{port}", tries=2)
    with pytest.raises(ServerError, match="cannot be reached"):
        client.request("GET", "/")
    client.close()
    with pytest.raises(ServerError, match="closed"):
        client.request("GET", "/")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://[::1", "http://", "ftp://x", "http://x:0", "x:1", ""]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ServerError, match="is not the address of a server"):
        HttpClient(url)


@pytest.mark.parametrize(
    "url", ["http://a..b", "http://" + "a" * 300, "http://no-such-host.invalid"]
)
def test_a_host_that_cannot_be_found(url: str) -> None:
    client = HttpClient(url, tries=1)
    with pytest.raises(ServerError, match="cannot be"):
        client.request("GET", "/")
    client.close()


@pytest.mark.parametrize("status", [400, 401, 500])
def test_the_key_is_in_no_error(ask: Callable[..., Any], status: int) -> None:
    error, _ = ask(Reply({"error": f"{KEY} is not a key"}, status))
    assert KEY not in str(error)
    assert KEY not in repr(error)
    assert error.__context__ is None or KEY not in repr(error.__context__)
    for content in (f"<html>{KEY}</html>", "x" * 50 + KEY, "<" * 990 + KEY):
        assert "sk-" not in str(ask(Reply(content.encode()))[0])
    if status == 401:
        assert "refuses the key in TEST_KEY" in str(error)


def test_a_key_that_is_missing_or_cannot_be_one(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_KEY")
    error, (asked,) = ask(Reply({"error": "Unauthorized"}, 401))
    assert "set TEST_KEY" in str(error)
    assert "Authorization" not in asked.headers
    for key in ("a\nb", "schlüssel"):
        monkeypatch.setenv("TEST_KEY", key)
        with pytest.raises(ServerError, match="TEST_KEY") as raised:
            HttpClient("http://127.0.0.1:1", key_env="TEST_KEY")
        assert key not in str(raised.value)


def test_requests_run_at_once_up_to_a_limit_and_can_be_dropped() -> None:
    crowd = Crowd(4)
    with serving(crowd) as url:
        client = HttpClient(url, concurrency=4)
        futures = [client.start("POST", "/", {}) for _ in range(12)]
        assert [future.result() for future in futures] == ["done"] * 12
        assert crowd.most == 4
        futures = [client.start("POST", "/", {}) for _ in range(3)]
        time.sleep(0.05)
        client.close()
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(1)
