"""`/api` over real databases: what it says, to whom, and what it refuses."""

import http.client
import json
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.config import PageAddress
from fedagent_coordinator.core.effects import HeldOutEvaluated
from fedagent_coordinator.explanation.account import Explanation
from fedagent_coordinator.picture import totals as books
from fedagent_coordinator.picture.records import DeviceDetail, Done, Field, Waiting
from fedagent_coordinator.picture.status_files import Page
from fedagent_coordinator.picture.watcher import Watcher
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.web.feed import Feed
from fedagent_coordinator.web.server import start_page
from fedagent_node.errors import LinkError
from fedagent_node.site.joining import JOIN_VERSION, JoinRequest, code_of
from tests.fakes.stored_runs import small_plan, small_result, small_view
from tests.fakes.written_runs import play, write_run

from .served import LOOPBACK, Served, served

OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
PAGE = (Path(__file__).parents[3] / "docs" / "coordinator.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    write_run(made, rounds=5, end=False)
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Served]:
    with served(folder) as found:
        yield found


def test_the_field_says_what_the_books_say(page: Served, folder: Path) -> None:
    field = page.get("api/field")
    with open_reader(folder) as reader:
        run = reader.run()
        rows = {row.agent: row for row in reader.devices(run.run_id)}
        balance = reader.balance(run.run_id)
    assert field["run"]["run"] == run.run_id
    assert field["money"]["settled_micro"] == balance.settled_micro
    for card in field["devices"]:
        row = rows[card["id"]]
        assert card.get("ordered", 0) == row.ordered
        assert card.get("in_time", 0) == row.in_time
        assert card.get("paid_micro", 0) == row.paid_micro
    assert [one["round"] for one in field["rounds"]] == [1, 2, 3, 4, 5]
    assert field["rounds"][-1]["metrics"]["accuracy"] == pytest.approx(1.0)
    assert field["last"]["round"] == 5
    assert [one["kind"] for one in field["alarms"]] == ["never_delivering"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("field", Field),
        ("devices/agent-a", DeviceDetail),
        ("devices/agent-a/why", Explanation),
        ("pending", tuple[Waiting, ...]),
        ("session", Done),
    ],
)
def test_each_path_answers_as_documented(page: Served, path: str, kind: object) -> None:
    status, body, _ = page.ask(f"api/{path}")
    assert status == 200
    msgspec.convert(body, kind, strict=False)
    assert f"`/api/{path}`".replace("agent-a", "ID") in PAGE


def test_why_and_the_device_itself(page: Served) -> None:
    found = page.get("api/devices/agent-b")
    assert [one["in_time"] for one in found["orders"]] == [False] * 5
    assert found["contexts"][0]["edge"] == "edge-0"
    said = page.get("api/devices/agent-b/why?round=3")
    assert (said["round"], said["state"], said["never_delivering"]) == (3, "selected", True)
    assert page.get("api/devices/agent-b/why?nearest=0")["nearest_change"] == []
    assert page.ask("api/devices/nobody")[0] == 404
    for path, body in (("api/devices/nobody", None), ("api/nothing", None), ("api/field", {})):
        bearer = {"Authorization": f"Bearer {page.token}"}
        status, problem, _ = page.ask(path, body, headers=bearer)
        assert status in {404, 405}
        assert "docs/coordinator.md" in problem["hint"]
    assert page.ask("api/devices/agent-b/why?round=99")[0] == 409
    assert page.ask("api/devices/agent-b/why?round=-1")[0] == 400


def test_a_query_that_a_path_does_not_take_is_refused(page: Served) -> None:
    for wrong in ("field?last=1", "devices/agent-b/why?since=2", "devices/agent-b/why?round=two"):
        assert page.ask(f"api/{wrong}")[0] == 400


