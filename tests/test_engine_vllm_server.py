"""The client of a vLLM server, against a stand-in: what it asks for, and what it does not believe."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from grpo_gym.engines import http, pulse
from grpo_gym.engines.base import EngineFailure, Request, Sampling, Sharing
from grpo_gym.engines.http import ServerError
from grpo_gym.engines.vllm_server import VLLMServerEngine
from grpo_gym.errors import UsageError
from tests.fake_vllm import GENERATE, TOKEN, FakeVLLM
from tests.loopback import Asked, Crowd, Reply, serving
from tests.models import VOCABULARY, tiny_model

KEY = "sk-not-to-be-seen"


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model()


@pytest.fixture
def server(model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeVLLM:
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    return FakeVLLM(model, tmp_path)


@pytest.fixture
def connect(server: FakeVLLM, model: PreTrainedModel) -> Iterator[Callable[..., VLLMServerEngine]]:
    engines: list[VLLMServerEngine] = []
    with serving(server) as url:

        def connect(**options: Any) -> VLLMServerEngine:
            engines.append(VLLMServerEngine(url, model.config, **options))
            return engines[-1]

        yield connect
        for engine in engines:
            engine.close()


@pytest.fixture
def engine(
    connect: Callable[..., VLLMServerEngine], model: PreTrainedModel, server: FakeVLLM
) -> VLLMServerEngine:
    engine = connect(timeout_s=5)
    engine.load(model.state_dict(), 0)
    server.calls.clear()
    return engine


def test_a_request_says_all_that_decides_a_completion(
    engine: VLLMServerEngine, server: FakeVLLM
) -> None:
    sampling = Sampling(
        temperature=0.7, top_p=0.9, top_k=8, min_p=0.1, max_tokens=9, stop=("x",), top_logprobs=3
    )
    (done,) = engine.generate([[1, 2]], sampling, [2**64 - 1])
    assert server.bodies[0]["token_ids"] == [1, 2]
    assert server.bodies[0]["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 8,
        "min_p": 0.1,
        "max_tokens": 9,
        "stop": ["x"],
        "stop_token_ids": [],
        "seed": 2**63 - 1,
        "logprobs": 4,
        "ignore_eos": True,
        "detokenize": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    assert done.token_ids.tolist() == [TOKEN] * 9
    assert done.logprobs.tolist() == [-1.0] * 9
    assert (done.finish_reason, done.version) == ("length", 0)
    assert done.top_ids is not None
    assert done.top_logprobs is not None
    assert done.top_ids[0].tolist() == [TOKEN, 0, 1]
    assert done.top_logprobs[0].tolist() == [-1.0, -2.0, -2.0]
    (cut,) = engine.generate([[1]], Sampling(stop_token_ids=(TOKEN,)), [0])
    assert (cut.finish_reason, cut.token_ids.tolist(), cut.top_ids) == ("stop", [TOKEN], None)
    (full,) = engine.generate([[1] * 60], Sampling(max_tokens=9), [0])
    assert len(full.token_ids) == 4, "the context holds no more"
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)


def test_clients_that_share_a_server_know_its_weights_and_one_of_them_loads_them(
    connect: Callable[..., VLLMServerEngine], server: FakeVLLM, model: PreTrainedModel
) -> None:
    first, second = (connect(sharing=Sharing("both", leads)) for leads in (True, False))
    for version in (0, 1):
        server.calls.clear()
        second.load({}, version)
        assert server.calls == []
        first.load(model.state_dict(), version)
        for engine in (first, second):
            assert engine.generate([[1, 2]], Sampling(max_tokens=3), [0])[0].version == version
    assert first.score([[1, 2, 3]], 0.5)[0].tolist() == [-3.0, -2.0]
    server.calls.clear()
    with pytest.raises(RuntimeError, match="only the one that leads scores"):
        second.score([[1, 2, 3]], 0.5)
    assert server.calls == []
    first.load(model.state_dict(), 2)  # and the other one does not hear of it
    with pytest.raises(EngineFailure, match="not those that were loaded"):
        second.generate([[1, 2]], Sampling(max_tokens=3), [0])


def test_weights_are_taken_while_the_server_pauses(
    engine: VLLMServerEngine, server: FakeVLLM, model: PreTrainedModel
) -> None:
    state = {
        name: value + 1 for name, value in model.state_dict().items() if name != "lm_head.weight"
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    engine.load(state, 7)
    assert server.calls == [
        "/pause?mode=wait",
        "/update_weight_version",
        "grpo_gym_load",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]
    assert server.loaded.keys() == state.keys() - {"lm_head.weight"}, "tied weights travel once"
    for name, value in server.loaded.items():
        assert torch.equal(value, state[name])
    assert list(server.folder.iterdir()) == [], "the file is gone"
    (done,) = engine.generate([[1]], Sampling(max_tokens=2), [0])
    assert done.version == 7
    engine.load(state, 7)
    assert engine.generate([[1]], Sampling(max_tokens=2), [0])[0].version == 7


def test_scores_are_asked_for_at_a_temperature_and_the_scale_is_put_back(
    engine: VLLMServerEngine, server: FakeVLLM
) -> None:
    first, second, third = engine.score([[1, 2, 3], [4], [7, 0]], 0.5)
    assert first.tolist() == [-3.0, -2.0]
    assert second.tolist() == []
    assert third.tolist() == [-2.0]
    assert server.calls == [
        "grpo_gym_scale_logits",
        GENERATE,
        GENERATE,
        "grpo_gym_scale_logits",
    ]
    server.calls.clear()
    server.change = lambda answer: {}
    with pytest.raises(EngineFailure):
        engine.score([[1, 2, 3]], 0.5)
    assert server.calls[-1] == "grpo_gym_scale_logits"
    server.calls.clear()
    engine.score([[3]], 0)
    assert server.calls == []


def test_lanes_go_on_individually(engine: VLLMServerEngine, server: FakeVLLM) -> None:
    """The first waits until the others, that join later, are done."""
    late = [2]

    def slow(answer: Any) -> Any:
        if len(answer["choices"][0]["token_ids"]) == 1:
            until = time.monotonic() + 5
            while late[0] and time.monotonic() < until:
                time.sleep(0.005)
        return answer

    server.change = slow
    engine.submit([Request(0, (1,), Sampling(max_tokens=1), 0)])
    order = []
    for name in (1, 2):
        engine.submit([Request(name, (1,), Sampling(max_tokens=2), 0)])
        while len(order) < name:
            order += [name for name, _ in engine.step()]
        late[0] -= 1
    while engine.busy:
        order += [name for name, _ in engine.step()]
    assert order == [1, 2, 0]


def test_requests_are_in_flight_at_once_up_to_max_lanes(
    connect: Callable[..., VLLMServerEngine], server: FakeVLLM, model: PreTrainedModel
) -> None:
    crowd = Crowd(3)
    engine = connect(max_lanes=3)
    engine.load(model.state_dict(), 0)
    server.change = lambda answer: crowd() and answer
    engine.generate([[1]] * 9, Sampling(max_tokens=2), range(9))
    assert crowd.most == 3


def test_what_is_in_flight_can_be_dropped(engine: VLLMServerEngine, server: FakeVLLM) -> None:
    server.change = lambda answer: time.sleep(0.3) or answer
    engine.submit([Request(0, (1,), Sampling(max_tokens=1), 0)])
    with pytest.raises(UsageError, match="id 0 is in flight"):
        engine.submit([Request(0, (1,), Sampling(max_tokens=1), 0)])
    with pytest.raises(UsageError, match="1 requests are in flight"):
        engine.score([[1, 2]])
    until = time.monotonic() + 10
    while GENERATE not in server.calls:
        assert time.monotonic() < until
        time.sleep(0.01)
    engine.abort()
    assert not engine.busy
    assert engine.step() == []


def test_weights_that_come_under_requests_in_flight(
    engine: VLLMServerEngine, server: FakeVLLM, model: PreTrainedModel
) -> None:
    """They stop where they are, and every token has the version that sampled it."""
    names, loaded = [server.weights], threading.Event()

    def spans(answer: Any) -> Any:
        assert loaded.wait(10)
        bounds = [0, 2, 5, 6]
        return choice(
            weight_versions=[
                {"version": name, "start": start, "end": end}
                for name, start, end in zip(names, bounds[:-1], bounds[1:], strict=True)
            ]
        )(answer)

    server.change = spans
    engine.submit([Request(0, (1,), Sampling(max_tokens=6), 0)])
    for version in (3, 4):
        engine.load(model.state_dict(), version)
        names.append(server.weights)
    assert server.calls.count("/pause?mode=keep") == 2
    loaded.set()
    while not (ended := engine.step()):
        continue
    ((_, done),) = ended
    assert done.token_versions.tolist() == [0, 0, 3, 3, 3, 4]
    assert done.version == 4
    # What was loaded before a request came is none of its weights.
    with pytest.raises(EngineFailure, match="not those that were loaded"):
        engine.generate([[1]], Sampling(max_tokens=6), [0])


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], Sampling(), "empty prompt"),
        ([3] * 64, Sampling(), "leaves no room"),
        ([VOCABULARY], Sampling(), "vocabulary"),
        ([-1], Sampling(), "vocabulary"),
        ([3], Sampling(temperature=0.001), "at least 0.01"),
        ([3], Sampling(top_p=0), "top_p"),
    ],
)
def test_what_cannot_be_sampled_is_refused_and_nothing_is_in_flight(
    engine: VLLMServerEngine, prompt: list[int], sampling: Sampling, message: str
) -> None:
    good = Request(0, (1, 2, 3), Sampling(max_tokens=3), 0)
    with pytest.raises(UsageError, match=message):
        engine.submit([good, Request(1, tuple(prompt), sampling, 0)])
    assert not engine.busy


def choice(**changes: Any) -> Callable[[Any], Any]:
    """An answer with another field of its choice."""
    return lambda answer: {"choices": [answer["choices"][0] | changes]}


def spans(*bounds: tuple[Any, Any]) -> Callable[[Any], Any]:
    """An answer whose only weights have these spans."""

    def change(answer: Any) -> Any:
        (span,) = answer["choices"][0]["weight_versions"]
        return choice(weight_versions=[span | {"start": a, "end": b} for a, b in bounds])(answer)

    return change


def entry(**changes: Any) -> Callable[[Any], Any]:
    """An answer with another field of its first token's log-prob."""

    def change(answer: Any) -> Any:
        answer["choices"][0]["logprobs"]["content"][0] |= changes
        return answer

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: None,
        lambda answer: [],
        lambda answer: "choices",
        lambda answer: {},
        lambda answer: {"choices": {}},
        lambda answer: {"choices": []},
        lambda answer: {"choices": ["x"]},
        lambda answer: {"choices": answer["choices"] * 2},
        choice(token_ids=None),
        choice(token_ids=[]),
        choice(token_ids=[TOKEN] * 2),
        choice(token_ids=[TOKEN] * 4),
        choice(token_ids=[TOKEN, TOKEN, VOCABULARY]),
        choice(token_ids=[TOKEN, TOKEN, -1]),
        choice(token_ids=[TOKEN, TOKEN, True]),
        choice(token_ids=[TOKEN, TOKEN, 5.0]),
        choice(token_ids=[TOKEN, TOKEN, [5]]),
        choice(finish_reason="stop"),
        choice(finish_reason="abort"),
        choice(finish_reason=None),
        choice(finish_reason={}),
        choice(finish_reason=KEY),
        choice(finish_reason="\x1b[2J" + "x" * 10_000),
        choice(weight_versions=[{"version": KEY, "start": 0, "end": 3}]),
        choice(weight_versions=[{"version": ["\n"], "start": 0, "end": 3}]),
        choice(logprobs=None),
        choice(logprobs=[]),
        choice(logprobs={"content": None}),
        choice(logprobs={"content": [None] * 3}),
        choice(logprobs={"content": []}),
        choice(weight_versions=None),
        choice(weight_versions=[]),
        choice(weight_versions=["x"]),
        spans((0, 2)),
        spans((1, 3)),
        spans((0, 4)),
        spans((0, 1), (1, 3)),
        spans((0, None)),
        spans((0, 3.0)),
        spans((0, 0), (0, 3)),
        entry(logprob=None),
        entry(logprob="-1"),
        entry(logprob=0.5),
        entry(logprob=-9999.0),
        entry(logprob=-(10**400)),
        entry(logprob=True),
        entry(token_id=6),
        entry(top_logprobs=None),
        entry(top_logprobs=[{"token_id": TOKEN, "logprob": -1.0}]),
        entry(top_logprobs=[{"token_id": TOKEN, "logprob": None}] * 3),
        entry(top_logprobs=[{"token_id": {}, "logprob": -1.0}] * 3),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_in_one_line(
    engine: VLLMServerEngine, server: FakeVLLM, change: Callable[[Any], Any]
) -> None:
    server.change = change
    with pytest.raises(EngineFailure) as raised:
        engine.generate([[1, 2]], Sampling(max_tokens=3, top_logprobs=2), [0])
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600
    assert KEY not in str(raised.value)
    assert not engine.busy
    server.change = lambda answer: answer
    engine.generate([[1, 2]], Sampling(max_tokens=3), [0])


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer | {"prompt_logprobs": None},
        lambda answer: answer | {"prompt_logprobs": []},
        lambda answer: answer | {"prompt_logprobs": [None] * 3},
        lambda answer: answer | {"prompt_logprobs": [None, {"2": 1}, {"3": 1}]},
        lambda answer: answer | {"prompt_logprobs": [None, {"9": {"logprob": -1}}] * 2},
        entry(top_logprobs=[]),
        choice(logprobs=None),
    ],
)
def test_scores_that_make_no_sense_are_refused(
    engine: VLLMServerEngine, server: FakeVLLM, change: Callable[[Any], Any]
) -> None:
    server.change = change
    with pytest.raises(EngineFailure, match="makes no sense"):
        engine.score([[1, 2, 3, 4]])


