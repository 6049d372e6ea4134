"""Numbers as people read them; `--json` never passes through here."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_AGES = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "m"))
_SHORT = 12


def size(count: int) -> str:
    """Bytes in decimal units with three digits: `1.23 MB`."""
    if count < 1000:
        return f"{count} B"
    value, power = count / 1000, 0
    while value >= 999.5 and power < len(_UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {_UNITS[power]}"


def number(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"


def plural(count: int, one: str, many: str = "") -> str:
    """A count of things."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(part: float, whole: float) -> str:
    """A share with as many digits as it takes: `0.012 %`, `1.02 %`, `66.5 %`, `100 %`."""
    if not whole:
        return "-"
    value = 100 * part / whole
    if value == 0 or value >= 99.95:
        return f"{value:.0f} %"
    digits = 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f} %"


def age(seconds: float) -> str:
    """A time span in its largest unit: `3 m`."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def when(seconds: float) -> str:
    """A moment in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def digest(value: int | None) -> str | None:
    """A state digest as 16 hexadecimal digits."""
    return None if value is None else f"{value:016x}"


def short(sha256: str, *, full: bool = False) -> str:
    """The first digits of a SHA-256, or all of them."""
    return sha256 if full or len(sha256) <= _SHORT else f"{sha256[:_SHORT]}…"
