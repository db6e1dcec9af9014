"""Setting the attention of a language model while any thread needs it."""

from __future__ import annotations

import os
from collections import Counter
from threading import Lock, get_ident
from typing import Any


class _Users:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.before = config._attn_implementation
        self.threads: Counter[int] = Counter()


class SharedSwitch:
    """Sets the attention of language models while any thread is inside: the first that enters sets
    it, the last that leaves restores it. Models may share a configuration."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._users: dict[int, _Users] = {}  # by the identity of the configuration
        os.register_at_fork(after_in_child=self._forget_other_threads)

    def enter(self, config: Any) -> None:
        with self._lock:
            users = self._users.get(id(config))
            if users is None:
                users = self._users[id(config)] = _Users(config)
                config._attn_implementation = self.name
            users.threads[get_ident()] += 1

    def leave(self, config: Any) -> None:
        with self._lock:
            users = self._users[id(config)]
            users.threads -= Counter([get_ident()])
            self._restore_unused(users)

    def _restore_unused(self, users: _Users) -> None:
        if not users.threads:
            users.config._attn_implementation = users.before
            del self._users[id(users.config)]

    def _forget_other_threads(self) -> None:
        """In a fork only the forking thread exists."""
        self._lock = Lock()
        thread = get_ident()
        for users in list(self._users.values()):
            users.threads = +Counter({thread: users.threads[thread]})
            self._restore_unused(users)
