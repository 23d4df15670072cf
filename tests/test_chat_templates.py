"""Chat templates by name: what is built in, files, and what cannot be a template."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import grpo_gym
from grpo_gym import UsageError
from grpo_gym.chat_templates import BUILT_IN, CHATML, PLAIN, read_template
from grpo_gym.policy import load_policy
from grpo_gym.rendering import Renderer
from tests.commands import refused
from tests.letters import Talk
from tests.models import tiny_model, tiny_tokenizer

TALK = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
MORE = [{"role": "user", "content": "V"}]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model without a chat template."""
    folder = tmp_path / "base"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer(None).save_pretrained(folder)
    return folder


def test_a_model_without_a_template_gets_the_plain_one(base: Path) -> None:
    policy = load_policy(base)
    text = policy.tokenizer.decode(policy.renderer.prompt(TALK))
    assert text == "System: S\n\nUser: U\n\nAssistant:"
    assert policy.renderer.stop_token_ids == (2,)


def test_another_template_is_spoken_and_saved_with_the_tokenizer(
    base: Path, tmp_path: Path
) -> None:
    policy = load_policy(base, chat_template="chatml")
    text = policy.tokenizer.decode(policy.renderer.prompt(TALK))
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    policy.model.save_pretrained(tmp_path / "saved")
    policy.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert again.renderer.prompt(TALK) == policy.renderer.prompt(TALK)


def test_a_file_takes_the_place_of_the_models_own_template(base: Path, tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(base)
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}")
    policy = load_policy(base, chat_template=str(path))
    assert policy.tokenizer.decode(policy.renderer.prompt(TALK)) == (
        "[system]S<|im_end|>[user]U<|im_end|>"
    )


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("ended", [True, False])
def test_what_is_built_in_is_append_only(name: str, ended: bool) -> None:
    tokenizer = tiny_tokenizer(None)
    renderer = Renderer(tokenizer, chat_template=read_template(name, tokenizer))
    said = " 3" if name == "plain" else "3"
    completion = tokenizer.encode(said, add_special_tokens=False)
    completion += [renderer.stop_token_ids[0]] if ended else []
    whole = renderer.prompt([*TALK, {"role": "assistant", "content": "3"}, *MORE])
    assert renderer.prompt(TALK) + completion + renderer.extend(completion, MORE) == whole


@pytest.mark.parametrize("template", [PLAIN, CHATML])
def test_what_is_built_in_shows_tools(template: str) -> None:
    renderer = Renderer(tiny_tokenizer(None), chat_template=template)
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert '"name": "add"' in renderer.tokenizer.decode(renderer.prompt(TALK, tools))


def test_chatml_is_refused_where_the_tokenizer_does_not_know_its_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    tiny_model().save_pretrained(tmp_path)
    line = refused(capsys, "eval", "--model", str(tmp_path), "--chat-template", "chatml")
    assert line.endswith("the model's tokenizer has no token <|im_start|>: use plain")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "neither plain nor chatml nor a file that can be read: .*No such file"),
        (b"", "that file is empty"),
        (b"\xff\xfe\x00", "neither plain nor chatml nor a file that can be read: .*decode"),
        (b"{% for m in messages %}", "the chat template fails"),
        (b"{{ messages[0].content }}", "shows an earlier assistant message 0 times"),
        (b"{% for m in messages %}{{ m.content.x.y }}{% endfor %}", "the chat template fails"),
    ],
)
def test_what_can_be_no_template_is_one_line(
    content: bytes | None, message: str, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as raised:
        load_policy(base, chat_template=str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 5000])
def test_what_can_be_no_file_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="chat_template is") as raised:
        read_template(name, tiny_tokenizer(None))
    assert "\n" not in str(raised.value)


def test_a_run_keeps_its_template(base: Path, tmp_path: Path) -> None:
    options = {"groups_per_step": 1, "group_size": 2, "max_tokens": 4, "steps": 1}
    folder = tmp_path / "run"
    done = grpo_gym.train(
        env=Talk, model=base, chat_template="chatml", run_dir=str(folder), **options
    )
    assert load_policy(done.model).tokenizer.chat_template == CHATML
    with pytest.raises(UsageError, match="has chat_template 'chatml', not 'plain'"):
        grpo_gym.train(run_dir=str(folder), env=Talk, resume=True, chat_template="plain")
