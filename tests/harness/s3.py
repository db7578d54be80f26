"""An object store for tests, as S3 serves them: moto's server, on loopback, in memory.

Law: nothing leaves the machine, and credentials are made up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

BUCKET = "checkpoints"
_SECRETS = {
    "AWS_ACCESS_KEY_ID": "made-up-key",
    "AWS_SECRET_ACCESS_KEY": "made-up-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class S3Server:
    """One server with one bucket; and the requests that were made of it, a line each."""

    address: str
    requests: list[str] = field(default_factory=list)

    def uri(self, prefix: str = "root") -> str:
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1"
        return f"s3://{BUCKET}/{prefix}?{options}"

    def client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=f"http://{self.address}", region_name="us-east-1")

    def objects(self) -> dict[str, int]:
        """All names and sizes."""
        listed = self.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {one["Key"]: one["Size"] for one in listed}


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Slow to load: about a second."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    requests = _Requests()
    lines = logging.getLogger("werkzeug")
    lines.setLevel(logging.INFO)
    lines.propagate = False
    lines.addHandler(requests)
    with patch.dict(os.environ, _SECRETS):
        server.start()
        try:
            host, port = server.get_host_and_port()
            found = S3Server(f"{host}:{port}", requests.lines)
            found.client().create_bucket(Bucket=BUCKET)
            yield found
        finally:
            server.stop()
            lines.removeHandler(requests)


class _Requests(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
