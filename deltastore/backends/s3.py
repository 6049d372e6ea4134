"""S3, and everything that speaks it, through boto3 (spec, Storage): `s3://bucket/prefix`.

Credentials, region, profile and endpoint are found where every AWS client looks for them; options override.
boto3 tries nothing again: a conditional put that is repeated after a lost reply would take itself for another
writer's (decision 24).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

import boto3
import botocore.config
import botocore.exceptions as sdk

from deltastore.backends.base import (
    Buffer,
    Capabilities,
    ObjectInfo,
    Put,
    check_all,
    check_options,
    check_range,
    check_start,
    flat,
)
from deltastore.backends.remote import PARALLEL, PART, Admit, Moved, Parts, PerProcess, Piece, Root
from deltastore.backends.s3_errors import ConditionFailed, PastEnd, mapped
from deltastore.errors import BackendError, Unavailable, UsageError
from deltastore.protocol import keys

if TYPE_CHECKING:
    from botocore.client import BaseClient

_OPTIONS: Final = ("region", "endpoint_url", "profile", "addressing", "connect_timeout", "read_timeout")
_ADDRESSING: Final = ("auto", "path", "virtual")
_MULTIPART: Final = 4 * PART
"""Bodies over so many bytes are put in parts."""
_MOST_PARTS: Final = 10_000
_PER_DELETE: Final = 1000
"""Keys of one request."""


class S3Backend:
    """Objects in a bucket.

    Args:
        root: Bucket and prefix.
        region: As for boto3; by default what its configuration says.
        endpoint_url: Of another server than AWS's.
        profile: Of the AWS configuration.
        addressing: How buckets are named in requests: `path`, `virtual`, or `auto`.
        connect_timeout: Seconds for a connection to be made.
        read_timeout: Seconds without a byte of a reply.
    """

    def __init__(
        self,
        root: Root,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        addressing: str = "auto",
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
    ) -> None:
        self._root = root
        self._settings: dict[str, Any] = {
            "region": region,
            "endpoint_url": endpoint_url,
            "profile": profile,
            "addressing": addressing,
            "connect_timeout": connect_timeout,
            "read_timeout": read_timeout,
        }
        self._clients: PerProcess[Any] = PerProcess(self._client, lambda client: client.close())
        self._parts = Parts()

    @classmethod
    def from_url(cls, url: str, *, options: Mapping[str, str]) -> Self:
        """Opens `s3://bucket/prefix`; options are the arguments of the class."""
        check_options(url, options, known=_OPTIONS)
        settings: dict[str, Any] = dict(options)
        for name in ("connect_timeout", "read_timeout"):
            if name in settings:
                settings[name] = _seconds(name, settings[name])
        if settings.get("addressing", "auto") not in _ADDRESSING:
            raise UsageError(f"addressing={settings['addressing']}", hint=f"One of {', '.join(_ADDRESSING)}")
        return cls(Root.of(url), **settings)

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._root.url

    @property
    def capabilities(self) -> Capabilities:
        """All of them, as AWS has them; a server that has not is found out by a probe."""
        return Capabilities(put_if_absent=True, strong_list=True, ranged_get=True, server_time=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self._root, **self._settings), ()

    def put(self, key: str, data: Buffer) -> None:
        """See `Backend.put`."""
        path, body = self._root.path(key), flat(data)
        if body.nbytes > _MULTIPART:
            self._put_parts(key, path, body)
        else:
            self._ask("put_object", key, Key=path, Body=_sent(data))

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """See `Backend.put_if_absent`."""
        path = self._root.path(key)
        try:
            self._ask("put_object", key, Key=path, Body=_sent(data), IfNoneMatch="*")
        except ConditionFailed:
            return Put.EXISTS
        return Put.CREATED

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """See `Backend.get`."""
        keys.check(key)
        check_range(key, start=start, stop=stop)
        if start == stop:
            self.head(key)
            return b""
        return self._parts.get(key, partial(self._read, key), start=start, stop=stop, max_size=max_size)

    def head(self, key: str) -> ObjectInfo:
        """See `Backend.head`."""
        found = self._ask("head_object", key, Key=self._root.path(key))
        return ObjectInfo(key, found["ContentLength"], found["LastModified"].timestamp())

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Backend.list`; a page of at most 1000 objects at a time."""
        keys.check_prefix(prefix)
        check_start(start_after)
        return self._root.listed(self._pages(prefix, start_after), start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`; up to 1000 keys with each request."""
        names = iter(check_all(keys))
        while batch := [*islice(names, _PER_DELETE)]:
            objects = [{"Key": self._root.path(key)} for key in batch]
            reply = self._ask("delete_objects", batch[0], Delete={"Objects": objects, "Quiet": True})
            for error in reply.get("Errors", ()):
                key = error.get("Key", "").removeprefix(self._root.prefix)
                raise mapped(sdk.ClientError({"Error": error}, "DeleteObjects"), self.url, key)

    def close(self) -> None:
        """See `Backend.close`."""
        self._parts.close()
        self._clients.close()

    def _pages(self, prefix: str, start_after: str) -> Iterator[tuple[str, int, float]]:
        place = {"Prefix": self._root.prefix + prefix}
        if start_after:
            place["StartAfter"] = self._root.prefix + start_after
        token: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", prefix or self.url, **place, **token)
            for found in page.get("Contents", ()):
                yield found["Key"], found["Size"], found["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                what = f"{self.url} broke off a listing of {prefix!r}"
                raise Unavailable(what, hint="It was given up; list again")
            token = {"ContinuationToken": page["NextContinuationToken"]}

    # --- Requests ---------------------------------------------------------------------------------------

    def _client(self) -> BaseClient:
        try:
            session = boto3.session.Session(
                profile_name=self._settings["profile"], region_name=self._settings["region"]
            )
            return session.client(
                "s3",
                endpoint_url=self._settings["endpoint_url"],
                config=botocore.config.Config(
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    connect_timeout=self._settings["connect_timeout"],
                    read_timeout=self._settings["read_timeout"],
                    max_pool_connections=4 * PARALLEL,
                    tcp_keepalive=True,
                    s3={"addressing_style": self._settings["addressing"]},
                ),
            )
        except (sdk.BotoCoreError, ValueError) as error:
            raise mapped(error, self.url) from error

    def _ask(self, operation: str, key: str, **arguments: Any) -> Any:
        """One request.

        Raises:
            ConditionFailed: The condition that was asked for does not hold.
            PastEnd: No byte of the object is in the range.
            BackendError, UsageError: See `s3_errors.mapped`.
        """
        client = self._clients.get()
        try:
            return getattr(client, operation)(Bucket=self._root.bucket, **arguments)
        except (sdk.BotoCoreError, sdk.ClientError) as error:
            raise mapped(error, self.url, key) from error

    def _read(self, key: str, start: int, stop: int | None, tag: str, admit: Admit) -> Piece:
        span = f"bytes={start}-{'' if stop is None else stop - 1}"
        try:
            reply = self._ask(
                "get_object", key, Key=self._root.path(key), Range=span, **({"IfMatch": tag} if tag else {})
            )
        except ConditionFailed as error:
            raise Moved from error
        except PastEnd:
            size = self.head(key).size
            if size > start:
                raise Moved from None
            admit(size)
            return Piece(b"", size, tag)
        body = reply["Body"]
        with closing(body):
            length, within = reply["ContentLength"], reply.get("ContentRange")
            if start and not within:
                raise Unavailable(f"{self.url} ignores ranges", hint="A store needs them", key=key)
            total = int(within.rpartition("/")[2]) if within else length
            wanted = admit(total)
            try:
                # To the end where that is what is wanted: the connection can then be used again.
                data: bytes = body.read() if wanted == length else body.read(wanted)
            except (sdk.BotoCoreError, OSError) as error:
                raise mapped(error, self.url, key) from error
        if len(data) != wanted:
            raise Unavailable(
                f"{key} broke off after {len(data)} of {wanted} bytes", hint="Read it again", key=key
            )
        return Piece(data, total, reply.get("ETag", ""))

    def _put_parts(self, key: str, path: str, body: memoryview) -> None:
        """A body in parts; where one fails for good, all are given up, and the object is as before."""
        upload = self._ask("create_multipart_upload", key, Key=path)["UploadId"]
        part = max(PART, -(-body.nbytes // _MOST_PARTS))

        def send(number: int) -> dict[str, Any]:
            piece = body[(number - 1) * part : number * part].tobytes()
            sent = self._ask("upload_part", key, Key=path, UploadId=upload, PartNumber=number, Body=piece)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        try:
            numbers = range(1, -(-body.nbytes // part) + 1)
            done = self._parts.run([partial(send, number) for number in numbers])
            self._ask(
                "complete_multipart_upload", key, Key=path, UploadId=upload, MultipartUpload={"Parts": done}
            )
        except BaseException:
            with suppress(BackendError, UsageError):
                self._ask("abort_multipart_upload", key, Key=path, UploadId=upload)
            raise


def _sent(data: Buffer) -> bytes:
    """A body as boto3 takes it; bytes are not copied."""
    return data if isinstance(data, bytes) else flat(data).tobytes()


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"{name}={text}", hint="It is a number of seconds")
    return seconds
