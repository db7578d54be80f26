"""Storage nodes in the simulation: lives of the shipped node server on a disk that forgets.

Owns the node's disk and what happens to it. A kill leaves what was written; a power cut leaves what
was synced for certain, and of the write that is under way any part; a wipe leaves nothing at all,
and the node comes back with another cookie, as another node (R05). A process dies between any two
operations on its disk.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.disk import SimDisk

from penstock.errors import Damaged, PenstockError, Unavailable, Unknown
from penstock.log.node.config import NodeConfig
from penstock.log.node.journal import journal_name
from penstock.log.node.journal_format import HEAD_BYTES, decode_head, find_format
from penstock.log.node.segment_store import file_name, parse_file_name
from penstock.log.node.server import NodeDisks, NodeServer
from penstock.log.replication.manifest import SegmentKey
from simulation.kernel import JobQueue, Process
from simulation.log.machine import CrashPoint, MachineDisk

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

TOKEN = "0123456789abcdef" * 2
PORT = 7000
#: A process that is to die in a write dies at one of so many operations on its disk: a write, an
#: fsync, whatever follows.
OPERATIONS_MAX = 3


#: How long it takes until a node that gave up is started again.
RESTART_SECONDS = 0.2


class NodeWriter(JobQueue):
    """The place where a node's writes are done, one at a time."""

    @property
    def is_busy(self) -> bool:
        return bool(self._works)

    def do_now(self) -> None:
        """Do the write that is under way: the process ends in it, or after it."""
        self._works[0]()


class Place(NamedTuple):
    """Bytes of a block on a disk."""

    key: SegmentKey
    block: int
    #: Of the file.
    name: str
    position: int
    size: int


def _synced_bytes(journal: bytes) -> int:
    """How much of a journal its own records say to be synced."""
    format = find_format(journal)
    synced, at = 0, 0
    with suppress(Damaged):
        while True:
            head = decode_head(journal, at, format)
            synced = max(synced, head.synced)
            at += head.size
    return synced


