"""An S3 server in this process, with a bucket for each test."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from preprocess.storage.remote import open_objects

SECRET = "very-secret-key-of-the-tests"
_numbers = itertools.count(1)


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Start a server if there is none, and yield the URL of a new bucket; sets the environment."""
    moto_server = pytest.importorskip(
        "moto.server", reason="an S3 server is needed: pip install 'moto[server]'"
    )
    pytest.importorskip("obstore", reason="buckets are read with obstore: tokenmill[remote]")
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        open_objects.cache_clear()
        name = f"bucket-{next(_numbers)}"
        boto3.client("s3").create_bucket(Bucket=name)
        try:
            yield f"s3://{name}"
        finally:
            open_objects.cache_clear()
            server.stop()
