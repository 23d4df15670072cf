"""The engine on transformers models: right log-probs, independent lanes, weights that arrive."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.decoders import JointDecoder
from grpo_gym.engines.hf import HFEngine
from grpo_gym.engines.prefill import chunks
from grpo_gym.engines.slow_decoders import SeparateDecoder, WholeDecoder
from grpo_gym.errors import UsageError
from tests.models import VOCABULARY, tiny_model, tiny_tokenizer

WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
FAST = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": WINDOWS,
    "gemma3_text": WINDOWS,
    "mistral": {"sliding_window": 6},
    "gpt2": {},
}
SLOW = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_oss": {
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
WHOLE = {"mamba": {"state_size": 4}, "recurrent_gemma": {"lru_width": 32}, "openai-gpt": {}}
PROMPTS = [[1, 2, 3]] * 3 + [[5, 6, 7, 8, 9, 10, 11, 12]] * 2 + [[9]]


def full_logprobs(model, prompt, completion, temperature=1.0) -> np.ndarray:
    """Log-probs of a completion by one forward pass without any cache."""
    ids = torch.tensor([[*prompt, *map(int, completion)]])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].double() / temperature
    logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[len(prompt) - 1 :].numpy()


def tokens(completions) -> list[list[int]]:
    return [c.token_ids.tolist() for c in completions]


@pytest.mark.parametrize(
    ("kind", "config", "decoder"),
    [(kind, config, JointDecoder) for kind, config in FAST.items()]
    + [(kind, config, SeparateDecoder) for kind, config in SLOW.items()]
    + [(kind, config, WholeDecoder) for kind, config in WHOLE.items()],
)
def test_sampled_logprobs_are_those_of_a_plain_forward_pass(kind, config, decoder):
    model = tiny_model(model_type=kind, **config)
    engine = HFEngine(model, context_length=64)
    assert type(engine._decoder) is decoder
    done = engine.generate(PROMPTS, Sampling(max_tokens=12), range(6))
    assert len({tuple(ids) for ids in tokens(done)}) == 6, "every seed is another draw"
    # Scores of Gemma 2 are squeezed by tanh after sums as large as 100, which rounds more.
    tolerance = 1e-4 if kind == "gemma2" else 1e-5
    for prompt, completion in zip(PROMPTS, done, strict=True):
        expected = full_logprobs(model, prompt, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=tolerance)


@pytest.mark.parametrize("kind", ["qwen2", "bloom"])
def test_greedy_is_what_transformers_generates(kind):
    model = tiny_model(model_type=kind, **SLOW.get(kind, {}))
    prompt = [5, 6, 7]
    (done,) = HFEngine(model, context_length=64).generate(
        [prompt], Sampling(temperature=0, max_tokens=10), [0]
    )
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=10,
        eos_token_id=None,
    )
    assert done.token_ids.tolist() == out[0, 3:].tolist()
    np.testing.assert_allclose(
        done.logprobs, full_logprobs(model, prompt, done.token_ids), atol=1e-5
    )


MODEL = tiny_model(model_type="gemma3_text", **WINDOWS)
KINDS = [Sampling(), Sampling(temperature=0.5, top_p=0.8), Sampling(temperature=0)]


@cache
def engine_of(max_lanes: int) -> HFEngine:
    return HFEngine(MODEL, max_lanes=max_lanes, prefill_tokens=10)


@cache
def alone(request: Request) -> list[int]:
    """What a lane samples when nobody else is there."""
    engine = engine_of(8)
    engine.submit([request])
    while engine.busy:
        done = engine.step()
    return done[0][1].token_ids.tolist()


LANES = st.builds(
    Request,
    id=st.just(0),
    prompt_ids=st.sampled_from([tuple(PROMPTS[i]) for i in (0, 3, 5)]),
    sampling=st.builds(replace, st.sampled_from(KINDS), max_tokens=st.sampled_from([1, 3, 7])),
    seed=st.integers(0, 2),
)


@settings(max_examples=20, deadline=None)
@given(
    waves=st.lists(st.lists(LANES, max_size=4), min_size=1, max_size=6),
    max_lanes=st.sampled_from([1, 3, 64]),
)
def test_a_lane_does_not_depend_on_who_else_is_there_or_when_it_joins(waves, max_lanes):
    wanted = {}
    for wave in waves:
        for lane in wave:
            wanted[len(wanted)] = alone(lane)
    engine, done, names = engine_of(max_lanes), {}, iter(wanted)
    for wave in waves:
        engine.submit([replace(lane, id=next(names)) for lane in wave])
        done |= dict(engine.step())
    while engine.busy:
        done |= dict(engine.step())
    assert {name: c.token_ids.tolist() for name, c in done.items()} == wanted


def test_a_long_stream_of_lanes_stays_right_while_columns_are_reused():
    engine = HFEngine(MODEL, max_lanes=3)
    # Lengths differ, so that the batch is never empty and time goes on.
    engine.submit(
        [Request(i, tuple(PROMPTS[i % 6]), Sampling(max_tokens=8 + i % 3), i) for i in range(40)]
    )
    done = {}
    while engine.busy:
        done |= dict(engine.step())
    assert engine._decoder.cache._sampled.room[1] <= 64, "memory does not grow with time"
    for name in range(40):
        expected = full_logprobs(MODEL, PROMPTS[name % 6], done[name].token_ids)
        np.testing.assert_allclose(done[name].logprobs, expected, atol=1e-5)


def test_one_prompt_is_encoded_once_and_waiting_lanes_keep_their_order():
    engine = HFEngine(MODEL, max_lanes=4)
    seen = []
    hook = MODEL.get_input_embeddings().register_forward_hook(
        lambda module, args, out: seen.append(tuple(args[0].shape))
    )
    prompt = tuple(range(3, 20))
    engine.submit([Request(i, prompt, Sampling(max_tokens=2), i) for i in range(6)])
    order = []
    while engine.busy:
        order += [name for name, _ in engine.step()]
    hook.remove()
    assert seen == [(1, 17), (4, 1), (1, 17), (2, 1)]
    assert sorted(order[:4]) == [0, 1, 2, 3]


def test_chunks_hold_the_budget_and_every_sequence_once():
    lengths = [1, 2, 2, 9, 3, 3, 1, 1]
    got = list(chunks([[0] * n for n in lengths], 6))
    assert [list(chunk) for chunk in got] == [[0, 1, 2], [3], [4, 5], [6, 7]]
    assert list(chunks([], 6)) == []


def test_prompts_of_many_lengths_make_few_logits_at_once(monkeypatch):
    lengths = [1, 2, 2, 3, 3, 3, 3, 4]
    got = list(chunks([[0] * n for n in lengths], 100, most_ends=4))
    assert [list(chunk) for chunk in got] == [[0, 1], [2, 3], [4, 5, 6], [7]]
    engine, made = HFEngine(MODEL), []
    hook = MODEL.get_output_embeddings().register_forward_hook(
        lambda module, args, out: made.append(out.shape[:2].numel())
    )
    plain = engine.generate(PROMPTS, Sampling(max_tokens=1), range(6))
    monkeypatch.setattr("grpo_gym.engines.decoders.LOGITS", 4 * VOCABULARY)
    few = engine.generate(PROMPTS, Sampling(max_tokens=1), range(6))
    hook.remove()
    assert made == [9, 4, 1], "three prompts of three lengths; two of two, and one"
    assert tokens(few) == tokens(plain)


def test_temperature_and_cuts_are_in_the_logprobs():
    engine = HFEngine(MODEL)
    (hot,) = engine.generate([[5]], Sampling(temperature=2.0, max_tokens=8), [1])
    np.testing.assert_allclose(
        hot.logprobs, full_logprobs(MODEL, [5], hot.token_ids, 2.0), atol=1e-5
    )
    (cut,) = engine.generate([[5]], Sampling(top_k=2, max_tokens=8), [1])
    plain = full_logprobs(MODEL, [5], cut.token_ids)
    assert (cut.logprobs > plain + 0.1).all(), "what is left is normalised again"


def test_stop_tokens_and_limits():
    engine = HFEngine(MODEL, context_length=16)
    (free,) = engine.generate([[5]], Sampling(max_tokens=10), [3])
    stop = int(free.token_ids[4])
    (stopped,) = engine.generate([[5]], Sampling(stop_token_ids=(stop,)), [3])
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free.token_ids[:5].tolist()
    assert (free.finish_reason, len(free.token_ids)) == ("length", 10)
    (full,) = engine.generate([[5] * 9], Sampling(max_tokens=10), [3])
    assert (full.finish_reason, len(full.token_ids)) == ("length", 7)


def test_a_stop_string_ends_with_the_token_that_completes_it():
    tokenizer = tiny_tokenizer()
    engine = HFEngine(MODEL, tokenizer)
    (free,) = engine.generate([[5]], Sampling(max_tokens=12), [0])
    text = tokenizer.decode(free.token_ids)
    stop = tokenizer.decode(free.token_ids[4:7])[:-1]
    assert stop in text
    (stopped,) = engine.generate([[5]], Sampling(max_tokens=12, stop=("never", stop)), [0])
    n = len(stopped.token_ids)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free.token_ids[:n].tolist()
    assert stop in tokenizer.decode(stopped.token_ids)
    assert stop not in tokenizer.decode(stopped.token_ids[:-1])
    with pytest.raises(UsageError, match="need a tokenizer"):
        HFEngine(MODEL).generate([[5]], Sampling(stop=("x",)), [0])


def test_top_logprobs_are_reported_where_asked_for():
    engine = HFEngine(MODEL)
    engine.submit(
        [
            Request(0, (5,), Sampling(max_tokens=3, top_logprobs=4), 0),
            Request(1, (5,), Sampling(max_tokens=3), 1),
        ]
    )
    done = {}
    while engine.busy:
        done |= dict(engine.step())
    assert done[1].top_ids is None
    assert done[0].top_ids.shape == done[0].top_logprobs.shape == (3, 4)
    with torch.no_grad():
        expected = MODEL(torch.tensor([[5]])).logits[0, 0].log_softmax(-1).topk(4)
    assert done[0].top_ids[0].tolist() == expected.indices.tolist()
    np.testing.assert_allclose(done[0].top_logprobs[0], expected.values, atol=1e-5)


def test_global_generators_are_left_alone():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    HFEngine(tiny_model(seed=5)).generate([[5]], Sampling(max_tokens=3), [-(2**70)])
    assert random.getstate() == states[0]
    np.testing.assert_array_equal(np.random.get_state()[1], states[1][1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_model_in_training_is_left_as_it_was_and_still_learns():
    model = tiny_model(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    engine = HFEngine(model)
    assert (
        tokens(engine.generate([[5]] * 2, Sampling(max_tokens=6), [1, 1]))[0]
        == (tokens(HFEngine(tiny_model()).generate([[5]], Sampling(max_tokens=6), [1]))[0])
    ), "without dropout"
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == "sdpa"
    loss = model(torch.tensor([[5, 6, 7]])).logits.sum()
    loss.backward()
    assert all(p.grad is not None and not p.is_inference() for p in model.parameters())


@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 7}])
def test_scores_are_those_of_a_plain_forward_pass(options):
    engine = HFEngine(MODEL, **options)
    sequences = [[1, 2, 3], list(range(3, 33)), [4], [], np.array([7, 8])]
    scores = engine.score(sequences, temperature=1.5)
    assert [len(s) for s in scores] == [2, 29, 0, 0, 1]
    for sequence, got in zip(sequences, scores, strict=True):
        if len(sequence) > 1:
            expected = full_logprobs(MODEL, sequence[:1], sequence[1:], 1.5)
            np.testing.assert_allclose(got, expected, atol=1e-5)
    with pytest.raises(UsageError, match="longer than the context"):
        HFEngine(MODEL, context_length=4).score([[1] * 5])


def test_bfloat16_is_close():
    model = tiny_model().bfloat16()
    engine = HFEngine(model)
    done = engine.generate(PROMPTS, Sampling(max_tokens=12), range(6))
    for prompt, completion in zip(PROMPTS, done, strict=True):
        expected = full_logprobs(model, prompt, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=0.3)


def test_loaded_weights_are_sampled_from_and_stamped():
    target, source = tiny_model(seed=0), tiny_model(seed=1)
    engine = HFEngine(target)
    engine.load(source.state_dict(), version=4)
    (done,) = engine.generate([[5]], Sampling(max_tokens=6), [0])
    assert done.version == 4
    np.testing.assert_allclose(done.logprobs, full_logprobs(source, [5], done.token_ids), atol=1e-5)


def test_tied_weights_may_be_left_out_but_not_differ():
    engine = HFEngine(tiny_model(seed=0))
    state = dict(tiny_model(seed=1).state_dict())
    del state["lm_head.weight"]
    engine.load(state, 1)
    assert torch.equal(engine.model.lm_head.weight, state["model.embed_tokens.weight"])
    untied = tiny_model(seed=2, tie_word_embeddings=False).state_dict()
    with pytest.raises(UsageError, match="one weight in the engine's model"):
        engine.load(untied, 2)
    assert engine.version == 1


def test_shared_weights_are_not_copied():
    model = tiny_model()
    engine = HFEngine(model)
    versions = [p._version for p in model.parameters()]
    engine.load(model.state_dict(), 3)
    assert [p._version for p in model.parameters()] == versions
    assert engine.version == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.norm.weight"), "lack model.norm.weight"),
        (lambda s: s.update(extra=torch.ones(1)), "have unknown extra"),
        (
            lambda s: s.update({"model.norm.weight": torch.ones(3)}),
            r"differ in model.norm.weight \(3,\) instead of \(32,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_and_nothing_is_loaded(change, message):
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = dict(tiny_model(seed=1).state_dict())
    change(state)
    with pytest.raises(UsageError, match=message):
        HFEngine(model).load(state, 1)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_diverged_weights_are_an_error_that_the_engine_survives():
    model = tiny_model()
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = HFEngine(model)
    before = tokens(engine.generate([[5]], Sampling(max_tokens=4), [0]))
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match="diverged"):
        engine.generate([[5]], Sampling(max_tokens=4), [0])
    assert not engine.busy
    engine.load(good, 1)
    assert tokens(engine.generate([[5]], Sampling(max_tokens=4), [0])) == before


@pytest.mark.parametrize("bad", [-1, VOCABULARY])
def test_ids_beyond_the_vocabulary_are_refused(bad):
    engine = HFEngine(MODEL)
    with pytest.raises(UsageError, match=f"vocabulary of {VOCABULARY}"):
        engine.generate([[5, bad]], Sampling(), [0])
    with pytest.raises(UsageError, match=f"vocabulary of {VOCABULARY}"):
        engine.score([[5, bad]])
    assert not engine.busy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lanes": 0}, "max_lanes is 0"),
        ({"prefill_tokens": 0}, "prefill_tokens is 0"),
        ({"context_length": 1}, "context_length is 1"),
        ({"context_length": 100000}, "the model takes 2 to 512 tokens"),
    ],
)
def test_options_that_make_no_sense_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        HFEngine(MODEL, **options)


def test_a_model_that_reads_both_ways_is_refused():
    bert = tiny_model(model_type="bert")
    with pytest.raises(UsageError, match="BertLMHeadModel cannot generate token by token"):
        HFEngine(bert, context_length=64)
