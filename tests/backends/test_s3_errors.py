"""What the S3 driver makes of every kind of answer, asked for by boto3 itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from s3_servers import CREDENTIALS
from scripted_server import LOST, Reply, Request, Scripted, scripted

from deltastore.backends import Backend, open_backend
from deltastore.backends.remote import PART
from deltastore.errors import (
    AuthError,
    BackendError,
    BadURL,
    DeltaStoreError,
    LimitExceeded,
    NoSpace,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
)

DAY = "Tue, 01 Dec 2026 10:00:00 GMT"


def refusal(status: int, code: str, **headers: str) -> Reply:
    text = f"<Error><Code>{code}</Code><Message>for a test</Message></Error>"
    return Reply(status, text.encode(), {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as found:
        yield found


@pytest.fixture
def backend(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    found = open_backend(
        "s3://bucket/root",
        options={"endpoint_url": server.url, "region": "here", "addressing": "path", "read_timeout": "1"},
    )
    yield found
    found.close()


KINDS = [
    (refusal(404, "NoSuchKey"), NotFound),
    (refusal(404, "NoSuchBucket"), BadURL),
    (refusal(403, "AccessDenied"), AuthError),
    (refusal(403, "RequestTimeTooSkewed"), AuthError),
    (refusal(400, "ExpiredToken"), AuthError),
    (refusal(401, "Unauthorized"), AuthError),
    (refusal(409, "ConditionalRequestConflict"), Unavailable),
    (refusal(400, "RequestTimeout"), Unavailable),
    (refusal(500, "InternalError"), Unavailable),
    (Reply(502, b"<html>bad gateway</html>"), Unavailable),
    (Reply(504), Unavailable),
    (refusal(503, "SlowDown"), Throttled),
    (refusal(503, "ServiceUnavailable"), Throttled),
    (refusal(429, "TooManyRequests"), Throttled),
    (refusal(507, "InsufficientStorage"), NoSpace),
    (refusal(409, "QuotaExceeded"), NoSpace),
    (refusal(501, "NotImplemented"), Unsupported),
    (refusal(400, "InvalidArgument"), Unsupported),
    (Reply(200, b"", {"Content-Length": "7"}, reset=0), Unavailable),
    (LOST, Unavailable),
]


@pytest.mark.parametrize(("reply", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", None))
def test_every_answer_has_its_error(
    backend: Backend, server: Scripted, reply: Reply, kind: type[DeltaStoreError]
) -> None:
    server.script = lambda _: reply
    asks: list[Callable[[], object]] = [
        lambda: backend.get("objects/aa/x", max_size=9),
        lambda: backend.put("objects/aa/x", b"12"),
        lambda: backend.put_if_absent("objects/aa/x", b"12"),
        lambda: list(backend.list("objects/")),
        lambda: backend.delete(["objects/aa/x"]),
    ]
    for ask in asks:
        if reply.status == 200 and reply is not LOST and ask in asks[1:3]:
            continue  # a put has no body to break off
        server.requests.clear()
        with pytest.raises(kind) as caught:
            ask()
        assert type(caught.value) is kind
        assert len(server.requests) == 1, "asked again by itself"
        assert "objects/" in str(caught.value)
        assert caught.value.hint or kind in {NotFound, Throttled}
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


def test_a_put_that_is_refused_by_its_condition_has_lost(backend: Backend, server: Scripted) -> None:
    server.script = lambda _: refusal(412, "PreconditionFailed")
    assert backend.put_if_absent("versions/0", b"1") == "exists"
    assert server.requests[-1].headers["if-none-match"] == "*"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "Tue, 01 Dec 2026 10:00:30 GMT", "Date": DAY}, 30.0),
        ({"Retry_After": "Tue, 01 Dec 2026 09:00:30 GMT", "Date": DAY}, 0.0),
        ({"Retry_After": "soon"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_passed_on(
    backend: Backend, server: Scripted, headers: dict[str, str], seconds: float | None
) -> None:
    server.script = lambda _: refusal(503, "SlowDown", **headers)
    with pytest.raises(Throttled) as caught:
        backend.get("a", max_size=1)
    assert caught.value.retry_after == seconds


def test_a_server_that_says_nothing_is_given_up(backend: Backend, server: Scripted) -> None:
    def silent(_: object) -> Reply:
        time.sleep(2)
        return Reply()

    server.script = silent
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        backend.get("a", max_size=1)
    assert time.monotonic() - begun < 1.9


def test_what_is_too_large_is_not_read(backend: Backend, server: Scripted) -> None:
    claim = {"Content-Length": "999999999999", "Content-Range": "bytes 0-999999999998/999999999999"}
    server.script = lambda _: Reply(206, b"x", claim)
    with pytest.raises(LimitExceeded, match="999999999999"):
        backend.get("a", max_size=10)


def test_an_object_that_changes_while_it_is_read_is_given_up_at_once(
    backend: Backend, server: Scripted
) -> None:
    def moving(request: Request) -> Reply:
        if "if-match" in request.headers:
            return refusal(412, "PreconditionFailed")
        span = {"Content-Range": f"bytes 0-{PART - 1}/{3 * PART}", "ETag": "1"}
        return Reply(206, bytes(PART), span)

    server.script = moving
    with pytest.raises(Unavailable, match=r"objects/aa/x was written while it was read\. Read it again"):
        backend.get("objects/aa/x", max_size=3 * PART)
    assert len(server.requests) <= 3


def test_a_server_that_ignores_ranges_is_found_out(backend: Backend, server: Scripted) -> None:
    server.script = lambda _: Reply(200, b"0123456789")
    assert backend.get("a", max_size=10) == b"0123456789"
    with pytest.raises(Unavailable, match="ranges"):
        backend.get("a", max_size=10, start=3, stop=5)


def listing(*names: str, more: str = "") -> Reply:
    entries = "".join(
        f"<Contents><Key>root/{name}</Key><Size>1</Size><LastModified>2026-12-01T10:00:00.000Z</LastModified>"
        "</Contents>"
        for name in names
    )
    return Reply(200, f"<ListBucketResult>{entries}{more}</ListBucketResult>".encode())


def test_a_listing_that_cannot_go_on_does_not_just_end(backend: Backend, server: Scripted) -> None:
    server.script = lambda _: listing("versions/1", more="<IsTruncated>true</IsTruncated>")
    with pytest.raises(Unavailable, match="broke off"):
        list(backend.list("versions/"))
    server.script = lambda _: Reply(200, b"<ListBucketResult><Contents><Key>root/a")
    with pytest.raises(BackendError):
        list(backend.list())


def test_a_listing_out_of_order_is_refused(backend: Backend, server: Scripted) -> None:
    server.script = lambda _: listing("versions/2", "versions/1")
    with pytest.raises(Unavailable, match="versions/1 after versions/2"):
        list(backend.list("versions/"))


def test_names_that_are_no_keys_are_left_out(backend: Backend, server: Scripted) -> None:
    server.script = lambda _: listing("A/b", "a", "b//c", "b/c", "b/d/", "é")
    assert [info.key for info in backend.list()] == ["a", "b/c"]


def test_a_key_that_could_not_be_deleted_is_named(backend: Backend, server: Scripted) -> None:
    text = "<DeleteResult><Error><Key>root/b</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    server.script = lambda _: Reply(200, text.encode())
    with pytest.raises(AuthError, match=r"^b: "):
        backend.delete(["a", "b"])
