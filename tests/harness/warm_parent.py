"""A process that has imported the servers, and forks one for each request.

Run by warm_starts.py, which talks to it over a socket: a line of JSON each way. Owns its children
until they are asked for: an ended one stays a zombie, so its pid means nobody else. Law: it has no
threads and no event loop, so a child begins as a Python process that has just imported its module.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from typing import Any

from harness.warm_starts import MODULES
from penstock.log.node import __main__ as node
from penstock.log.proxy import __main__ as proxy
from penstock.log.server import __main__ as server

MAINS = dict(zip(MODULES, (server.main, node.main, proxy.main), strict=True))


def serve(requests: socket.socket) -> int:
    """Until the other side is gone; in a child, until its server ends. The exit code of either."""
    with requests.makefile("r") as lines:
        for line in lines:
            request = json.loads(line)
            if "reap" in request:
                answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
            else:
                answer = os.fork()
                if not answer:
                    break
            requests.sendall(b"%d\n" % answer)
        else:
            return 0
    requests.close()
    become(request)
    return MAINS[request["module"]]()


def become(request: dict[str, Any]) -> None:
    """Take over all that a process of its own is started with."""
    os.setsid()
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, wanted in enumerate((nothing, output, output)):
        os.dup2(wanted, number)
    os.close(nothing)
    os.close(output)
    sys.argv = [request["module"], *request["options"]]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
