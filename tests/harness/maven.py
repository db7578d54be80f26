"""Java's clients of Kafka for soak tests: their jars from Maven, their JVMs with small heaps.

A directory of tests/jvm has a pom.xml; what it depends on is fetched once, and again when the file
has changed. Where there is no Maven, the test is skipped; in CI it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from penstock_bench.fetch import copy_jars

from penstock.log.serving.directory import Address

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "jvm"
_JAVA: Final = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"

Properties = Mapping[str, object]


def jars(name: str) -> Path:
    """Where those of tests/jvm/NAME are."""
    if shutil.which("mvn") is None:
        reason = "Maven is missing (Debian: maven)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    pom = DIRECTORY / name / "pom.xml"
    found = Path(sys.prefix) / "jars" / name
    stamp = found / "pom.xml"
    if not stamp.exists() or stamp.read_bytes() != pom.read_bytes():
        copy_jars(pom, found, print, owner=name)
        shutil.copy(pom, stamp)
    return found


def write_properties(path: Path, properties: Properties) -> Path:
    """As Java reads them."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n")

    lines = [f"{name}={escaped(str(value))}\n" for name, value in properties.items()]
    path.write_text("".join(lines))
    return path


def java_ways(address: Address, token: str, *, authority: Path | None = None) -> dict[str, object]:
    """How Kafka's own clients come to a gateway."""
    ways: dict[str, object] = {
        "bootstrap.servers": f"{address.host}:{address.port}",
        "security.protocol": "SASL_SSL" if address.tls else "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{_PLAIN} required username="anybody" password="{token}";',
    }
    if authority is not None:
        ways |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    return ways


@contextmanager
def running_java(
    name: str, *arguments: object, log: Path, options: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A program with its jars (tests/jvm/NAME); what it logs goes to a file. Killed in the end."""
    logging = f"-Dlog4j2.configurationFile={DIRECTORY / 'log4j2.properties'}"
    command = [*_JAVA, logging, *options, "-cp", f"{jars(name)}/*", *map(str, arguments)]
    with log.open("a") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_java(name: str, *arguments: object, log: Path, seconds: float = 120) -> list[list[str]]:
    """The lines that it said, each in its parts."""
    with running_java(name, *arguments, log=log) as process:
        said, _ = process.communicate(timeout=seconds)
    assert not process.returncode, log.read_text()[-5000:]
    return [line.split("\t") for line in said.splitlines()]
