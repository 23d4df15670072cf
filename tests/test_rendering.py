"""Chat templates to ids and back, append only, over templates that do awkward things."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_gym.errors import UsageError
from grpo_gym.rendering import Renderer
from tests.models import CHATML, tiny_tokenizer

IM_START, IM_END, EOS = 1, 2, 0

TURN = "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LOOP = "{% for message in messages %}"

STRIPS_THINKING = (
    LOOP + "<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{{ message['content'].split('</think>')[-1] | trim }}"
    "{% else %}{{ message['content'] | trim }}{% endif %}<|im_end|>\n"
    "{% endfor %}" + GENERATION
)
TOOLS_IN_USER_TURNS = (
    LOOP + "{% if message['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>{{ message['content'] }}</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>{{ '\n' }}{% endif %}"
    "{% else %}" + TURN + "{% endif %}{% endfor %}" + GENERATION
)
ALTERNATES = (
    LOOP + "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}" + TURN + "{% endfor %}" + GENERATION
)
PREFILLS_THINKING = (
    LOOP + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    + CHATML
)
EOS_AFTER_SPACE = (
    LOOP + "{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% else %} {{ message['content'] }} <|endoftext|>{% endif %}{% endfor %}"
)
NO_END_OF_TURN = LOOP + "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
APPEND_ONLY = {
    "chatml": CHATML,
    "tools in user turns": TOOLS_IN_USER_TURNS,
    "alternating": ALTERNATES,
    "default system prompt": DEFAULT_SYSTEM,
    "plain": None,
}


def renderer(template: str | None = CHATML, **options) -> Renderer:
    return Renderer(tiny_tokenizer(template), **options)


def say(r: Renderer, text: str, end: bool = True) -> list[int]:
    """A completion that a policy could have sampled."""
    ids = r.tokenizer.encode(text, add_special_tokens=False)
    return [*ids, r.stop_token_ids[0]] if end else ids


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_prompt_is_the_template_with_the_generation_prompt():
    r = renderer()
    ids = r.prompt([{"role": "system", "content": "S"}, user("U")])
    assert r.tokenizer.decode(ids) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_reach_the_template():
    r = renderer("{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML)
    tools = [{"type": "function", "function": {"name": "add", "description": "a <|im_end|> b"}}]
    ids = r.prompt([user("U")], tools)
    assert '"name": "add"' in r.tokenizer.decode(ids)
    assert ids.count(IM_END) == 1


@pytest.mark.parametrize("template", APPEND_ONLY.values(), ids=APPEND_ONLY.keys())
@pytest.mark.parametrize("ended", [True, False])
def test_extending_equals_rendering_the_whole_conversation(template, ended):
    r = renderer(template)
    first, second = [user("What is 1+2?")], [user("And 3+4?")]
    # The plain template leaves it to the policy to begin with a space.
    completion = say(r, " 3" if template is None else "3", ended)
    whole = r.prompt([*first, {"role": "assistant", "content": "3"}, *second])
    assert r.prompt(first) + completion + r.extend(completion, second) == whole


def test_a_default_system_prompt_does_not_appear_again():
    r = renderer(DEFAULT_SYSTEM)
    delta = r.extend(say(r, "3"), [user("next")])
    assert r.tokenizer.decode(delta) == (
        "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_turn_cut_at_a_limit_is_closed():
    r = renderer()
    delta = r.extend(say(r, "3", end=False), [user("next")])
    assert delta[0] == IM_END
    assert r.extend(say(r, "3"), [user("next")]) == delta[1:]


def test_an_empty_completion_is_closed():
    assert renderer().extend([], [user("next")])[0] == IM_END


@pytest.mark.parametrize("template", [STRIPS_THINKING, PREFILLS_THINKING])
def test_templates_that_rewrite_earlier_turns_only_see_the_new_ones(template):
    r = renderer(template)
    completion = say(r, "<think>hm</think>  3  ")
    delta = r.extend(completion, [user(" next ")])
    text = r.tokenizer.decode(delta)
    assert text.startswith("\n<|im_start|>user\n")
    assert "hm" not in text
    assert text.endswith("<think>\n") == (template is PREFILLS_THINKING)


def test_tool_messages_go_where_the_template_puts_them():
    r = renderer(TOOLS_IN_USER_TURNS)
    messages = [{"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}]
    assert r.tokenizer.decode(r.extend(say(r, "call"), messages)) == (
        "\n<|im_start|>user\n<tool_response>4</tool_response>\n<tool_response>5</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_refuses_gives_one_line():
    r = renderer(ALTERNATES)
    with pytest.raises(UsageError, match=r"roles \(user, assistant, user, user\).*alternate"):
        r.extend(say(r, "3"), [user("a"), user("b")])
    with pytest.raises(UsageError, match="fails"):
        renderer("{{ raise_exception('no') }}")
    with pytest.raises(UsageError, match="fails"):
        renderer("{% for %}")
    with pytest.raises(UsageError, match="0 times"):
        renderer("{{ messages[0]['content'] }}")


def test_space_before_the_end_of_turn_belongs_to_it():
    r = renderer(EOS_AFTER_SPACE)
    assert r.stop_token_ids == (EOS, IM_END)
    assert r.tokenizer.decode(r.extend(say(r, "3"), [user("U")])) == "[INST] U [/INST]"
    assert r.tokenizer.decode(r.extend(say(r, "3", end=False), [user("U")])) == (
        " <|endoftext|>[INST] U [/INST]"
    )


def test_a_template_without_end_of_turn_ends_with_eos():
    r = renderer(NO_END_OF_TURN)
    assert r.stop_token_ids == (IM_END,)
    assert r.tokenizer.decode(r.extend(say(r, "3"), [user("U")])) == "\nuser: U\n"


def test_end_of_turn_that_is_not_eos_and_several_eos():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"  # which pads, too
    r = Renderer(tokenizer, eos_token_ids=[EOS, 7])
    assert r.stop_token_ids == (IM_END, EOS, 7)
    plain = r.extend(say(r, "3"), [user("U")])
    for stop in (EOS, 7):
        assert r.extend([20, stop], [user("U")]) == plain, "whichever stop token ended the turn"
    assert Renderer(tokenizer, eos_token_ids=7).stop_token_ids == (IM_END, EOS, 7)


def test_action_is_the_text_without_the_token_that_ended_the_turn():
    r = renderer()
    assert r.action(say(r, " 3, é 😀 ")) == " 3, é 😀 "
    assert r.action(say(r, "3", end=False)) == "3"
    assert r.action([IM_END]) == ""
    assert r.action([]) == ""
    assert r.action([*say(r, "3"), IM_END]) == "3<|im_end|>", "only the last one is dropped"


def test_a_character_cut_in_two_does_not_raise():
    r = renderer()
    ids = say(r, "😀", end=False)
    assert len(ids) > 1
    assert r.action(ids[:-1]) == "�"


SPELLINGS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "<", "|>", "a", "\n"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SPELLINGS), max_size=8).map("".join))
def test_data_cannot_become_control_tokens(text):
    r = renderer()
    for ids, turns in (
        (r.prompt([user(text)]), 1),
        (r.extend(say(r, "3"), [user(text)]), 1),
        (r.prompt([{"role": "system", "content": text}, user(text)]), 2),
    ):
        assert ids.count(IM_START) == turns + 1
        assert ids.count(IM_END) == turns
        assert EOS not in ids
        assert f"user\n{text}<|im_end|>" in r.tokenizer.decode(ids), "the text itself is unchanged"


def test_control_tokens_that_the_tokenizer_does_not_flag_are_guarded_too():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<user>"])
    tokenizer.chat_template = LOOP + "<user>{{ message['content'] }}<|im_end|>{% endfor %}"
    r = Renderer(tokenizer)
    assert r.prompt([user("x<user>y")]).count(400) == 1


def spaced_tokenizer():
    """One that, like those of SentencePiece, begins every text with a space."""
    words = Tokenizer(models.BPE(unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    words.decoder = decoders.Metaspace()
    specials = ["<|im_start|>", "<|im_end|>", "?"]
    trainer = trainers.BpeTrainer(special_tokens=specials, show_progress=False, vocab_size=120)
    words.train_from_iterator(
        ["user assistant What is it? And that | < > im_end start \n"], trainer
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"]
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def test_a_tokenizer_that_begins_every_text_with_a_space_gets_the_same_delta():
    r = Renderer(spaced_tokenizer())
    first, second = [user("What is it?")], [user("And that?")]
    whole = r.prompt([*first, {"role": "assistant", "content": "it"}, *second])
    delta = r.extend(say(r, "it"), second)
    assert whole[-len(delta) :] == delta
    assert whole[-len(delta) - 1] == r.stop_token_ids[0]
    ids = r.prompt([user("it <|im_end|> is")])
    assert ids.count(r.stop_token_ids[0]) == 1


def test_names_and_tool_calls_are_data_too():
    r = renderer(
        LOOP + "{{ message['name'] }}{{ (message['tool_calls'] or []) | tojson }}"
        "{{ message['content'] }}<|im_end|>{% endfor %}"
    )
    message = {
        "role": "user",
        "content": "",
        "name": "<|im_end|>",
        "tool_calls": [{"function": {"name": "f", "arguments": {"<|im_end|>": "<|im_start|>"}}}],
    }
    ids = r.prompt([message])
    assert ids.count(IM_END) == 1
    assert IM_START not in ids


def test_a_base_model_gets_the_plain_template():
    r = renderer(None)
    assert r.tokenizer.decode(r.prompt([user("U")])) == "User: U\n\nAssistant:"
    delta = r.extend(say(r, " 3"), [user("V")])
    assert r.tokenizer.decode(delta) == "\n\nUser: V\n\nAssistant:"


def test_a_template_can_be_given():
    r = Renderer(tiny_tokenizer(), chat_template=NO_END_OF_TURN)
    assert r.tokenizer.decode(r.prompt([user("U")])) == "user: U\n"
