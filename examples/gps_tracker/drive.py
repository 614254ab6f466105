"""Simulated devices that drive through San Francisco, and report ten times a second each."""

import asyncio
import random
import sys

from devices import Device, here

from millstream.runtime import Client, MillstreamError, connect

CENTRE = (37.7749, -122.4194)
REPORT_EVERY_S = 0.1
STEP_DEGREES = 0.00003


async def drive(client: Client, name: str) -> None:
    """Report the positions of one device until the program ends."""
    device = client.grain(Device, name)
    latitude = CENTRE[0] + random.uniform(-0.02, 0.02)
    longitude = CENTRE[1] + random.uniform(-0.02, 0.02)
    north, east = random.uniform(-1, 1), random.uniform(-1, 1)
    while True:
        north, east = turn(north), turn(east)
        latitude += north * STEP_DEGREES
        longitude += east * STEP_DEGREES
        try:
            await device.report(here(latitude, longitude))
        except MillstreamError as error:
            print(f"{name} could not report: {error}", flush=True)
        await asyncio.sleep(REPORT_EVERY_S)


def turn(speed: float) -> float:
    """Change a speed a little; it stays between -1 and 1."""
    return max(-1.0, min(1.0, speed + random.uniform(-0.1, 0.1)))


async def main(count: int) -> None:
    async with connect(membership="sqlite:data", cluster="gps") as client:
        print(f"{count} devices drive", flush=True)
        await asyncio.gather(*(drive(client, f"device-{i}") for i in range(count)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 20))