def test_other_weights_than_those_loaded_last_are_found_out(
    engine: VLLMServerEngine, server: FakeVLLM, model: PreTrainedModel
) -> None:
    ours, server.weights = server.weights, "default"  # as after a restart
    with pytest.raises(EngineFailure, match=r"'default', which are not"):
        engine.generate([[1]], Sampling(max_tokens=2), [0])
    with pytest.raises(EngineFailure, match="'default'"):
        engine.score([[1, 2]])
    server.weights = ours
    server.change = choice(
        weight_versions=[
            {"version": ours, "start": 0, "end": 1},
            {"version": "another", "start": 1, "end": 2},
        ]
    )
    with pytest.raises(EngineFailure, match="somebody else loads weights"):
        engine.generate([[1]], Sampling(max_tokens=2), [0])


def test_nothing_is_sampled_with_weights_that_were_never_loaded(
    connect: Callable[..., VLLMServerEngine], server: FakeVLLM
) -> None:
    engine = connect()
    with pytest.raises(EngineFailure, match="'default'"):
        engine.generate([[1]], Sampling(max_tokens=2), [0])


@pytest.mark.parametrize(
    ("call", "reply", "message"),
    [
        ("grpo_gym_load", Reply({"error": "oom"}, 500), "answers 500: oom"),
        ("grpo_gym_load", Reply({"results": [{"error": "finds no file"}]}), "both see"),
        ("grpo_gym_load", Reply({"results": [{"error": f"{KEY}\x1b"}]}), r"\*\*\* +: weights"),
        ("grpo_gym_load", Reply({"results": []}), "no results"),
        ("grpo_gym_load", Reply([]), "no results"),
        (
            "/reset_prefix_cache?reset_running_requests=true",
            Reply({"success": False}),
            "kept a cache",
        ),
        ("/pause?mode=wait", Reply({"error": "no"}, 400), "answers 400"),
        ("/resume", Reply({"error": "no"}, 500), "answers 500"),
        ("/update_weight_version", None, "broke off"),
    ],
)
def test_a_load_that_fails_says_why_and_lets_the_server_go_on(
    engine: VLLMServerEngine,
    server: FakeVLLM,
    model: PreTrainedModel,
    call: str,
    reply: Reply | None,
    message: str,
) -> None:
    server.instead = {call: reply}
    with pytest.raises((EngineFailure, UsageError), match=message):
        engine.load(model.state_dict(), 1)
    assert server.calls[-1] == "/resume"
    assert engine.version == 0
    assert list(server.folder.iterdir()) == []


