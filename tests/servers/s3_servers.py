"""S3 servers to test with: each gives the options of `s3://` URLs that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from server_processes import accepts, free_port, installed, running

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
"""Of all servers here; to be put into the environment of clients and servers alike."""
REGION = "us-east-1"
BUCKET = "deltastore-tests"


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        name: Which.
        port: On 127.0.0.1.
    """

    name: str
    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """For `open_backend`."""
        return {"endpoint_url": self.endpoint, "region": REGION, "addressing": "path"}

    @property
    def environment(self) -> dict[str, str]:
        """For every AWS client that is given no options."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_DEFAULT_REGION": REGION}


_GRPC = 10_000
"""SeaweedFS also listens on ports so far above those that it is given."""


def make_bucket(server: S3Server) -> None:
    """Makes `BUCKET`."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


@contextmanager
def ministack(folder: Path) -> Iterator[S3Server]:
    """The S3 of ministack, in memory."""
    port = free_port()
    env = {
        **CREDENTIALS,
        "BIND_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",
        "SERVICES": "s3",
        "GATEWAY_PORT": str(port),
    }
    with running([installed("ministack")], log=folder / "ministack.log", ready=accepts(port), env=env):
        yield S3Server("ministack", port)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS with its S3 gateway, all in one process."""
    data = folder / "seaweedfs"
    data.mkdir()
    port, master, volume, filer = (free_port(beside=_GRPC) for _ in range(4))
    command = [
        installed("weed"),
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={port}",
        "-s3.port.iceberg=0",
        "-volume.max=0",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
    ]
    with running(command, log=folder / "seaweedfs.log", ready=accepts(port), env=CREDENTIALS):
        yield S3Server("seaweedfs", port)
