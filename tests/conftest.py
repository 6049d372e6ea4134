"""Fixtures of tests that use a whole store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import torch
from s3_servers import BUCKET, S3Server, make_bucket, ministack
from support import State, new_store, small

from deltastore import Store

torch.set_num_threads(1)


@pytest.fixture
def store() -> Store:
    """An empty store in memory of its own."""
    return new_store()


@pytest.fixture
def weights() -> State:
    """What a trainer holds: it may be changed."""
    return small()


@pytest.fixture(scope="session")
def ministack_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for all tests of this process, with a bucket `deltastore-tests`."""
    with ministack(tmp_path_factory.mktemp("ministack")) as server:
        make_bucket(server)
        yield server


@pytest.fixture
def s3_root(ministack_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh `s3://` root that this process and its children reach by their environment."""
    for name, value in ministack_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