def test_weights_that_do_not_fit_or_cannot_be_written_are_never_sent(
    engine: VLLMServerEngine, server: FakeVLLM, model: PreTrainedModel
) -> None:
    with pytest.raises(UsageError, match=r"lack model\.norm\.weight"):
        engine.load({k: v for k, v in model.state_dict().items() if k != "model.norm.weight"}, 1)
    server.folder.rmdir()
    with pytest.raises(UsageError, match=r"not on this machine.*GRPO_GYM_WEIGHTS_DIR"):
        engine.load(model.state_dict(), 1)
    server.folder.write_text("")
    with pytest.raises(UsageError, match="not on this machine"):
        engine.load(model.state_dict(), 1)
    assert server.calls == []


@pytest.mark.parametrize("refused", ["stat", "unlink"])
def test_a_folder_that_may_not_be_used_is_told(
    engine: VLLMServerEngine,
    server: FakeVLLM,
    model: PreTrainedModel,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Removing what is not there fails, too, on a file system that can only be read."""
    real = getattr(os, refused)

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(str(server.folder)):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, *args, **options)

    def not_written(tensors: Any, path: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("safetensors.torch.save_file", not_written)
    monkeypatch.setattr(os, refused, refuse)
    with pytest.raises(UsageError, match=r"not on this machine|cannot be written"):
        engine.load(model.state_dict(), 1)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"detail": "Not Found"}, 404), "no vLLM server that takes weights; start it by"),
        (Reply("", 405), "no vLLM server that takes weights"),
        (Reply({"error": "'X' has no attribute"}, 500), "without our worker extension"),
        (Reply({"error": "dead"}, 500), "answers 500: dead"),
        (Reply({"error": "Unauthorized"}, 401), "refuses the key in VLLM_API_KEY"),
        (Reply(b"<html>"), "something else than JSON"),
        (Reply({"results": "x"}), "no results"),
        (Reply({"results": [3]}), "another version of grpo-gym"),
        (None, "broke off"),
    ],
)
def test_a_server_that_is_none_of_ours_is_refused(
    connect: Callable[..., VLLMServerEngine],
    server: FakeVLLM,
    reply: Reply | None,
    message: str,
) -> None:
    server.instead = {"grpo_gym_describe": reply}
    with pytest.raises(ServerError, match=message) as raised:
        connect()
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": 99}, "another version of grpo-gym"),
        ({"logprobs_mode": "raw_logprobs"}, "reports raw_logprobs"),
        ({"logprobs_mode": KEY}, r"reports \*\*\*"),
        ({"dtype": "bfloat16"}, "weights are bfloat16, .* needs float32"),
        ({"head_dtype": "bfloat16"}, "logits in bfloat16, but fp32_lm_head needs float32"),
        ({"model": {"vocab_size": 7}}, "has vocab_size 7, the policy 400: serve the same model"),
        ({"model": {"model_type": "llama"}}, "has model_type llama, the policy qwen2"),
        ({"logprobs_mode": "\x1b[2J\nraw"}, "reports"),
        ({"context_length": 1e400}, "something else than JSON"),
        ({"model": 3}, "describes itself badly"),
        ({"context_length": "x"}, "describes itself badly"),
        ({"context_length": 0}, "describes itself badly"),
        ({"vocabulary": None}, "describes itself badly"),
        ({"vocabulary": 10**9}, "describes itself badly"),
    ],
)
def test_a_server_that_does_not_fit_the_policy_is_refused(
    connect: Callable[..., VLLMServerEngine],
    server: FakeVLLM,
    changes: dict[str, Any],
    message: str,
) -> None:
    server.said |= changes
    with pytest.raises(UsageError, match=message) as raised:
        connect(dtype="float32", float32_head=True)
    assert str(raised.value).isprintable()


def test_a_server_that_falls_silent_or_dies_stops_the_run(
    model: PreTrainedModel, server: FakeVLLM
) -> None:
    dead = threading.Event()

    def answer(asked: Asked) -> Reply | None:
        if asked.path == GENERATE:
            time.sleep(20)
        return None if dead.is_set() else server(asked)

    with serving(answer) as url:
        engine = VLLMServerEngine(url, model.config, timeout_s=0.3)
        engine.load(model.state_dict(), 0)
        started = time.monotonic()
        with pytest.raises(EngineFailure, match=r"no answer in 0\.3 s"):
            engine.generate([[1]] * 3, Sampling(max_tokens=2), range(3))
        assert time.monotonic() - started < 10
        assert not engine.busy
        engine.submit([Request(0, (1,), Sampling(max_tokens=2), 0)])
    dead.set()
    with pytest.raises(EngineFailure, match=r"no answer|cannot be reached|broke off"):
        finish(engine)
    with pytest.raises(EngineFailure):
        engine.load(model.state_dict(), 1)
    engine.close()
    engine.close()


@pytest.mark.parametrize("health", [Reply({}), Reply("dead", 503), None])
def test_a_server_that_is_silent_for_long_is_asked_for_its_health(
    engine: VLLMServerEngine,
    server: FakeVLLM,
    health: Reply | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A completion may take long, where the server is well meanwhile."""
    monkeypatch.setattr(pulse, "_SILENCE_S", 0.05)
    server.instead = {"/health": health}
    server.change = lambda answer: time.sleep(1) or answer
    request = Request(0, (1,), Sampling(max_tokens=2), 0)
    for _ in range(2):
        server.calls.clear()
        engine.submit([request])
        if health == Reply({}):
            finish(engine)
            assert server.calls.count("/health") >= 2
        else:
            with pytest.raises(EngineFailure, match="/health"):
                finish(engine)
            assert not engine.busy


@pytest.mark.timeout(60)
def test_a_full_batch_holds_up_nothing_that_is_said_beside_it(
    connect: Callable[..., VLLMServerEngine],
    model: PreTrainedModel,
    server: FakeVLLM,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the question whether a silent server is well, nor new weights."""
    monkeypatch.setattr(pulse, "_SILENCE_S", 0.05)
    monkeypatch.setattr(pulse, "_ANSWER_S", 0.5)
    loaded = threading.Event()
    server.change = lambda answer: loaded.wait(20) and answer
    engine = connect(max_lanes=2)
    engine.load(model.state_dict(), 0)
    engine.submit([Request(i, (1,), Sampling(max_tokens=2), i) for i in range(3)])
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert engine.step() == []
    assert "/health" in server.calls
    engine.load(model.state_dict(), 1)
    loaded.set()
    finish(engine)


def test_a_server_that_stands_still_is_found_out(
    model: PreTrainedModel, server: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and says nothing, to whatever it is asked."""
    monkeypatch.setattr(pulse, "_SILENCE_S", 0.1)
    monkeypatch.setattr(pulse, "_ANSWER_S", 0.3)
    still = threading.Event()

    def answer(asked: Asked) -> Reply | None:
        if still.is_set():
            time.sleep(5)
        return server(asked)

    with serving(answer) as url:
        engine = VLLMServerEngine(url, model.config)
        engine.load(model.state_dict(), 0)
        still.set()
        engine.submit([Request(0, (1,), Sampling(max_tokens=2), 0)])
        with pytest.raises(EngineFailure, match=r"/health gave no answer in 0\.3 s"):
            finish(engine)
        engine.close()


def finish(engine: VLLMServerEngine) -> None:
    while engine.busy:
        engine.step()
