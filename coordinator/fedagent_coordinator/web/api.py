"""The page and its `/api` as an application of starlette, and who may look or change something.

On loopback everybody on this machine may look; beyond it nobody without the token. To change
something always takes the token, by cookie from the page's own origin or as a bearer.
"""

import asyncio
import hashlib
import hmac
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.errors import CoordinatorError
from fedagent_coordinator.explanation.account import Explanation
from fedagent_coordinator.explanation.explain import explain
from fedagent_coordinator.picture.devices import DeviceCard
from fedagent_coordinator.picture.records import Accept, Done, Problem, Token
from fedagent_coordinator.picture.watcher import Watcher, waiting
from fedagent_coordinator.site.enrolment import DATABASE as SITE
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_node.address import is_loopback
from fedagent_protocol.errors import FedagentError

from .device import detail
from .door import PATIENCE_S, Door
from .feed import MAX_VIEWERS, Feed

STATIC = Path(__file__).with_name("static")
COOKIE = "fedagent_page"
MAX_BODY = 4096
BACKLOG = 64
SENDING_S = 30.0
"""A viewer that reads nothing for so long is cut off."""
MOST = 999_999_999
"""The largest number of a query."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HINTS = {
    404: "docs/coordinator.md has all paths; /api/field has the devices",
    405: "docs/coordinator.md says what each path takes",
    408: "send the whole request again",
    413: f"send at most {MAX_BODY} bytes",
    400: "docs/coordinator.md says what each path takes",
}
T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)
Answer = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


class Access:
    """What a request may do, by its headers."""

    def __init__(self, token: str, *, host: str, secure: bool) -> None:
        self._token = token
        self._host = host
        self.open = is_loopback(host)
        """Whether one may look without the token."""
        self.secure = secure

    @property
    def cookie(self) -> str:
        """What a session's cookie holds: it does not tell the token."""
        return hmac.digest(self._token.encode(), b"fedagent page", hashlib.sha256).hex()

    def takes(self, token: str) -> bool:
        """Return whether it is the token."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def knows(self, headers: Headers, cookies: dict[str, str]) -> bool:
        """Return whether a request has the token, or a session of it."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.takes(bearer.strip()):
            return True
        return hmac.compare_digest(cookies.get(COOKIE, "").encode(), self.cookie.encode())

    def is_here(self, headers: Headers) -> bool:
        """Return whether it names this machine: another name may be a stranger's, led here."""
        if not self.open:
            return True
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._host

    def same_origin(self, headers: Headers) -> bool:
        """Return whether a change was asked for by our own page, or by no page at all."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
        scheme = "https" if self.secure else "http"
        return origin == f"{scheme}://{headers.get('host', '')}"

    def refused(self, request: Request) -> Response | None:
        """Return why a request is not answered; None if it is."""
        headers, path = request.headers, request.url.path
        if not self.is_here(headers):
            return refusal(421, "this page does not serve that host name", "open it by its address")
        if not path.startswith("/api/"):
            return None
        changes = request.method == "POST"
        if changes and not self.same_origin(headers):
            return refusal(
                403, "the request came from another web page", "use the live page itself"
            )
        open_to_all = path == "/api/session" or (self.open and not changes)
        if open_to_all or self.knows(headers, request.cookies):
            return None
        what = "action needs the" if changes else "page needs its"
        return refusal(401, f"this {what} token", "see `fedagent status --page`")


class Api:
    """Answers requests; all state is the feed's and the database's."""

    def __init__(self, folder: Path, feed: Feed, access: Access) -> None:
        self._folder = folder
        self._feed = feed
        self._access = access
        self._reading = asyncio.Semaphore(2)
        """What is read for one viewer alone is read by few at a time."""

    async def field(self, _request: Request) -> Response:
        """Return the whole field."""
        return answer(self._feed.field())

    async def events(self, _request: Request) -> Response:
        """Stream the field and its changes."""
        if self._feed.viewers >= MAX_VIEWERS:
            return refusal(503, f"{MAX_VIEWERS} viewers are open", "close one of them")
        return StreamingResponse(self._feed.events(), media_type="text/event-stream")

    async def device(self, request: Request) -> Response:
        """Return one device."""
        card = self._card(request.path_params["id"])
        return answer(await self._read(partial(detail, self._folder, card)))

    async def why(self, request: Request) -> Response:
        """Return why it was, or was not, selected."""
        card, round_ = self._card(request.path_params["id"]), _number(request, "round")
        nearest = _number(request, "nearest") != 0  # it takes seconds

        def explained() -> Explanation:
            with open_reader(self._folder) as reader:
                return explain(reader, card.id, round_, nearest=nearest)

        return answer(await self._read(explained))

    async def pending(self, request: Request) -> Response:
        """Return who asks to join; the codes only to who has the token."""
        if self._access.knows(request.headers, request.cookies):
            return answer(await self._read(partial(waiting, self._folder, time.time())))
        return answer(self._feed.field().pending)

    async def accept(self, request: Request) -> Response:
        """Let in one that waits."""
        body = await _body(request, Accept)
        if not (self._folder / SITE).exists():
            return refusal(404, "this coordinator accepts no joins", "start with --listen 0.0.0.0")

        def let_in() -> None:
            with Enrolment(self._folder) as enrolment:
                enrolment.accept(body.code, request.path_params["id"], now=time.time())

        await self._read(let_in)
        return answer(Done(may_change=True))

    async def session(self, request: Request) -> Response:
        """Say what this viewer may."""
        known = self._access.knows(request.headers, request.cookies)
        return answer(Done(may_change=known))

    async def sign_in(self, request: Request) -> Response:
        """Open a session."""
        if not self._access.takes((await _body(request, Token)).token):
            return refusal(403, "the token is wrong", "see `fedagent status --page`")
        found = answer(Done(may_change=True))
        found.set_cookie(
            COOKIE,
            self._access.cookie,
            max_age=30 * 86_400,
            httponly=True,
            samesite="strict",
            secure=self._access.secure,
        )
        return found

    def _card(self, ident: str) -> DeviceCard:
        devices = self._feed.field().devices
        found = next((card for card in devices if card.id == ident), None)
        if found is None:
            raise HTTPException(404, "there is no such device")
        return found

    async def _read(self, work: Callable[[], T]) -> T:
        async with self._reading:
            return await asyncio.to_thread(work)


class Impatient(H11Protocol):
    """A connection of uvicorn's that is cut off once its viewer reads nothing for `SENDING_S`."""

    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Wait for the viewer, not for ever; asyncio calls it where its buffers are full."""
        super().pause_writing()
        self._stuck = self.loop.call_later(SENDING_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the viewer reads."""
        self._patient_again()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the viewer."""
        self._patient_again()
        super().connection_lost(exc)

    def _patient_again(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


class Serving:
    """The page's part of uvicorn, in a thread of its own; `files` are certificate and key."""

    def __init__(
        self, folder: Path, door: Door, token: str, *, host: str, files: tuple[Path, Path] | None
    ) -> None:
        self._door, self._watcher = door, Watcher(folder)
        self._feed = Feed(self._watcher.look, self._watcher.moved)
        access = Access(token, host=host, secure=files is not None)
        config = Config(
            door.around(application(folder, self._feed, access)),
            log_config=None,
            log_level="error",  # what strangers send would fill the log
            access_log=False,
            server_header=False,
            # Who says in a header that it is somebody else is not believed.
            proxy_headers=False,
            backlog=BACKLOG,
            lifespan="on",
            ws="none",
            loop="asyncio",
            http=Impatient,
            h11_max_incomplete_event_size=16_384,
            timeout_graceful_shutdown=1,
            ssl_certfile=None if files is None else files[0],
            ssl_keyfile=None if files is None else files[1],
        )
        self._server = Server(config)

    def run(self) -> None:
        """Serve until `end`."""
        self._server.run(sockets=[self._door])
        self._watcher.close()

    def end(self) -> None:
        """Show what there is to the last, and end; from any thread."""
        self._feed.end()
        self._server.should_exit = True


