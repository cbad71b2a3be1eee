"""The chat's backend: it checks passwords, remembers who is logged in, and makes the tokens that Halley asks for.

    python backend.py add NAME      # reads a password, and adds or replaces that user
    python backend.py serve         # on 127.0.0.1, for the nginx in front of it

`POST /login` with `{"name", "password"}` sets a cookie and returns `{"name", "token", "expires_in_s"}`; `GET /token`
returns a new token to a browser with the cookie; `POST /logout` forgets it. `backend.mjs` is the same for Node.js, with
the same file of users. It needs nothing that Halley has not installed.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

SECRET = Path(os.environ.get("CHAT_SECRET", "data/secret"))  # the file that Halley's `jwt.secret` names
USERS = Path(os.environ.get("CHAT_USERS", "data/users.json"))
PORT = int(os.environ.get("CHAT_PORT", "8090"))
TOKEN_S = int(os.environ.get("CHAT_TOKEN_S", "600"))  # short, as a token cannot be taken back; pages renew theirs

SESSION_S = 12 * 3600
SESSIONS = 10_000  # then the oldest is logged out
BODY_BYTES = 4_096
COOKIE = "__Host-session"
NOBODY = {"salt": "00" * 16, "hash": ""}  # so that an unknown name takes as long as a wrong password
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")

sessions: dict[str, tuple[str, float]] = {}  # by cookie: the user's name, and when it ends


def scrypt(password: str, salt: str) -> str:
    """The hash of a password, which takes 32 MiB and some tenths of a second, so that few can be guessed."""
    key = hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=2**15, r=8, p=3, maxmem=2**26, dklen=32)
    return key.hex()


def users() -> dict[str, dict[str, str]]:
    """The salt and hash of each user, by name."""
    return json.loads(USERS.read_text(encoding="utf-8")) if USERS.exists() else {}


def add(name: str) -> None:
    """Add a user with the password that is typed, or is the first line of standard input."""
    if not NAME.fullmatch(name):
        sys.exit("backend: a name has up to 32 of a-z, 0-9, _ and -, and begins with a letter")
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        sys.exit("backend: a password cannot be empty")
    salt = secrets.token_hex(16)
    whole = json.dumps(users() | {name: {"salt": salt, "hash": scrypt(password, salt)}}, indent=2)
    part = USERS.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(whole + "\n", encoding="utf-8")
    part.replace(USERS)
    print(f"{name} can log in")


def token(name: str) -> Response:
    """A new token for a user; Halley reads `sub` as the name in `{authid}`, and `role` as that of its rules."""
    now = int(time.time())
    claims = {"iss": "chat", "aud": "halley", "sub": name, "role": "user", "iat": now, "exp": now + TOKEN_S}
    secret = SECRET.read_bytes().rstrip(b"\r\n")
    return JSONResponse(
        {"name": name, "token": jwt.encode(claims, secret, "HS256"), "expires_in_s": TOKEN_S},
        headers={"Cache-Control": "no-store"},
    )


def refusal(status: int, error: str) -> Response:
    """An answer with the reason for which nothing was done."""
    return JSONResponse({"error": error}, status, headers={"Cache-Control": "no-store"})


async def login(request: Request) -> Response:
    """Check a name and a password, and begin a session."""
    if request.headers.get("content-type") != "application/json":  # which forms of other sites cannot send
        return refusal(415, "application/json is expected")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            return refusal(413, "too long")
    everyone = users()
    try:
        asked = json.loads(body)
        name, password = asked["name"], asked["password"]
        known = everyone.get(name, NOBODY)
        is_right = hmac.compare_digest(await asyncio.to_thread(scrypt, password, known["salt"]), known["hash"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return refusal(400, "a name and a password are expected")
    if not is_right:
        return refusal(401, "wrong name or password")
    while len(sessions) >= SESSIONS:
        del sessions[next(iter(sessions))]
    cookie = secrets.token_urlsafe(32)
    sessions[cookie] = (name, time.monotonic() + SESSION_S)
    answer = token(name)
    answer.set_cookie(COOKIE, cookie, max_age=SESSION_S, path="/", secure=True, httponly=True, samesite="strict")
    return answer


async def renew(request: Request) -> Response:
    """Return a new token to who is logged in."""
    name, ends = sessions.get(request.cookies.get(COOKIE, ""), ("", 0.0))
    return token(name) if time.monotonic() < ends else refusal(401, "log in first")


async def logout(request: Request) -> Response:
    """Forget a session; a token that it has got is valid until it expires."""
    sessions.pop(request.cookies.get(COOKIE, ""), None)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return answer


app = Starlette(
    routes=[
        Route("/login", login, methods=["POST"]),
        Route("/token", renew, methods=["GET"]),
        Route("/logout", logout, methods=["POST"]),
    ]
)


def serve() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        SECRET.read_bytes()
    except OSError as error:
        sys.exit(f"backend: {SECRET}: {error.strerror}: make it as step 1 of the page says")
    try:
        listener = socket.create_server(("127.0.0.1", PORT))
    except OSError as error:
        sys.exit(f"backend: 127.0.0.1:{PORT}: {error.strerror}")
    print(f"logins on http://127.0.0.1:{PORT}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([listener])


def main(arguments: list[str]) -> None:
    """Do what the command line asks for."""
    match arguments:
        case ["add", name]:
            add(name)
        case ["serve"]:
            serve()
        case _:
            sys.exit("usage: backend.py add NAME | serve")


if __name__ == "__main__":
    main(sys.argv[1:])
