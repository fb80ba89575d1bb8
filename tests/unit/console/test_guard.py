"""Who is let in: names, sites, tokens, cookies."""

from typing import Any

import pytest

from dovetail.clock import ManualClock
from dovetail.console.web.errors import HttpRefusal
from dovetail.console.web.guard import Guard
from dovetail.console.web.signing_in import SESSION_S, WRONG_MAX, SignIn
from dovetail.settings import HttpSettings

TOKEN = "correct-horse-battery"


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not called")


def guard_of(**settings: Any) -> Guard:
    http = HttpSettings(**settings)
    return Guard(_nothing, http, SignIn(http.secret()), ManualClock())


def scope_of(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    given = {"host": "127.0.0.1:9080"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": path,
        "client": ("127.0.0.1", 5000),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }


def refused(guard: Guard, path: str, method: str = "GET", **headers: str) -> int:
    """The status of a refusal; 0 if it is let in."""
    try:
        guard.judge(scope_of(path, method, **headers))
    except HttpRefusal as refusal:
        return int(refusal.status)
    return 0


@pytest.mark.parametrize("host", ["localhost", "localhost:9080", "127.0.0.1", "[::1]:9080"])
def test_own_names_and_addresses_are_known(host: str) -> None:
    """R4: what a person types on this machine works."""
    assert refused(guard_of(), "/v1/topics", host=host) == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9080", "localhost.evil", "", "a b"])
def test_a_name_that_is_not_ours_is_refused(host: str) -> None:
    """R4: a page whose name was rebound to this machine reads nothing."""
    guard = guard_of()
    for path in ("/v1/topics", "/", "/metrics", "/v1/session", "/docs"):
        assert refused(guard, path, host=host) == 421
    for path in ("/livez", "/readyz"):
        assert refused(guard, path, host=host) == 0


def test_further_names_are_a_setting() -> None:
    """R4: a node behind a name says so; the token by header needs no name at all."""
    guard = guard_of(allowed_hosts="queue.example, Other.Example", token=TOKEN)
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert refused(guard, "/v1/session", host="queue.example") == 0
    assert refused(guard, "/v1/session", host="other.example:80") == 0
    assert refused(guard, "/v1/session", host="third.example") == 421
    assert refused(guard, "/v1/topics", host="third.example", **bearer) == 0


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_get_nothing(site: str) -> None:
    """R4: what a browser says about its page decides, for reads and for changes."""
    for method in ("GET", "POST", "DELETE"):
        assert refused(guard_of(), "/v1/topics", method, sec_fetch_site=site) == 403
    assert refused(guard_of(), "/", sec_fetch_site=site) == 0


def test_changes_come_from_our_own_origin() -> None:
    """R4: an Origin that is not the Host is refused; programs send none."""
    guard = guard_of()
    own = {"host": "localhost:9080", "origin": "http://localhost:9080"}
    assert refused(guard, "/v1/topics", "POST", **own) == 0
    assert refused(guard, "/v1/topics", "POST") == 0
    for origin in ("http://evil.example", "null", "http://localhost:1", "https://localhost:9080"):
        headers = own | {"origin": origin}
        assert refused(guard, "/v1/topics", "POST", **headers) == 403
        assert refused(guard, "/v1/session", "POST", **headers) == 403


def test_what_needs_the_token() -> None:
    """R4: data, changes and metrics need it; probes, pages and the document do not."""
    closed = ["/v1/topics", "/v1/live", "/v1/audit", "/metrics", "/v1/nothing", "/v1/cluster"]
    open_paths = ["/livez", "/readyz", "/", "/docs", "/v1/openapi.json", "/v1/session", "/static/a"]
    for path in closed:
        guard = guard_of(token=TOKEN)
        assert refused(guard, path) == 401
        assert refused(guard, path, authorization="Bearer wrong-wrong-wrong") == 401
        assert refused(guard, path, authorization=f"Basic {TOKEN}") == 401
        assert refused(guard, path, authorization=f"Bearer {TOKEN}x") == 401
        assert refused(guard, path, authorization=f"bearer {TOKEN}") == 0
    for path in open_paths:
        assert refused(guard, path) == 0
    assert refused(guard_of(token=TOKEN, metrics_open=True), "/metrics") == 0


def test_without_a_token_everybody_is_in() -> None:
    """R4: on this machine alone, nobody is asked; an empty bearer is no key to anything."""
    passed = guard_of().judge(scope_of("/v1/topics", authorization="Bearer "))
    assert passed.signed_in
    assert passed.caller.who == "anonymous"
    assert not SignIn("").is_token("")


def test_cookies_are_sealed_and_end() -> None:
    """R4: a cookie is good for its time, with this token, as it was given."""
    sign_in = SignIn(TOKEN)
    cookie = sign_in.seal(now_s=1_000)
    assert sign_in.is_sealed(cookie, now_s=1_000 + SESSION_S - 1)
    assert not sign_in.is_sealed(cookie, now_s=1_000 + SESSION_S)
    assert not SignIn(TOKEN + "2").is_sealed(cookie, now_s=1_000)
    until, _, seal = cookie.partition(".")
    for forged in (f"{int(until) + 1}.{seal}", f"{until}.", f"{until}.{'0' * 64}", "", "x.y", "²."):
        assert not sign_in.is_sealed(forged, now_s=1_000)
    assert not SignIn("").is_sealed(cookie, now_s=1_000)
    guard = guard_of(token=TOKEN)
    fresh = SignIn(TOKEN).seal(now_s=ManualClock().wall_ms() // 1000)
    passed = guard.judge(scope_of("/v1/topics", cookie=f"a=b; dovetail_session={fresh}"))
    assert passed.caller.who == "session"


def test_wrong_tokens_are_counted() -> None:
    """R4: after some in a minute from one address they are throttled, for a minute."""
    sign_in = SignIn(TOKEN)
    for _ in range(WRONG_MAX):
        assert sign_in.refuse("10.0.0.1", now_ms=0.0).status == 401
    assert sign_in.refuse("10.0.0.1", now_ms=59_000.0).status == 429
    assert sign_in.refuse("10.0.0.2", now_ms=59_000.0).status == 401
    assert sign_in.refuse("10.0.0.1", now_ms=61_000.0).status == 401


def test_guesses_in_a_header_are_throttled_and_lock_nobody_out() -> None:
    """F46: bearer tokens count too, and the right one passes however many wrong ones came."""
    guard = guard_of(token=TOKEN)
    statuses = [
        refused(guard, "/v1/topics", authorization=f"Bearer guess-{number}")
        for number in range(WRONG_MAX + 1)
    ]
    assert statuses == [401] * WRONG_MAX + [429]
    assert refused(guard, "/v1/topics", authorization=f"Bearer {TOKEN}") == 0
    assert refused(guard, "/v1/topics") == 401


def test_the_count_of_wrong_tokens_has_a_bound() -> None:
    """F46: a guesser with many addresses fills no memory."""
    sign_in = SignIn(TOKEN)
    for number in range(20_000):
        sign_in.refuse(f"2001:db8::{number:x}", now_ms=0.0)
    assert len(sign_in._wrong) == 10_000
