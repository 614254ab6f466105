"""`python -m benchmarks.spark.grouping`: the cost of `chunk_rows` for a silo, without a JVM.

A process stages rows of 1,000 keys with 70 bytes each and commits them, as a task and the driver of
Spark do. The silo is in this process, so the CPU time of this process is the silo's. Each size is
written twice. The first time, agents read the queues, and nobody subscribes. The second time, the
queues are paused, and the cost is that of storing alone.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.runtime import LocalCluster
from millstream.streams import HashRingMapper, PersistentStreams, pause_queue

ROWS = 30_000
QUEUES = 4
SIZES = (500, 10_000, 30_000)
WRITER = """
import sys, time
import pyarrow
from pyspark_millstream.options import WriteOptions
from pyspark_millstream.staging import commit_batch, stage_rows
from pyspark_millstream.tokens import Origin

gateway, chunk_rows, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = WriteOptions((gateway,), "rows", "key", ("id", "payload"), chunk_rows=chunk_rows)
batches = [
    pyarrow.record_batch({
        "id": list(part),
        "key": [f"k{n * 7919 % 1000}" for n in part],
        "payload": ["x" * 70] * len(part),
    })
    for part in (range(first, first + 10_000) for first in range(0, rows, 10_000))
]
before_s = time.process_time()
part = stage_rows(options, Origin("w", 0, 0), iter(batches))
commit_batch(options, [part])
print(part.messages, time.process_time() - before_s)
"""


async def written(chunk_rows: int, *, is_paused: bool) -> str:
    """Return a line of figures for one size."""
    with tempfile.TemporaryDirectory() as directory:

        def streams() -> PersistentStreams:
            queues = LedgerQueues(Path(directory) / "ledger")
            mapper = HashRingMapper(queues=QUEUES)
            return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

        async with LocalCluster(silos=1, grains=[], streams={"default": streams}) as cluster:
            await asyncio.sleep(1.5)
            for number in range(QUEUES if is_paused else 0):
                await pause_queue(cluster, f"queue-{number}")
            await asyncio.sleep(1.0)
            before_s = time.process_time()
            command = (sys.executable, "-c", WRITER, cluster.silos[0].gateway)
            writer = await asyncio.create_subprocess_exec(
                *command, str(chunk_rows), str(ROWS), stdout=asyncio.subprocess.PIPE
            )
            answer, _ = await writer.communicate()
            silo_s = time.process_time() - before_s
    messages, writer_s = answer.decode().split()
    return (
        f"chunk_rows {chunk_rows:6}, {'paused' if is_paused else 'read'}: {messages} messages, "
        f"silo {silo_s / ROWS * 1e6:5.1f} µs per row, "
        f"writer {float(writer_s) / ROWS * 1e6:4.1f} µs per row"
    )


async def main() -> None:
    """Print a line for each size."""
    for chunk_rows in SIZES:
        for is_paused in (False, True):
            print(await written(chunk_rows, is_paused=is_paused), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
