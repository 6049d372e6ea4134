"""What is compared: forms of deltas and of anchors, each with what it takes to time and to check them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bench.model import Model

T = TypeVar("T")
R = TypeVar("R")


class Missing(Exception):
    """A form cannot be run here; the text says why, for the report."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is stored: complete files."""

    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(map(len, self.parts))


class Sender(Protocol):
    """Holds a base, in place or in its own way."""

    def send(self, new: Model) -> Message:
        """Compares, encodes, compresses, and moves the base to `new`."""

    def holds(self, model: Model) -> bool:
        """Whether the base is these bits."""


class Receiver(Protocol):
    """Holds weights."""

    def stage(self, message: Message) -> None:
        """All that can be done while the weights are still in use."""

    def commit(self) -> None:
        """The rest."""

    def holds(self, model: Model) -> bool:
        """Whether the weights are these bits."""


class DeltaForm(Protocol):
    """A way to send what changed."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def ours(self) -> bool:
        """Whether it is deltastore's."""

    @property
    def digest(self) -> str:
        """What is checked of the resulting weights; "" for nothing."""

    def require(self) -> None:
        """Makes sure that it can run.

        Raises:
            Missing: It cannot.
        """

    def sender(self, held: Model, cores: int) -> Sender:
        """A sender whose base is `held`, which it may take and change."""

    def receiver(self, held: Model, cores: int) -> Receiver:
        """A receiver whose weights are `held`, which it may take and change."""


class AnchorForm(Protocol):
    """A way to store a whole model."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def ours(self) -> bool:
        """Whether it is deltastore's."""

    def require(self) -> None:
        """As for `DeltaForm`."""

    def pack(self, model: Model, cores: int) -> Message:
        """The model's files; the model is only read."""

    def unpack(self, message: Message, into: Model, cores: int) -> None:
        """Overwrites a model of the same shapes."""


class InPlaceForm(ABC, Generic[T]):
    """A delta form that works on the model that it is given; what most peers are."""

    @property
    @abstractmethod
    def name(self) -> str:
        """See `DeltaForm`."""

    @property
    def ours(self) -> bool:
        """See `DeltaForm`."""
        return False

    @property
    def digest(self) -> str:
        """See `DeltaForm`."""
        return ""

    def require(self) -> None:
        """Runs anywhere unless it says otherwise."""

    @abstractmethod
    def encode(self, held: Model, new: Model, cores: int) -> bytes:
        """The file; `held` moves to `new`."""

    @abstractmethod
    def decode(self, data: bytes, held: Model, cores: int) -> T:
        """The changes, ready to be made; `held` is only read."""

    @abstractmethod
    def apply(self, held: Model, changes: T) -> None:
        """Makes them."""

    def sender(self, held: Model, cores: int) -> Sender:
        """See `DeltaForm`."""
        return _InPlaceSender(self, held, cores)

    def receiver(self, held: Model, cores: int) -> Receiver:
        """See `DeltaForm`."""
        return _InPlaceReceiver(self, held, cores)


class _InPlaceSender(Generic[T]):
    def __init__(self, form: InPlaceForm[T], held: Model, cores: int) -> None:
        self._form, self._held, self._cores = form, held, cores

    def send(self, new: Model) -> Message:
        return Message((self._form.encode(self._held, new, self._cores),))

    def holds(self, model: Model) -> bool:
        return self._held.same(model)


class _InPlaceReceiver(Generic[T]):
    def __init__(self, form: InPlaceForm[T], held: Model, cores: int) -> None:
        self._form, self._held, self._cores = form, held, cores
        self._staged: list[T] = []

    def stage(self, message: Message) -> None:
        self._staged.append(self._form.decode(message.parts[0], self._held, self._cores))

    def commit(self) -> None:
        self._form.apply(self._held, self._staged.pop())

    def holds(self, model: Model) -> bool:
        return self._held.same(model)


def each(cores: int, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Work over items, on threads where there are cores for them; results in order."""
    if cores == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(work, items))
