"""Bearer tokens: 256 bits of chance, kept as their SHA-256, compared by the hash's index."""

from __future__ import annotations

import hashlib
import json

from broker.service import views
from broker.service.context import Broker, Caller
from broker.service.transition import event
from broker.store.contract import ConstraintFailed, Tx
from broker.wire.events import EventType
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope
from broker.wire.system import Token, TokenList, TokenMade, TokenRequest

USE_NOTED_EVERY_MS = 60_000


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def create(broker: Broker, caller: Caller, request: TokenRequest) -> TokenMade:
    """Make a token; it is shown this once. Refused: a name that is taken."""
    token = f"jobd_{request.scopes[0].value}_{broker.make_secret()}"
    scopes = sorted({scope.value for scope in request.scopes})

    def fn(tx: Tx) -> None:
        try:
            tx.run("add_token", name=request.name, hash=digest(token), scopes=json.dumps(scopes), now=tx.now_ms)
        except ConstraintFailed:
            raise Refused(
                ProblemCode.INVALID_REQUEST,
                f"a token named {request.name} exists",
                field="name",
                hint="job token list shows them",
            ) from None
        event(tx, EventType.TOKEN_CREATED, actor=caller.actor, data={"name": request.name, "scopes": scopes})

    await broker.store.run(fn)
    return TokenMade(name=request.name, scopes=request.scopes, token=token)


async def revoke(broker: Broker, caller: Caller, name: str) -> TokenList:
    """Refuse this token from now on. A repeat is refused as `unknown_token`."""

    def fn(tx: Tx) -> None:
        if not tx.run("revoke_token", name=name, now=tx.now_ms):
            raise Refused(
                ProblemCode.UNKNOWN_TOKEN, f"there is no valid token named {name}", hint="job token list shows them"
            )
        event(tx, EventType.TOKEN_REVOKED, actor=caller.actor, data={"name": name})

    await broker.store.run(fn)
    return await list_tokens(broker)


async def list_tokens(broker: Broker) -> TokenList:
    def fn(tx: Tx) -> TokenList:
        return TokenList(
            tokens=[
                Token(
                    name=row["name"],
                    scopes=[Scope(scope) for scope in json.loads(row["scopes"])],
                    worker=row["worker"],
                    created_at=views.at(row["created_at"]) or views.EPOCH,
                    last_used_at=views.at(row["last_used_at"]),
                    revoked_at=views.at(row["revoked_at"]),
                )
                for row in tx.all("tokens")
            ]
        )

    return await broker.store.read(fn)


async def caller_of(broker: Broker, token: str) -> Caller | None:
    """Who holds this token; None for one that was never made, or was revoked."""
    row = await broker.store.read(lambda tx: tx.one("token_by_hash", hash=digest(token)))
    if row is None:
        return None
    now = broker.clock.wall_ms()
    if row["last_used_at"] is None or now - row["last_used_at"] > USE_NOTED_EVERY_MS:
        await broker.store.run(lambda tx: tx.run("use_token", id=row["id"], now=now))
    scopes = frozenset(Scope(scope) for scope in json.loads(row["scopes"]))
    return Caller(actor=row["name"], scopes=scopes, token=row["id"], worker=row["worker"])
