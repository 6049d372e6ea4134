"""The S3 driver against real servers."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator

import pytest
from s3_servers import BUCKET, CREDENTIALS, S3Server, make_bucket, ministack, seaweedfs
from test_contract import BackendContract

from deltastore.backends import Backend, open_backend
from deltastore.backends.remote import PART
from deltastore.errors import AuthError, BadURL, NotFound, Unavailable, UsageError
from deltastore.protocol import keys


@pytest.fixture(scope="module", params=[ministack, pytest.param(seaweedfs, marks=pytest.mark.servers)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, request.param(tmp_path_factory.mktemp("server")) as found:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        make_bucket(found)
        yield found


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/tests/{uuid.uuid4().hex}"


def opened(url: str, server: S3Server, **options: str) -> Backend:
    return open_backend(url, options=server.options | options)


BY_SEGMENT = {"test_prefix_is_a_directory_and_not_a_beginning", "test_listing_is_that_of_a_sorted_dict"}
"""These list keys that are in another order by segment than by byte."""


class TestS3(BackendContract):
    @pytest.fixture(autouse=True)
    def order(self, request: pytest.FixtureRequest, server: S3Server) -> None:
        if server.name == "seaweedfs" and request.node.originalname in BY_SEGMENT:
            pytest.skip("SeaweedFS lists by segment, which is the same for keys of the protocol only")

    @pytest.fixture
    def backend(self, server: S3Server, url: str) -> Iterator[Backend]:
        found = opened(url, server)
        yield found
        found.close()

    @pytest.fixture
    def other(self, backend: Backend, server: S3Server) -> Iterator[Backend]:
        found = opened(backend.url, server)
        yield found
        found.close()


def test_large_bodies_come_and_go_in_parts(server: S3Server, url: str) -> None:
    backend = opened(url, server)
    data = bytes(range(251)) * (5 * PART // 251 + 1)
    for key in ("objects/aa/small", "objects/aa/large"):
        body = data if key.endswith("large") else data[: PART + 1]
        backend.put(key, body)
        assert backend.head(key).size == len(body)
        assert backend.get(key, max_size=len(body)) == body
        start, stop = 3, PART + 1
        assert backend.get(key, max_size=PART, start=start, stop=stop) == body[start:stop]
    backend.close()


def test_a_handle_can_be_pickled(server: S3Server, url: str) -> None:
    backend = opened(url, server)
    backend.put("a", b"1")
    again = pickle.loads(pickle.dumps(backend))
    assert again.get("a", max_size=1) == b"1"
    assert again.url == backend.url == url


def test_a_bucket_that_is_not_there_is_no_missing_object(server: S3Server) -> None:
    backend = opened("s3://no-such-bucket-here/x", server)
    for ask in (lambda: backend.get("a", max_size=1), lambda: list(backend.list())):
        with pytest.raises(BadURL, match="bucket"):
            ask()


def test_no_server_is_unavailable(server: S3Server, url: str) -> None:
    backend = open_backend(url, options=server.options | {"endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable):
        backend.get("a", max_size=1)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///a",
        "s3://bucket//a",
        "s3://bucket/a/../b",
        "s3://key:secret@bucket/a",
        "s3://bucket/a?b=c",
    ],
)
def test_urls_that_name_no_place(url: str) -> None:
    with pytest.raises(BadURL) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)


def test_options_that_are_none(url: str) -> None:
    for options in ({"regoin": "x"}, {"addressing": "sideways"}, {"read_timeout": "soon"}):
        with pytest.raises(UsageError):
            open_backend(url, options=options)


def test_credentials_are_needed(server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(AuthError, match="credentials"):
        opened(url, server).get("a", max_size=1)
    with pytest.raises(BadURL, match="nobody"):
        opened(url, server, profile="nobody").get("a", max_size=1)


def test_missing_objects_are_not_found(server: S3Server, url: str) -> None:
    with pytest.raises(NotFound, match="versions/7"):
        opened(url, server).get("versions/7", max_size=1)


@pytest.mark.req("DS-BACK-4")
def test_keys_of_the_protocol_are_listed_in_order(server: S3Server, url: str) -> None:
    backend = opened(url, server)
    numbers = (0, 9, 10, 2**53 - 1)
    expected = [
        keys.STORE,
        *(keys.edge(n + 1, base, f"{n:064x}"[-64:]) for n in (1, 10) for base in (0, n, "none", "external")),
        keys.HEAD,
        *(keys.object_(f"{n:02x}" + "0" * 62) for n in (0, 9, 10, 255)),
        *(keys.status(name) for name in ("a", "a-b", "a.b", "ab")),
        *(keys.version(n) for n in numbers),
        "x/of-users",
    ]
    for key in reversed(expected):
        backend.put(key, b"")
    assert [info.key for info in backend.list()] == sorted(expected)
    after = keys.version(9)
    assert [info.key for info in backend.list(keys.VERSIONS, start_after=after)] == [
        keys.version(n) for n in numbers if n > 9
    ]
    backend.close()