def test_events_begin_with_the_field_and_go_on_with_changes(tmp_path: Path) -> None:
    run = write_run(tmp_path, rounds=2, end=False)
    with served(tmp_path) as page:
        connection = http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=600)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        assert answer.readline() == b"event: field\n"
        field = msgspec.json.decode(answer.readline()[6:])
        assert [one["round"] for one in field["rounds"]] == [1, 2]
        answer.readline()
        with Books(tmp_path) as store:
            plan = small_plan(small_view(3, [1_000_000, 1_500_000], budgets=[4_000_000]))
            play(store, run, plan, small_result(plan, {0}), policy="random")
        while [one["state"] for one in field["rounds"]] != ["done"] * 3:
            while answer.readline() != b"event: change\n":
                pass
            field |= msgspec.json.decode(answer.readline()[6:])
        assert field["devices"][0]["ordered"] == 3
        connection.close()
        assert {**page.get("api/field"), "version": 0, "at_ms": 0} == {
            **field,
            "version": 0,
            "at_ms": 0,
        }


# ------------------------------------------------------------------------ who may what


def test_nothing_but_the_host_itself_is_loaded(page: Served) -> None:
    for path in ("", "api/field", "nothing"):
        _, _, head = page.ask(path)
        assert "default-src 'none'" in head["content-security-policy"]
        assert "unsafe" not in head["content-security-policy"]
        assert head["x-content-type-options"] == "nosniff"
        assert "server" not in {name.lower() for name in head}


def test_another_name_that_leads_here_is_refused(page: Served) -> None:
    """A stranger's page whose name is made to point to loopback (DNS rebinding)."""
    status, _, _ = page.ask("api/field", headers={"Host": "evil.example"})
    assert status == 421
    assert page.ask("api/field", headers={"Host": "localhost:1"})[0] == 200


def test_a_change_needs_the_token_and_the_pages_own_origin(page: Served) -> None:
    bearer = {"Authorization": f"Bearer {page.token}"}
    path, code = "api/pending/agent-a/accept", {"code": "123456"}
    assert page.ask(path, code)[0] == 401
    assert page.ask(path, code, headers={"Authorization": "Bearer wrong"})[0] == 401
    for theirs in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert page.ask(path, code, headers={**bearer, **theirs})[0] == 403
    assert page.ask(path, code, headers={**bearer, "Origin": page.url[:-1]})[0] == 404  # no site
    assert page.ask(path, {"code": 1}, headers=bearer)[0] == 400
    assert page.ask(path, {"code": "1" * 5000}, headers=bearer)[0] == 413


def test_the_token_opens_a_session_whose_cookie_is_not_the_token(page: Served) -> None:
    assert page.ask("api/session", {"token": "wrong"})[0] == 403
    assert page.ask("api/session", b'{"token": "\xff"}')[0] == 400
    status, body, head = page.ask("api/session", {"token": page.token}, headers=OWN_PAGE)
    assert (status, body["may_change"]) == (200, True)
    cookie = head["set-cookie"]
    assert page.token not in cookie
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict"))
    session = {"Cookie": cookie.split(";")[0]}
    assert page.ask("api/session", headers=session)[1]["may_change"]
    assert not page.ask("api/session")[1]["may_change"]
    assert page.ask("api/session", {"token": page.token}, headers={"Origin": "null"})[0] == 403


def test_the_token_is_kept_for_its_owner_and_over_restarts(folder: Path, page: Served) -> None:
    assert stat.S_IMODE((folder / Page.FILE).stat().st_mode) == 0o600
    with served(folder) as again:
        assert (again.token, again.url != page.url) == (page.token, True)


def test_beyond_loopback_nobody_sees_anything_without_the_token(folder: Path) -> None:
    with served(folder, PageAddress("0.0.0.0", 0), insecure=True) as page:
        page.url = f"http://127.0.0.1:{urlsplit(page.url).port}/"
        for path in ("api/field", "api/events", "api/devices/agent-a"):
            assert page.ask(path)[0] == 401
        assert page.ask("")[0] == 200
        bearer = {"Authorization": f"Bearer {page.token}"}
        assert page.ask("api/field", headers=bearer)[0] == 200


def test_beyond_loopback_it_is_https_and_its_cookie_stays_there(folder: Path) -> None:
    with served(folder, PageAddress("0.0.0.0", 0)) as page:
        assert page.url.startswith("https://")
        made = Page.read(folder)
        assert made is not None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        link = http.client.HTTPSConnection("127.0.0.1", made.port, timeout=600, context=context)
        link.request("POST", "/api/session", json.dumps({"token": page.token}), OWN_PAGE)
        answer = link.getresponse()
        assert answer.status == 200
        assert "Secure" in (answer.getheader("set-cookie") or "")
        assert made.fingerprint
        link.close()


