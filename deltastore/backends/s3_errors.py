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

_ABSENT: Final = {"NoSuchKey", "NotFound", "404"}
_SLOW: Final = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "TooManyRequestsException",
    "ServiceUnavailable",
    "OperationAborted",
}
_FULL: Final = {"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "EntityQuotaExceeded"}
_AGAIN: Final = {
    "ConditionalRequestConflict",
    "InternalError",
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "NoSuchUpload",
    "InvalidPart",
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
    return Unavailable(what, key=key)


def _answered(reply: Any, url: str, key: str) -> Exception:
    """For an answer of the server: by its code where that says something, else by its status."""
    code = str(reply.get("Error", {}).get("Code", ""))
    meta = reply.get("ResponseMetadata", {})
    status = meta.get("HTTPStatusCode") or (int(code) if code.isdigit() else 0)
    said = str(reply.get("Error", {}).get("Message", ""))[:300]
    what = f"{key or url}: {code or status} {said}".rstrip(". ")
    if status == 412 or code == "PreconditionFailed":
        return ConditionFailed(what)
    if status == 416 or code == "InvalidRange":
        return PastEnd(what)
    return _refused(what, code, status, meta, url=url, key=key)


def _refused(
    what: str, code: str, status: int, meta: dict[str, Any], *, url: str, key: str
) -> DeltaStoreError:
    if code == "NoSuchBucket":
        return BadURL(what, hint=f"Create the bucket of {url}, or see which one was meant")
    if code in _ABSENT:
        return NotFound(f"{key} is not there", key=key)
    if code in _FULL or status == 507:
        return NoSpace(what, key=key)
    if code in _SLOW or status in {429, 503}:
        headers = meta.get("HTTPHeaders", {})
        return Throttled(what, retry_after=_retry_after(headers), key=key)
    if code in _AGAIN or status == 409 or status >= 500 and status != 501:
        return Unavailable(what, key=key)
    if status in {401, 403} or code in {"ExpiredToken", "InvalidToken"}:
        hint = "Is this host's clock right?" if code == "RequestTimeTooSkewed" else "See its policy and keys"
        return AuthError(what, hint=hint, key=key)
    return Unsupported(what, hint=f"{url} does not take this request", key=key)


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
