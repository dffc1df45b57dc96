"""The openers of `chat`: of models of this machine, in this process or in a running server of the
same user, and of models of another server."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localllm import paths
from localllm.cli.loading_options import Opening
from localllm.errors import ArgumentError, CancelledError, LocalLLMError
from localllm.tui.opening import AnySession, Described, LoadOptions

if TYPE_CHECKING:
    from localllm.cli.finding import Found
    from localllm.openai_session import Endpoint, Served
    from localllm.pooled_session import Keeping, Pool
    from localllm.session import Session
    from localllm.store.index import Store

Progress = Callable[[float], None]
Notice = Callable[[str], None]


def _store() -> Store:
    from localllm.store.index import Store  # only now: the first screen is painted before

    return Store(paths.current().models)


def _found(name: str) -> Found:
    from localllm.cli.finding import find_model  # as above

    return find_model(name, may_pull=False)


class LocalOpener:
    """See `Opener`. asked: the model of the command line; opening: how its options load models,
    where the UI asks for nothing else. Sessions of one model and the same options share it, as long
    as its file is what it was when it was loaded."""

    is_local = True

    def __init__(self, asked: str | None, opening: Opening) -> None:
        self._asked, self._opening = asked, opening
        self._loading = threading.Lock()  # one model is loaded at a time
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._pools: dict[object, Pool] = {}
        self._n_sessions: dict[Pool, int] = {}  # also of pools that are lost, and replaced
        self._others: list[AnySession] = []
        self._keeping: Keeping | None = None
        self._is_closed = False

    def default(self) -> str | None:
        if self._asked is not None:
            return self._asked
        used = [model for model in _store().list() if model.used]
        last = max(used, key=lambda model: model.used, default=None)
        return None if last is None else str(last.ref)

    def names(self) -> Sequence[str]:
        from localllm.store.foreign import stores

        models = _store().list()
        models.sort(key=lambda model: (-model.used, str(model.ref)))
        return [*(str(m.ref) for m in models), *(str(m.ref) for m in stores.models())]

    def describe(self, name: str) -> Described:
        found = _found(name)
        carried = found.settings
        n_bytes = found.model.size if found.model is not None else 0
        with contextlib.suppress(OSError):
            n_bytes = n_bytes or found.path.stat().st_size
        return Described(
            name=name,
            label=found.label,
            system=carried.system,
            messages=tuple({"role": role, "content": text} for role, text in carried.messages),
            sampling=dict(carried.sampling),
            file_bytes=n_bytes,
        )

    def text_of(self, name: str, what: str) -> str:
        from localllm.cli import model_parts

        return model_parts.text_of(_found(name), what, self._opening.template)

    def open(
        self,
        name: str,
        options: LoadOptions,
        *,
        progress: Progress,
        notice: Notice,
        cancelled: Callable[[], bool],
    ) -> AnySession:
        found = _found(name)
        opening = replace(self._opening, n_ctx=options.n_ctx, kv_type=options.kv_type)
        with self._loading:
            session = None
            if opening.server and not opening.asks_for_a_load:
                session = self._served(found, opening, notice)
            if session is None:
                session = self._loaded(found, opening, progress, notice, cancelled)
        if found.model is not None:
            _store().touch(found.model.ref)
        return session

    def forget_conversation(self, conversation: str) -> int:
        with self._lock:
            pools = list(self._n_sessions)
        for pool in pools:
            pool.flush()
        return self._kept().conversations.forget(conversation)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            pools = list(self._n_sessions)
            self._pools.clear()
            self._n_sessions.clear()
            others, self._others = self._others, []
        for pool in pools:
            pool.close()
        for session in others:
            session.close()

    def _loaded(
        self,
        found: Found,
        opening: Opening,
        progress: Progress,
        notice: Notice,
        cancelled: Callable[[], bool],
    ) -> AnySession:
        key = (found.path, found.digest, found.settings.template, opening)
        with self._lock:  # found and counted in one, or its last session may close it in between
            pool = self._pools.get(key)
            if pool is not None and pool.is_lost:
                del self._pools[key]  # its last session closes it
                pool = None
            if pool is not None:
                self._n_sessions[pool] += 1
        if pool is None:
            opened = self._opened(found, opening, progress, notice, cancelled)
            with self._lock:
                if self._is_closed:
                    opened.close()
                    raise CancelledError(f"loading {found.label} was stopped")
                from localllm.pooled_session import Pool

                if not isinstance(opened, Pool):
                    self._others.append(opened)
                    return opened
                pool = self._pools[key] = opened
                self._n_sessions[pool] = 1
        from localllm.cli.opening import is_base

        return pool.session(continues=is_base(found), closed=lambda: self._ended(key, pool))

    def _ended(self, key: object, pool: Pool) -> None:
        """The last session of a model takes it along."""
        with self._lock:
            n = self._n_sessions.get(pool, 0) - 1
            if n > 0:
                self._n_sessions[pool] = n
            if n:  # or it is closed already
                return
            del self._n_sessions[pool]
            if self._pools.get(key) is pool:
                del self._pools[key]
        pool.close()

    def _opened(
        self,
        found: Found,
        opening: Opening,
        progress: Progress,
        notice: Notice,
        cancelled: Callable[[], bool],
    ) -> Pool | Session:
        from localllm.cli.finding import hints
        from localllm.pooled_session import open_pool

        def show(share: float) -> None:
            if cancelled() or self._is_closed:
                raise CancelledError(f"loading {found.label} was stopped")
            progress(share)

        show(0.0)
        carried = found.settings
        # Another machine's number of threads may be more than makes sense here.
        n_threads = min(carried.at_load("num_thread"), os.cpu_count() or 1)
        with hints(found):
            opened = open_pool(
                found.path,
                self._kept(),
                engine=opening.engine,
                n_threads=opening.n_threads or n_threads,
                n_ctx=opening.n_ctx or carried.at_load("num_ctx"),
                kv_type=opening.kv_type,
                isa=opening.isa,
                digest=found.digest,
                label=found.label,
                template=opening.template,
                beside=carried.template,
                mmap=opening.mmap,
                progress=show,
                notice=notice,
            )
        progress(1.0)
        return opened

    def _served(self, found: Found, opening: Opening, notice: Notice) -> AnySession | None:
        """The session of a running server that serves this model."""
        folder = paths.current().servers
        if not folder.is_dir() or not any(folder.iterdir()):
            return None  # what follows takes its time
        from localllm import remote_session

        template = found.settings.template
        sought = remote_session.Sought(found.path, found.label, template, opening.kv_type)
        session, why_not = remote_session.find(folder, sought)
        if session is None:
            if why_not:
                notice(f"{why_not}: loading the model here")
            return None
        notice(f"{found.label} is answered by the server at {session.url}")
        session.kept = self._kept().conversations
        with self._lock:
            self._others.append(session)
        return session

    def _kept(self) -> Keeping:
        from localllm.pooled_session import Keeping

        with self._lock:
            if self._keeping is None:
                self._keeping = Keeping()
            return self._keeping


class UrlOpener:
    """See `Opener`: the models of a server with OpenAI's API."""

    is_local = False

    def __init__(self, asked: str | None, endpoint: Endpoint) -> None:
        self._asked, self._endpoint = asked, endpoint
        self._lock = threading.Lock()
        self._sessions: list[AnySession] = []

    def default(self) -> str | None:
        return self._asked if self._asked is not None else self._models()[0].name

    def names(self) -> Sequence[str]:
        return [model.name for model in self._models()]

    def describe(self, name: str) -> Described:
        return Described(name=name, label=name)

    def text_of(self, name: str, what: str) -> str:
        raise ArgumentError(
            f"{self._endpoint.host} does not say what the {what} of {name[:80]} is",
            "It is known of models of this machine.",
        )

    def open(
        self,
        name: str,
        options: LoadOptions,
        *,
        progress: Progress,
        notice: Notice,
        cancelled: Callable[[], bool],
    ) -> AnySession:
        from localllm.openai_session import OpenAISession, Served

        progress(0.0)
        try:
            models = self._models()
        except LocalLLMError:
            if self._asked is None:
                raise
            models = []  # not every server lists them
        if cancelled():
            raise CancelledError(f"opening {name} was stopped")
        model = next((each for each in models if each.name == name), None)
        if model is None and models:
            shown = ", ".join(each.name for each in models[:8])
            raise ArgumentError(
                f"{self._endpoint.host} has no model {name[:80]}", f"It has: {shown}"
            )
        if warning := self._endpoint.warning:
            notice(warning)
        session = OpenAISession(self._endpoint, model or Served(name))
        with self._lock:
            self._sessions.append(session)
        progress(1.0)
        return session

    def forget_conversation(self, conversation: str) -> int:
        """What the server keeps is its own."""
        return 0

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.close()

    def _models(self) -> list[Served]:
        from localllm.openai_session import served_models

        return served_models(self._endpoint)
