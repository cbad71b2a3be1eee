"""A real object store for tests: SeaweedFS, which speaks S3, on this machine, with a bucket `lakes`.

Its program is in the extra [store].
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import orjson
from pyarrow import fs

from halley.processes import free_port
from support.programs import require_store

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = "lakes"
READY_S = 90
_RIGHTS = {"owner": ["Admin", "Read", "Write", "List", "Tagging"], "reader": ["Read", "List"]}
_PARTS = ("master", "volume", "filer", "s3")


class ObjectStore:
    """A store whose data are in a folder; it can be killed and started again on the same ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = require_store()
        ports: set[int] = set()
        while len(ports) < 2 * len(_PARTS):
            ports.add(free_port())
        found = iter(ports)
        self._ports = {f"{part}.port{kind}": next(found) for part in _PARTS for kind in ("", ".grpc")}
        self.url = f"http://127.0.0.1:{self._ports['s3.port']}"
        identities = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}], "actions": rights}
            for name, rights in _RIGHTS.items()
        ]
        (folder / "s3.json").write_bytes(orjson.dumps({"identities": identities}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until the bucket is there and takes a file."""
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        local = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=127.0.0.1", f"-s3.config={self._folder}/s3.json"]
        size = ["-volume.max=30", "-master.volumeSizeLimitMB=64"]
        with (self._folder / "weed.log").open("ab") as log:
            what = ["server", f"-dir={self._folder}", "-filer", "-s3", "-s3.port.iceberg=0"]
            self._process = subprocess.Popen(
                [self._program, *what, *ports, *local, *size],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.files.create_dir(BUCKET)
                with self.files.open_output_stream(f"{BUCKET}/ready") as out:
                    out.write(b"ready")
            except OSError:
                assert self._process.poll() is None, "SeaweedFS has ended"
                assert time.monotonic() < deadline, "SeaweedFS does not get ready"
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def files(self) -> fs.FileSystem:
        """All of its files, by bucket and path."""
        return fs.S3FileSystem(
            access_key="owner",
            secret_key="owner-secret",
            endpoint_override=self.url.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def listing(self) -> dict[str, int]:
        """Return the sizes of the bucket's files by their paths."""
        found = self.files.get_file_info(fs.FileSelector(BUCKET, recursive=True))
        return {each.path: each.size for each in found if each.is_file}

    def variables(self, who: str = "owner", **more: str) -> dict[str, str]:
        """Return the environment variables with which `who` finds it: owner, reader, or someone unknown."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": who,
            "AWS_SECRET_ACCESS_KEY": f"{who}-secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }

    def environment(self, who: str = "owner", **more: str) -> dict[str, str]:
        """Return the variables of this process and those of `variables`."""
        return os.environ | self.variables(who, **more)
