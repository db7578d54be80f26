"""Proxies: they own logs, follow others, and serve clients of both.

server.py             the process: listen, session, status
logs.py               which logs are open here
claims.py             pure: how a proxy becomes the owner of a log, and gives it back
config.py             its settings
session.py            the session with the metadata
open_log.py           become the owner: take the epoch, recover, go on
owned_log.py          the sequencer on replicated segments; rolling, control blocks
open_segment.py       the segment that is being written; nodes replaced
recover_segment.py    the end of a segment whose writer is gone
manifest_register.py  the manifest, changed by compare-and-set
followed_log.py       a log that another owns, read once for many readers
block_source.py       blocks from the best replica; one cache
log_view.py           a replicated log as reader.py wants it
housekeeping.py       indexes, age, cold copies
auditor.py            under-replicated segments, copied again
evacuation.py         an owner leaves nodes that are emptied or gone
"""
