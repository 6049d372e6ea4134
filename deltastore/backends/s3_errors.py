"""What boto3 raises, as errors of this library: the one place where it is decided."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any, Final

import botocore.exceptions as sdk

from deltastore.errors import (
    AuthError,
    BadURL,
    DeltaStoreError,
    NoSpace,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
)

_KINDS: Final[dict[str, type[DeltaStoreError]]] = {
    **dict.fromkeys(("NoSuchKey", "NotFound", "404"), NotFound),
    "NoSuchBucket": BadURL,
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull", "EntityQuotaExceeded"), NoSpace),
    **dict.fromkeys(
        (
            "SlowDown",
            "ServiceUnavailable",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "TooManyRequestsException",
        ),
        Throttled,
    ),
    **dict.fromkeys(
        ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"), Unavailable
    ),
    **dict.fromkeys(("NoSuchUpload", "InvalidPart"), Unavailable),
    **dict.fromkeys(("AccessDenied", "ExpiredToken", "InvalidToken"), AuthError),
    "InternalError": Unavailable,
}
"""Codes that say more than their status, come with several, or with none: for one key of many."""
_STATUSES: Final[dict[int, type[DeltaStoreError]]] = {
    401: AuthError,
    403: AuthError,
    404: NotFound,
    408: Unavailable,
    409: Unavailable,
    429: Throttled,
    501: Unsupported,
    503: Throttled,
    507: NoSpace,
}
_HINTS: Final = {
    AuthError: "See the policy of the bucket, the keys, and this host's clock",
    BadURL: "Create the bucket, or see which one was meant",
    NoSpace: "Raise the quota, or free some of it",
    Unavailable: "Try again later",
    Unsupported: "The server does not take this request",
}
_DENIED: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.NoAuthTokenError,
)
_MISUSED: Final = (
    sdk.ProfileNotFound,
    sdk.ParamValidationError,
    sdk.NoRegionError,
    sdk.InvalidRegionError,
    sdk.UnsupportedS3ConfigurationError,
    ValueError,
)


class ConditionFailed(Exception):
    """412: the object is there, or is not the one that was meant. The driver knows which it asked for."""


class PastEnd(Exception):
    """416: no byte of the object is in the range."""


def mapped(error: Exception, url: str, key: str = "") -> Exception:
    """The error to raise for one of boto3's.

    Args:
        error: What it raised.
        url: The root that it was asked about.
        key: The object, or the prefix of a listing.
    """
    if isinstance(error, sdk.ClientError):
        return _answered(error.response, url, key)
    what = f"{key or url}: {error}"
    if isinstance(error, _DENIED):
        return AuthError(what, hint="Give credentials where AWS clients look for them", key=key)
    if isinstance(error, _MISUSED):
        return BadURL(what, hint=f"See what the bucket, options and profile of {url} should be")
    return Unavailable(what, hint=_HINTS[Unavailable], key=key)


def _answered(reply: Any, url: str, key: str) -> Exception:
    """For an answer of the server: by its code where that says something, else by its status."""
    code = str(reply.get("Error", {}).get("Code", ""))
    meta = reply.get("ResponseMetadata", {})
    status = meta.get("HTTPStatusCode") or (int(code) if code.isdigit() else 0)
    said = str(reply.get("Error", {}).get("Message", ""))[:300]
    what = f"{key or url}: the server says {code or status} {said}".rstrip(". ")
    if status == 412 or code == "PreconditionFailed":
        return ConditionFailed(what)
    if status == 416 or code == "InvalidRange":
        return PastEnd(what)
    kind = _KINDS.get(code) or _STATUSES.get(status) or (Unsupported if 400 <= status < 500 else Unavailable)
    if kind is Throttled:
        return Throttled(what, retry_after=_retry_after(meta.get("HTTPHeaders", {})), key=key)
    if kind is NotFound:
        return NotFound(f"{key} is not there", key=key)
    return kind(what, hint=_HINTS.get(kind, ""), key=key)


def _retry_after(headers: dict[str, str]) -> float | None:
    """Seconds; a date is read by the clock of the answer itself."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None
