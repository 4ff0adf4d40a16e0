"""Who a broker is, who the caller is to it, and the tokens it gave out."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from broker.wire.jobs import Frozen, Name
from broker.wire.states import Scope


class Whoami(Frozen):
    """Asked before anything else, so that no program talks to a stranger on the same path."""

    installation: str = Field(description="Id of this broker's state, made once.")
    version: str
    pid: int
    actor: str
    scopes: list[Scope]
    restarts_worker: bool = Field(description="This broker keeps a worker of its own running.")


class TokenRequest(Frozen):
    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=4)


class TokenMade(Frozen):
    """The only time the token is shown; the broker keeps its SHA-256."""

    name: str
    scopes: list[Scope]
    token: str


class Token(Frozen):
    name: str
    scopes: list[Scope]
    worker: str | None = Field(default=None, description="The one worker it speaks for, bound at first use.")
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class TokenList(Frozen):
    tokens: list[Token]


class Health(Frozen):
    ok: bool
    detail: str | None = None
