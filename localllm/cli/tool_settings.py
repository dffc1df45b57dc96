"""Settings with which common tools ask a server of ours: one table.

{url} is the address of the API, {model} a model's name, {key} what to send as the key. In JSON the
braces of the format itself are doubled.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tool:
    """A row. where: the place that the text belongs to."""

    name: str
    where: str
    text: str


_SHELL = "a shell"
TOOLS: tuple[Tool, ...] = (
    Tool(
        "openai",
        _SHELL,
        "export OPENAI_BASE_URL={url}\nexport OPENAI_API_KEY={key}\n"
        "# The model to ask for: {model}\n",
    ),
    Tool(
        "aider",
        _SHELL,
        "export OPENAI_API_BASE={url}\nexport OPENAI_API_KEY={key}\n"
        "aider --model 'openai/{model}'\n",
    ),
    Tool(
        "litellm",
        "config.yaml of the proxy",
        "model_list:\n  - model_name: '{model}'\n    litellm_params:\n"
        "      model: 'openai/{model}'\n      api_base: {url}\n      api_key: {key}\n",
    ),
    Tool(
        "continue",
        "~/.continue/config.yaml",
        "name: localllm\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: '{model}'\n"
        "    provider: openai\n    model: '{model}'\n    apiBase: {url}\n    apiKey: {key}\n"
        "    roles: [chat, edit, apply]\n",
    ),
    Tool(
        "opencode",
        "opencode.json",
        '{{\n  "provider": {{\n    "localllm": {{\n'
        '      "npm": "@ai-sdk/openai-compatible",\n      "name": "localllm",\n'
        '      "options": {{"baseURL": "{url}", "apiKey": "{key}"}},\n'
        '      "models": {{"{model}": {{"name": "{model}"}}}}\n    }}\n  }}\n}}\n',
    ),
    Tool(
        "zed",
        "settings.json; the key is LOCALLLM_API_KEY={key} in Zed's environment",
        '{{\n  "language_models": {{\n    "openai_compatible": {{\n      "localllm": {{\n'
        '        "api_url": "{url}",\n        "available_models": [\n          {{\n'
        '            "name": "{model}",\n            "max_tokens": {n_ctx},\n'
        '            "capabilities": {{"tools": false, "images": false}}\n          }}\n'
        "        ]\n      }}\n    }}\n  }}\n}}\n",
    ),
    Tool(
        "cline",
        "Cline's settings, API Provider: OpenAI Compatible",
        "Base URL: {url}\nAPI Key: {key}\nModel ID: {model}\n",
    ),
    Tool(
        "langchain",
        "a Python program",
        "from langchain_openai import ChatOpenAI\n\n"
        'model = ChatOpenAI(base_url="{url}", api_key="{key}", model="{model}")\n',
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
