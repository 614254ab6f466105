"""`millstream pq serve` as a process: it serves a cluster's queues, and ends on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession

from millstream.providers.priority import MemoryStore, PriorityQueues, priority_queue
from millstream.runtime import LocalCluster

TOKEN = "a-token-of-tests-0123456789"
pytestmark = pytest.mark.real


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_process_serves_and_ends(number: signal.Signals, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    store = MemoryStore()
    async with LocalCluster(
        grains=[], parts={"priority": lambda: PriorityQueues(store)}
    ) as cluster:
        await priority_queue(cluster, "encode").enqueue(b"x", id="m")
        gateway = cluster.silos[0].address.partition("@")[0]
        words = ["--gateway", gateway, "--port", "0", "--token-file", str(token)]
        command = [sys.executable, "-m", "millstream.console", "pq", "serve", *words]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                line = (await process.stdout.readline()).decode()
                assert line.startswith("priority queues of 'dev' at http://127.0.0.1:")
                headers = {"Authorization": f"Bearer {TOKEN}"}
                url = f"{line.split()[-1]}/v1/queues/encode/leases"
                async with ClientSession(headers=headers) as session:
                    async with session.post(url, json={"worker": "w"}) as response:
                        [lease] = (await response.json())["leases"]
                assert lease["id"] == "m"
                process.send_signal(number)
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode, out, err) == (0, b"", b"")
