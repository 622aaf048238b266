# ruff: noqa: E501
"""A dozen chat templates of the shapes that models ship, written for these tests: each uses what its family relies on."""

from __future__ import annotations

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3_TOOLS = """\
{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if tools is not defined %}{% set tools = none %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + eos_token }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + eos_token }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" + eos_token }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set user_messages = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs have nine characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" ~ (tool | tojson) }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' ~ content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\\n\\n' %}{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}{% for message in turns %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}{% if message['content'] is string %}{{ message['content'] | trim }}{% elif message['content'] is iterable %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{ '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(is_first=false, is_tool=false, system='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = ns.system + message['content'] %}{%- endif %}{%- endfor %}
{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] %}
{%- if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{%- set ns.is_tool = false -%}
{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}
{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{ '\\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}
"""

HERMES = """\
{%- macro kind(spec) %}
    {%- if spec.type == "array" %}{{- "list[" + kind(spec["items"]) + "]" }}
    {%- elif spec.type == "object" and spec.properties %}
        {{- "{" }}{%- for name, inner in spec.properties.items() %}{{- name ~ ": " ~ kind(inner) }}{%- if not loop.last %}, {% endif %}{%- endfor %}{{- "}" }}
    {%- elif spec.type is iterable and spec.type is not string %}{{- spec.type | join(" | ") }}
    {%- else %}{{- spec.type | default("any") }}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if tools %}
    {{- "<|im_start|>system\\n<tools> " }}
    {%- for tool in tools | map(attribute="function") %}
        {{- tool.name + "(" }}
        {%- for name, spec in tool.parameters.properties.items() %}{{- name + ": " + kind(spec) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
        {{- ")\\n" + tool.description | replace("\\n", " ") | indent(4, true) }}
        {{- {"required": tool.parameters.required | default([]) | sort} | tojson(sort_keys=True, separators=(",", ":")) }}
    {%- endfor %}
    {{- " </tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- set ns = namespace(open=false) %}
    {{- "<|im_start|>" + message.role }}{% if message.name is defined %}{{ " name=" + message.name }}{% endif %}{{ "\\n" }}
    {%- if message.refusal %}{{ "[refused] " ~ message.refusal }}{% endif %}
    {{- message.content if message.content is not none and message.content is defined else "" }}
    {%- for call in message.tool_calls | default([], true) %}{{ "\\n<tool_call>" ~ call | tojson(ensure_ascii=True, indent=2) ~ "</tool_call>" }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
"""

DOCUMENTS = """\
{% if documents %}{% for doc in documents %}
<doc id="{{ loop.index }}" title={{ doc.title | tojson }}>
{{ doc.text | trim | truncate(40, true, "...", 0) }}
</doc>
{% endfor %}{% endif %}
{% for message in messages if message.role != 'tool' %}
    {% if loop.index > 20 %}{% break %}{% endif %}
    {% if not message.content %}{% continue %}{% endif %}
{{ loop.cycle('A', 'B') }} {{ loop.revindex }} {{ message.role | capitalize }}: {% generation %}{{ message.content if message.content is string else message.content | map(attribute='text') | join(' + ') }}{% endgeneration %}

{% endfor %}
"""

MARKERS = """\
{% set sep = style | default('###') %}{% for m in messages %}{{ sep }} {{ m.role | upper }}{{ ' (%s)' % m.name if m.name }}:
{{ '{}'.format(m.content) if m.content is string }}{{ eos_token if m.role == 'assistant' }}
{% endfor %}{{ 'Answer' | center(12) if add_generation_prompt }}{{ ('a', 'b') | join('-') }}{{ [3, 1, 2] | sort | max }}
"""

CALL_BLOCK = """\
{% macro turn(role) %}<|{{ role }}|>{{ caller() }}<|end|>{% endmacro %}
{% for m in messages %}{% call turn(m.role) %}{% filter trim %}{{ m.content }}{% endfilter %}{% endcall %}{% endfor %}
{% set tail %}{% if add_generation_prompt %}<|assistant|>{% endif %}{% endset %}{{ tail }}
"""

LOOPED = """\
{% for level in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ level.n }}{{ loop.depth }}{{ loop(level.c) if level.c }}{% endfor %}
{% for role, group in messages | groupby('role') %}{{ role }}={{ group | length }} {% endfor %}
{{ messages | map(attribute='role') | unique | list | tojson }} {{ dict(a=1) | dictsort }} {{ range(3) | list }}
{{ messages[-1].content if messages[-1].content is string }} {{ 7 // 2 * 3 % 4 + 2 ** 3 }} {{ 'a' * 3 ~ 1.5 }} {{ 'x' in 'xyz' }}
"""

JSON = """\
{{ messages | tojson }}|{{ messages | tojson(indent=1) }}|{{ messages | tojson(sort_keys=true) }}
{{ {'b': [1, 2.5, none, true], 'a': 'é<&>"\\\\'} | tojson(ensure_ascii=true, separators=[', ', ':']) }}
{{ messages | tojson(indent='\\t', sort_keys=true) }}
"""

ALL = {
    "chatml": CHATML, "llama3": LLAMA3_TOOLS, "mistral": MISTRAL, "qwen": QWEN_TOOLS, "gemma": GEMMA, "deepseek": DEEPSEEK,
    "hermes": HERMES, "documents": DOCUMENTS, "markers": MARKERS, "call": CALL_BLOCK, "looped": LOOPED, "json": JSON,
}  # fmt: skip
