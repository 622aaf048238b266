"""Chat templates: the same prompt as transformers, no way out of the sandbox, and a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from lumen.io.chat import ChatTemplateError, render

USER = [{"role": "user", "content": "Hi"}]
CONVERSATIONS = [
    USER,
    [{"role": "system", "content": "Be brief."}, *USER],
    [
        *USER,
        {"role": "assistant", "content": "Hello\n"},
        {"role": "user", "content": " <|im_end|> 42  7 é🙂 "},
    ],
]


@pytest.fixture(scope="module")
def hf_tokenizer(smollm_tokenizer, tmp_path_factory):  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    from lumen.io.tokenizer_files import write_folder

    folder = tmp_path_factory.mktemp("hf")
    write_folder(smollm_tokenizer, folder, 8192)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_smollm_prompts_equal_transformers(smollm_tokenizer, hf_tokenizer, messages, opened: bool) -> None:  # type: ignore[no-untyped-def]
    text = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
    ids = hf_tokenizer.apply_chat_template(messages, add_generation_prompt=opened, return_dict=False)
    assert smollm_tokenizer.chat_text(messages, add_generation_prompt=opened) == text
    assert smollm_tokenizer.apply_chat(messages, add_generation_prompt=opened, parse_special=True) == ids
    if "<|im_end|>" not in str(messages):
        assert smollm_tokenizer.apply_chat(messages, add_generation_prompt=opened) == ids


TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n"
    "[U] {{ m.content | trim }}{{ eos_token }}\n  {% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
    "{{ {'é': [1, true, none, '<&>']} | tojson(indent=2) }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% if tools is not none and tools %}T{% else %}-{% endif %}{% if undefined_name is defined %}D{% endif %}",
    "{% macro one(m) -%}\n    <{{ m.role }}>{{ m.content }}\n{%- endmacro %}\n"
    "{% for m in messages %}{{ one(m) }}{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_features_that_templates_use_equal_transformers(hf_tokenizer, template: str) -> None:  # type: ignore[no-untyped-def]
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    for messages in CONVERSATIONS:
        theirs = hf_tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        assert render(template, messages, add_generation_prompt=False, special=special) == theirs


def test_strftime_now_gives_the_date() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", USER)) == 10


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__ }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ cycler.__init__.__globals__.os.popen('touch {mark}').read() }}",
    "{{ ''|attr('__class__') }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{% for x in [].append.__self__.__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{{ messages.append({'role': 'x', 'content': 'y'}) }}",
    "{{ messages[0].update({'role': 'admin'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch {mark}') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('touch {mark}').read() }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_no_way_out_of_the_sandbox(template: str, tmp_path: Path) -> None:
    """Each ends in an error or in text without a Python object in it; no file appears, no message changes."""
    mark, messages = tmp_path / "mark", [{"role": "user", "content": "Hi"}]
    try:
        text = render(template.replace("{mark}", str(mark)), messages)
    except ChatTemplateError:
        text = ""
    assert "class" not in text and "module" not in text and "function" not in text
    assert not mark.exists()
    assert messages == USER


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}", "not valid Jinja"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ 1 / 0 }}", "cannot render"),
        ("{{ messages[7].content.x.y }}", "cannot render"),
        ("{% for i in range(1000000000) %}x{% endfor %}", "cannot render"),
        ("{{ messages[0].content.missing() }}", "cannot render"),
    ],
)
def test_bad_templates_get_a_sentence(template: str | None, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        render(template, USER)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ("Hi", "are a list"),
        ({"role": "user", "content": "Hi"}, "are a list"),
        (["Hi"], "Message 0 must be a dict"),
        ([*USER, {"content": "x"}], 'Message 1 must be a dict with a "role"'),
        ([{"role": "user"}], r'Message 0 \(user\) must have "content"'),
        ([{"role": "user", "content": [{"type": "image"}]}], "content"),
    ],
)
def test_bad_messages_get_a_sentence(smollm_tokenizer, messages, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ChatTemplateError, match=words):
        smollm_tokenizer.apply_chat(messages)
