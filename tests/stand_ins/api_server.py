"""A server of the API in this process, and a service behind it that does what prompts say.

The service's answers are told by the last user's message: `say TEXT` gives TEXT a character at a
time, `drip` a character every 5 ms until it is cancelled, `hang` nothing until it is cancelled,
`break` two characters and then an error, `fault` an error of no kind of ours, `busy` a full queue.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from localllm.engine.exchange import Chunk, TokenLogprobs
from localllm.engine.request import (
    Emit,
    Failed,
    Finished,
    LoadedModel,
    Piece,
    PromptLogprobs,
    Request,
    Service,
    ServiceState,
    Timings,
    Usage,
)
from localllm.engine.sampling import Sampled
from localllm.errors import (
    CancelledError,
    ContextFullError,
    LocalLLMError,
    QueueFullError,
)
from localllm.server import app, listen
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, Need, OpenOptions, Room
from localllm.server.security import Access
from localllm.server.shelf import Item, Shelf

NAME = "fake:1b"


@dataclass
class FakeTicket:
    request: Request
    cancelled: threading.Event = field(default_factory=threading.Event)
    id: str = "1"

    def cancel(self) -> None:
        self.cancelled.set()


class FakeService:
    """Tickets are kept, so that a test sees what was asked and cancelled."""

    def __init__(self, info: LoadedModel) -> None:
        self.info = info
        self.tickets: list[FakeTicket] = []
        self.ended: list[FakeTicket] = []
        self.stalled_s = 0.0
        self.lost = None

    def submit(self, request: Request, emit: Emit) -> FakeTicket:
        if len(request.prompt) >= self.info.n_ctx:
            raise ContextFullError.of(len(request.prompt), self.info.n_ctx)
        text = self.info.tokenizer.decode(request.prompt, skip_special=False)
        asked = re.findall(r"user\n(.*?)<\|im_end\|>", text, re.DOTALL)
        verb, _, rest = (asked[-1] if asked else text).partition(" ")
        if verb == "busy":
            raise QueueFullError("512 requests wait already", retry_after_s=2.5)
        ticket = FakeTicket(request)
        self.tickets.append(ticket)
        threading.Thread(
            target=self._run, args=(ticket, emit, verb, rest), daemon=True, name="fake"
        ).start()
        return ticket

    def _run(self, ticket: FakeTicket, emit: Emit, verb: str, rest: str) -> None:
        request, count = ticket.request, 0
        try:
            if request.prompt_logprobs is not None:
                rows = (Sampled(token, -0.25, rank=1) for token in request.prompt[1:])
                emit(PromptLogprobs(tuple(rows)))
            for index in range(request.n):
                for character in self._characters(ticket, verb, rest):
                    if request.params.max_tokens == count:
                        break
                    emit(Piece(index, self._chunk(character, request)))
                    count += 1
                reason = "length" if request.params.max_tokens == count else "stop"
                emit(Piece(index, Chunk("", finish_reason=reason)))
            usage = Usage(len(request.prompt), min(7, len(request.prompt) - 1), count, 0)
            self.ended.append(ticket)
            emit(Finished(usage, Timings()))
        except Exception as e:
            self.ended.append(ticket)
            emit(Failed(e))  # type: ignore[arg-type]

    def _characters(self, ticket: FakeTicket, verb: str, rest: str) -> Iterator[str]:
        if verb == "break":
            yield from "ab"
            raise LocalLLMError("the row of the request is no number")
        if verb == "fault":
            raise RuntimeError(f"secret of the inside: {rest}")
        while verb == "hang" and not ticket.cancelled.wait(0.005):
            pass
        while verb == "drip" and not ticket.cancelled.wait(0.005):
            yield "x"
        if ticket.cancelled.is_set():
            raise CancelledError("cancelled")
        yield from rest

    def _chunk(self, character: str, request: Request) -> Chunk:
        n_top = request.params.logprobs
        token = self.info.tokenizer.encode(character, add_special=False)[0]
        logprobs: tuple[TokenLogprobs, ...] = ()
        if n_top is not None:
            top = ((character, -0.5), ("\ufffd", -1.5))[:n_top]
            logprobs = (TokenLogprobs(token, character, -0.5, top),)
        return Chunk(character, (token,), logprobs=logprobs)

    def state(self) -> ServiceState:
        running = len(self.tickets) - len(self.ended)
        return ServiceState(
            running=running,
            blocks_used=running,
            hit_tokens=7,
            last_progress_s=time.monotonic() - self.stalled_s,
        )

    def close(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()


@dataclass(frozen=True)
class Running:
    """A server that listens at `port`."""

    port: int
    service: Service

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def running(
    service: Service,
    access: Access | None = None,
    *,
    names: tuple[str, ...] = (NAME,),
    strict: bool = False,
) -> Iterator[Running]:
    """The real server over a service."""
    manager = manager_of(service, names)
    with serving(manager, access, strict=strict) as port:
        yield Running(port, service)


def item_of(*names: str) -> Item:
    """A model of these names that lies nowhere."""
    return Item(ModelFile(Path(names[0]), names[0]), OpenOptions(), names, 1)


def manager_of(service: Service, names: tuple[str, ...]) -> Manager:
    """With one model, which stays loaded."""
    item = item_of(*names)
    manager = Manager(Shelf([item]), NoLoader())
    manager.adopt(item, service, 0)
    return manager


class NoLoader:
    """Where all models are loaded already."""

    def need(self, item: Item, room: Room) -> Need:
        return Need(0, True, 0)

    def open(self, item: Item, room: Room | None, progress: Callable[[float], None]) -> Service:
        raise AssertionError(f"{item.names} was to be loaded")


@contextlib.contextmanager
def serving(
    manager: Manager,
    access: Access | None = None,
    *,
    strict: bool = False,
    max_connections: int = listen.MAX_CONNECTIONS,
) -> Iterator[int]:
    """The real server over a manager, on a thread of its own. Gives its port."""
    listening = listen.bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    application = app.build(manager, access or Access(), strict=strict)
    server = listen.server(
        application, max_connections=max_connections, cut=application.state.server.cut
    )
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, daemon=True, name="server"
    )
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def exchange(port: int, data: bytes, *, close_after_s: float | None = None) -> bytes:
    """Sends bytes and returns what comes until the server closes or 10 s have passed; or closes
    after a while itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        if close_after_s is not None:
            time.sleep(close_after_s)
            return b""
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)
