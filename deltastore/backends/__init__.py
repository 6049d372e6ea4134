"""Where objects are kept (spec, Storage): `open_backend` turns a URL into a `Backend`.

Local directories and process memory are built in; every other scheme is looked up in the entry point
group `deltastore.backends`, so that a driver can come from another distribution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final, cast

from deltastore.backends.base import Backend, Buffer, Capabilities, Driver, ObjectInfo, Put
from deltastore.backends.local import LocalBackend
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.errors import BadURL

__all__ = [
    "GROUP",
    "Backend",
    "Buffer",
    "Capabilities",
    "Driver",
    "LocalBackend",
    "MemoryBackend",
    "ObjectInfo",
    "Put",
    "RetryPolicy",
    "open_backend",
]

GROUP: Final = "deltastore.backends"
"""Entry points of this group are named by URL scheme and lead to a `Driver`."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
_BUILT_IN: Final[Mapping[str, type[Driver]]] = {"file": LocalBackend, "memory": MemoryBackend}


def open_backend(url: str, *, options: Mapping[str, str] | None = None) -> Backend:
    """Opens the storage at a URL; nothing is read or written yet.

    Args:
        url: `file:///absolute/path`, a plain path, `memory://name`, or a scheme that a driver serves.
        options: What the driver of the scheme takes, such as a region; an unknown name is refused.

    Raises:
        BadURL: Nothing here understands it.
    """
    match = _SCHEME.match(url)
    scheme = (match[1] or match[2]).lower() if match else "file"
    return _driver(scheme, url).from_url(url, options=options or {})


def _driver(scheme: str, url: str) -> type[Driver]:
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme]
    for found in entry_points(group=GROUP, name=scheme):
        try:
            return cast(type[Driver], found.load())
        except ImportError as error:
            what = f"{found.dist.name}[{','.join(found.extras)}]" if found.dist else found.value
            hint = f"pip install '{what}'" if found.extras else f"Install what {found.value} needs"
            raise BadURL(f"the driver for {url} does not load: {error}", hint=hint) from error
    known = sorted({*_BUILT_IN, *(found.name for found in entry_points(group=GROUP))})
    hint = f"Schemes known here: {', '.join(known)}; another needs an entry point of {GROUP}"
    raise BadURL(f"no backend is installed for {url}", hint=hint)
