"""A process that may open no more files: what it can still do, and that it says what it cannot."""

from __future__ import annotations

import json
import resource
import sys

import pytest
from support.messages import publish
from support.process import launched
from support.wire import request

from halley.transports.api.archive import UNREADABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another process's limits can be set on Linux only")


async def test_without_a_free_descriptor_readers_are_told_to_come_again(tmp_path):
    """Connections that are there are served; the history says 503, and is whole when there is a descriptor again."""
    async with launched(cwd=tmp_path, HALLEY_LOG_FORMAT="json", HALLEY_HISTORY_FREE_BYTES="0") as server:
        wire = await server.wire()
        assert (await wire.post(publish("/a", 1))).messages[0]["successful"]
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            for target in ("/history/a", "/log?from_offset=1&until_offset=1", "/events/a?last=1"):
                refused = await wire.request(request("GET", target))
                assert (refused.status, refused.text, refused.headers["retry-after"]) == (503, UNREADABLE, "5")
            assert (await wire.post(publish("/a", 2))).messages[0]["successful"]
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        page = json.loads((await wire.request(request("GET", "/history/a"))).body)
        assert [event["data"] for event in page["events"]] == [1, 2]
        assert "gaps" not in page
        assert server.logged("history_unreadable")
        assert {line["what"] for line in server.logged("fault")} <= {"retention"}
        assert not server.logged("history_damaged")
