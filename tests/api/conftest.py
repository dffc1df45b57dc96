"""Servers that the tests of the API share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from stand_ins.api_server import NAME, FakeService, Running, running

from localllm.engine.open import read_text_side
from localllm.engine.request import LoadedModel
from localllm.server.opening import ModelFile, OpenOptions, open_service
from localllm.text.chat_template import ChatTemplate


@pytest.fixture(scope="session")
def fake_info(tiny: Callable[[str, str], Path]) -> LoadedModel:
    text = read_text_side(tiny("llama", "F32"))
    template = ChatTemplate.from_metadata(text.metadata, text.tokenizer)
    return LoadedModel(NAME, 512, text.tokenizer, template)


@pytest.fixture(scope="session")
def fake(fake_info: LoadedModel) -> Iterator[Running]:
    """A server over the service that does what prompts say."""
    with running(FakeService(fake_info)) as server:
        yield server


@pytest.fixture(scope="session")
def real(tiny: Callable[[str, str], Path]) -> Iterator[Running]:
    """A server over a tiny model."""
    path = tiny("llama", "F32")
    options = OpenOptions(engine="native", n_ctx=512)
    service = open_service(ModelFile(path, "tiny"), options, max_queue=64)
    with running(service, names=("tiny",)) as server:
        yield server


@pytest.fixture
def http(fake: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=fake.url, timeout=20) as client:
        yield client


@pytest.fixture
def real_http(real: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=real.url, timeout=20) as client:
        yield client