class SimNode:
    """One machine with a disk; `process` is its life now, None while it is down."""

    def __init__(self, world: ClusterWorld, number: int, *, region: str, rack: str) -> None:
        self._world = world
        self.name = f"n{number}"
        self.machine = f"127.0.1.{number + 1}"
        self.region = region
        self._rack = rack
        self.process: Process | None = None
        self.server: NodeServer | None = None
        self._data = SimDisk()
        self._disk: MachineDisk
        self._writer: NodeWriter
        self._lives = 0
        #: Until then, a write takes much longer.
        self.slow_until = 0.0

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def is_ready(self) -> bool:
        """It has recovered and listens."""
        return self.server is not None and self.server.ready.is_set()

    @property
    def is_registered(self) -> bool:
        server = self.server
        return self.is_ready and server is not None and server._registration.is_registered.is_set()

    def disk_delay(self) -> float:
        return self._world.disk_delay(self)

    # ---- lives

    def start(self) -> None:
        if self.process is not None:
            return
        self._lives += 1
        self._world.note(f"{self.name} starts")
        process = self._world.scheduler.process(f"{self.name}#{self._lives}", self.machine)
        process.job_seconds = self.disk_delay
        self.process = process
        self._disk = MachineDisk(self._data, lambda place, power_cut: self._die(process, power_cut))
        self._writer = NodeWriter(process)
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        world = self._world
        config = NodeConfig(
            self.name,
            Path("nowhere"),
            host=self.machine,
            port=PORT,
            region=self.region,
            rack=self._rack,
            journal_bytes=world.swarm.journal_bytes,
            trim_seconds=world.swarm.node_trim_seconds,
        )
        server = NodeServer(
            config,
            lambda: world.metadata.open(self.machine),
            apart=self._writer,
            clock=process.time,
        )
        server.listener.token = TOKEN
        self.server = server
        try:
            await server.run_on(NodeDisks(self._disk, self._disk, self._disk))
        except (PenstockError, OSError) as error:
            if self._disk.sync_failed:
                # A failed fsync may have written anything; the process must not go on (R48).
                world.count("node fsync failed")
            elif not isinstance(error, Unavailable | Unknown) or error.__cause__ is not None:
                world.fail(f"{self.name} ended: {error!r}", error)
            # Else the metadata failed it before it knew who it is.
            self._die(process, power_cut=False)
            world.after(RESTART_SECONDS, self.start)

    def _die(self, process: Process, power_cut: bool) -> None:
        """The process ends here and now."""
        if self.process is not process:
            return
        self.process = self.server = None
        self._world.note(f"{self.name} dies, power cut {power_cut}")
        self._data.kill()
        if power_cut:
            self._data = self._data.crash(self._world.random)
        process.kill(lose=power_cut)
        self._world.node_died(self)

    def stop(self, *, power_cut: bool) -> None:
        """It ends now; a write that is under way comes to some point of it, or to its end."""
        process, random = self.process, self._world.random
        if process is None:
            return
        if self._writer.is_busy and random.random() < 0.8:
            self._disk.crash_point = self._draw_crash_point(power_cut)
            self._writer.do_now()
            self._world.count("write cut" if self.process is None else "write kept")
        self._die(process, power_cut)

    def _draw_crash_point(self, power_cut: bool) -> CrashPoint:
        random = self._world.random
        # Mostly between a write and its fsync: what is torn is torn there.
        after = random.choice((1, 1, *range(OPERATIONS_MAX)))
        return CrashPoint(after, power_cut=power_cut, done=random.random() < 0.5)

    def cut_power_soon(self) -> None:
        """At one of its next operations on the disk, whatever that is, or a bit later."""
        process, world = self.process, self._world

        def strike() -> None:
            if process is not None and world.is_broken:
                self._die(process, True)

        if process is not None:
            self._disk.crash_point = self._draw_crash_point(True)
            world.after(0.5, strike)

    def fail_sync_soon(self) -> None:
        self._disk.fail_sync_after = self._world.random.randrange(3)

    def stop_failing(self) -> None:
        """What is armed against its disk is disarmed."""
        self.slow_until = 0.0
        if self.process is not None:
            self._disk.crash_point = self._disk.fail_sync_after = None

    def wipe(self) -> None:
        """The disk is gone. Whoever comes back is another node."""
        process = self.process
        if process is not None:
            self._die(process, power_cut=True)
        self._data = SimDisk()

    def damage_block(self) -> bool:
        """One block in a file goes bad; False if there is none that could."""
        places = self.places_in_files()
        if not places:
            return False
        place = self._world.random.choice(places)
        self._data.damage(place.name, place.position + place.size - 1)
        self._world.lost_block(self, place.key, place.block)
        return True

    def places_in_files(self) -> list[Place]:
        if not self.is_ready or self.server is None:
            return []
        return [
            Place(key, extent.block, file_name(key), extent.position, extent.size)
            for key, part in self.server.owner.store._parts.items()
            for extent in map(part.index.find, part.index._blocks)
            if extent is not None
        ]

    def places_in_journals(self) -> list[Place]:
        """Records of blocks that are nowhere else, with their heads; later ones vouch for them."""
        if not self.is_ready or self.server is None:
            return []
        parts = self.server.owner.store._parts.values()
        records = [record for part in parts for record in part.memory.values()]
        found = []
        for number in self.server.owner.journal.numbers:
            name = journal_name(number)
            data = self._data.durable(name)
            vouched = _synced_bytes(data)
            for record in records:
                at = data.find(bytes(record.data), 0, vouched)
                if at >= 0:
                    head = HEAD_BYTES + len(record.key.log)
                    size = head + len(record.data)
                    found.append(Place(record.key, record.block, name, at - head, size))
        return found

    def flip_bit(self, place: Place) -> None:
        random = self._world.random
        position = place.position + random.randrange(place.size)
        self._data.damage(place.name, position, 1 << random.randrange(8))
        self._world.lost_block(self, place.key, place.block)

    def files(self) -> list[SegmentKey]:
        """Parts that have a file."""
        return [key for name in self._data.names() if (key := parse_file_name(name)) is not None]

    def lose_file(self, key: SegmentKey) -> None:
        """The process ends, and when it comes back a file is not there any more."""
        self.stop(power_cut=False)
        if self._data.exists(file_name(key)):
            self._data.remove(file_name(key))
            self._data.sync_dir()
