"""Settings of Spark for small micro-batches: `penstock.tuned(SparkSession.builder)`.

Owns what is set, and when it is not. Law: what the user said on the builder stays. No setting here
gives up exactly once of one driver; without files of checksums, damage to a local checkpoint is not
noticed. docs/spark.md has them as a table, with what each is worth, and those that trade something
and are left to the user; and what two drivers on one local checkpoint can do to each other.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any, Final

#: By default Spark starts about twenty processes a batch to keep its checkpoint on a local disk.
#: Not for clusters, whose checkpoints are elsewhere: their file manager may be chosen with care.
FILE_MANAGER: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    )
}
#: Local files without files of checksums beside them, of Hadoop's kind and of Spark's.
RAW_FILES: Final = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
UNIX_SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
#: Workers that are there at once. Not for clusters, whose Python may have no Penstock.
LOADED_WORKERS: Final = {"spark.python.daemon.module": "penstock.spark.daemon"}
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"

_STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def tuned(builder: Any) -> Any:
    """Set what makes small micro-batches fast, and return the builder; for a new session.

    Call it last: it leaves alone whatever the builder has by then, and some settings depend on it
    (the master, the state store).
    """
    said = dict(builder._options)
    for name, value in tuned_settings(said, os.environ).items():
        if name not in said:
            builder = builder.config(name, value)
    return builder


def tuned_settings(said: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """What `tuned` sets on a builder of which this was said so far."""
    master = str(said.get("spark.master", ""))
    settings = FILE_MANAGER | LOADED_WORKERS if master.startswith("local") else {}
    if raw_files_are_safe(said, environment):
        settings |= RAW_FILES
    if hasattr(socket, "AF_UNIX") and "PYSPARK_UDS_MODE" not in environment:
        settings |= UNIX_SOCKETS
    cores = count_cores(said)
    if cores is not None:
        settings[SHUFFLE_PARTITIONS] = str(cores)
    return settings


def raw_files_are_safe(said: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether nothing will ask Hadoop for its local file system with checksums.

    RocksDB's uploads do, and fail if there is none; other clients of Hadoop may. So only on one
    machine, with Spark's default state store and nothing but local files, as far as the builder
    tells.
    """
    place = str(said.get(_CHECKPOINTS, ""))
    return (
        _LOCAL.fullmatch(str(said.get("spark.master", ""))) is not None
        and "HDFSBacked" in str(said.get(_STATE_STORE, "HDFSBacked"))
        and ("://" not in place or place.startswith("file://"))
        and not any(name.startswith("spark.hadoop.fs.") for name in said)
        and "HADOOP_CONF_DIR" not in environment
    )


def count_cores(said: Mapping[str, Any]) -> int | None:
    """Cores of the session, if the builder tells: a shuffle into more parts costs a task each."""
    master = str(said.get("spark.master", ""))
    local = _LOCAL.fullmatch(master)
    if local is not None:
        threads = local.group(1) or "1"
        return (os.cpu_count() or 1) if threads == "*" else int(threads)
    cluster = _LOCAL_CLUSTER.fullmatch(master)
    if cluster is not None:
        return int(cluster.group(1)) * int(cluster.group(2))
    executors, cores = said.get("spark.executor.instances"), said.get("spark.executor.cores")
    return None if executors is None or cores is None else int(executors) * int(cores)