def application(folder: Path, feed: Feed, access: Access) -> ASGIApp:
    """Return the application."""
    api = Api(folder, feed, access)

    @asynccontextmanager
    async def working(_app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(feed.run(), name="feed")
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    app = Starlette(
        routes=[
            _route("/api/field", api.field),
            _route("/api/events", api.events),
            _route("/api/devices/{id}", api.device),
            _route("/api/devices/{id}/why", api.why, "round", "nearest"),
            _route("/api/pending", api.pending),
            _route("/api/pending/{id}/accept", api.accept, method="POST"),
            _route("/api/session", api.session),
            _route("/api/session", api.sign_in, method="POST"),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        exception_handlers={
            HTTPException: _http_problem,
            FedagentError: _own_problem,
            sqlite3.Error: _own_problem,
        },
        lifespan=working,
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        """Let through who may; give every answer the headers of a page that loads nothing else."""
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await (access.refused(Request(scope)) or app)(scope, receive, dressed)

    return guarded


def _route(path: str, work: Answer, *numbers: str, method: str = "GET") -> Route:
    """Return a path of `/api` with the numbers that its query takes."""

    async def checked(request: Request) -> Response:
        for name in request.query_params:
            if name not in numbers:
                hint = f"it takes {' and '.join(numbers) or 'none'}"
                return refusal(400, f"{path} takes no query {name[:40]!r}", hint)
        return await work(request)

    return Route(path, checked, methods=[method])


def _number(request: Request, name: str) -> int | None:
    """Return a whole number of the query; None if it is left out.

    Raises:
        HTTPException: It is none, or beyond any.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST))):
        raise HTTPException(400, f"{name} is no whole number from 0 to {MOST}")
    return int(text)


def answer(value: object) -> Response:
    """Return a value as JSON."""
    return Response(_encode(value), media_type="application/json")


def refusal(status: int, error: str, hint: str) -> Response:
    """Return why not."""
    body = _encode(Problem(error=error, hint=hint))
    return Response(body, status_code=status, media_type="application/json")


async def _http_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, error.detail, HINTS.get(error.status_code, ""))


async def _own_problem(_request: Request, error: Exception) -> Response:
    known = isinstance(error, CoordinatorError)
    hint = str(getattr(error, "hint", "try again")) if known else "try again"
    return refusal(409 if known else 503, str(error), hint)


async def _body(request: Request, kind: type[B]) -> B:
    """Read what was sent.

    Raises:
        HTTPException: It is too large, or not of this kind.
    """
    data = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BODY:
                    raise HTTPException(413, "the request is too large")
    except TimeoutError:
        raise HTTPException(408, "the request is incomplete") from None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError) as error:  # the second: bytes that are no UTF-8
        raise HTTPException(400, f"the request cannot be read: {error}") from error
