"""The gateway: the log for programs that are not written in Python, over HTTP and Kafka's protocol.

server.py       the process
http_server.py  uvicorn with our listening, TLS, limits before a request is one, how it stops
guests.py       its listeners, and who has connected and shown nothing yet
config.py       its settings and bounds
app.py          routes: which request does what
endpoints.py    requests that show a token: served with its session, or refused in words
bodies.py       a request's body: read within bounds, decoded to record batches
replies.py      rows on their way out: NDJSON, CSV, Arrow, server-sent events
streaming.py    answers that are sent piece by piece, to clients that may be slow
reading.py      the committed reader on a loop
sessions.py     connections to the log, one for each token that callers show
keys.py         Idempotency-Key: which producer and which seq it says
appending.py    appends under such a key, and without
problems.py     what an error is over HTTP
description.py  /openapi.json and the page made of it
metrics.py      what is counted
kafka/          the listener for Kafka's clients

Law: it holds no rights and no state that matters. What a caller may do, the log decides by the
caller's token; what was appended, the log knows. So there may be any number of gateways, and any of
them may end at any moment.
"""