def test_a_device_that_waits_is_let_in_by_the_code_that_it_shows(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=1)
    request = JoinRequest(
        version=JOIN_VERSION, role="agent", name="kitchen", site="default", public=b"p" * 32
    )
    code = code_of(b"authority", request.public)
    with Enrolment(tmp_path) as site:
        site.decide(request, "10.0.0.7", b"authority", now=time.time())
    with served(tmp_path) as page:
        bearer = {"Authorization": f"Bearer {page.token}"}
        (one,) = page.get("api/pending")
        assert one["name"] == "kitchen"
        assert code not in json.dumps([one, page.get("api/field")])
        (one,) = page.ask("api/pending", headers=bearer)[1]
        assert (one["name"], one["code"]) == ("kitchen", code)
        path = f"api/pending/{one['id']}/accept"
        assert page.ask(path, {"code": "AAAA-BBBB-CCCC"}, headers=bearer)[0] == 409
        assert page.ask(path, {"code": code.lower()}, headers=bearer)[0] == 200
    with Enrolment(tmp_path) as site:
        assert [one.state for one in site.members(now=time.time())] == ["accepted"]


# ------------------------------------------------------------------------- the feed


async def test_a_slow_viewer_gets_all_that_it_has_missed_at_once() -> None:
    shown = [Field(epoch="e", version=at, at_ms=at, coordinator=f"c-{at}") for at in range(5)]
    feed = Feed(lambda: shown.pop(0), lambda: False)
    quick, slow = feed.events(), feed.events()
    assert b'"version":0' in await anext(quick)
    assert b'"version":0' in await anext(slow)
    for at in range(1, 5):
        feed._step()
        assert f"c-{at}".encode() in await anext(quick)
    assert b"event: change" in (late := await anext(slow))
    assert b'"coordinator":"c-4"' in late
    feed._over = True
    assert [one async for one in slow] == []


def test_who_looks_late_sees_the_same_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "KEPT_ROUNDS", 3)
    run = write_run(tmp_path, rounds=2, end=False)
    watcher = Watcher(tmp_path)
    watcher.look()
    with Books(tmp_path) as store:
        for round_ in range(3, 9):
            plan = small_plan(small_view(round_, [1_000_000, 1_500_000], budgets=[4_000_000]))
            play(store, run, plan, small_result(plan, {0}), policy="random")
            store.save_metrics(run, HeldOutEvaluated(round_, "0" * 64, {"accuracy": 0.1}))
            watcher.look()
    (early,), (late,) = watcher.look().edges, (field := Watcher(tmp_path).look()).edges
    watcher.close()
    assert early == late
    assert (late.ordered, late.in_time, late.last_round) == (16, 8, 8)
    assert late.spent_micro == field.money.settled_micro if field.money else False
    assert [one.round for one in field.rounds] == [6, 7, 8]
    assert field.run is not None
    assert field.run.best == pytest.approx(0.7)


def test_a_folder_without_a_run_is_an_empty_field(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        assert page.get("api/field").get("run") is None
        write_run(tmp_path, rounds=1)
        time.sleep(1.1)
        assert page.get("api/field")["run"]["rounds_done"] == 1


def test_a_port_that_is_taken_ends_only_who_asked_for_it(folder: Path, page: Served) -> None:
    from fedagent_coordinator.web.server import PageServer

    taken = PageAddress("127.0.0.1", urlsplit(page.url).port or 0)
    assert start_page(PageServer(folder, taken), asked=False) == ""
    with pytest.raises(LinkError, match=f"127.0.0.1:{taken.port}: .*in use.*another port"):
        start_page(PageServer(folder, taken), asked=True)
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(LinkError, match=f"{host}:7477: .*an address of this machine"):
            start_page(PageServer(folder, PageAddress(host, 7477)), asked=True)
    assert LOOPBACK.is_loopback
