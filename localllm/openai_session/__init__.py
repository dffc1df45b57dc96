"""Sessions over any server with OpenAI's API: llama-server, Ollama, vLLM, hosted ones, or our own
on another machine."""

from localllm.openai_session.endpoint import Endpoint, endpoint_of
from localllm.openai_session.models import Served, served_models
from localllm.openai_session.session import OpenAISession

__all__ = ["Endpoint", "OpenAISession", "Served", "endpoint_of", "served_models"]
