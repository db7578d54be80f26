"""Real parts under control: disks that fail, servers to be killed, networks that stall.

disk.py            a disk in memory that loses what was not synced
faults.py          disks that fail on request, or write down what they are asked to do
answers.py         what batch Spark answered, remembered
threads.py         threads that a test leaves behind
user_code.py       what Python functions in a plan of Spark's are known by
crash_states.py    every disk that a power cut could leave behind, from a recorded trace
async_tests.py     tests and fixtures that are `async def`, on the event loop that ships
delivery_targets.py  targets of deliveries: in memory, failing on request, and in a file
remote_targets.py  hosts of targets, and a player that says what a test wants
driver.py          one log on one disk, without a server, checked against what was sent
engine_checkers.py the laws of exactly once, over all entries of a log
files.py           files as tests leave them: damaged, or secret
oracle.py          our operators beside batch Spark, for functions, operators and whole plans
java.py            Java for short programs
garbage.py         how often Python looks for garbage
http_gateway.py    a gateway on a thread or as a process, and a client of it
kafka_clients.py   Kafka's clients, with the address of a gateway and a token
kafka_member.py    a member of a consumer group, to be killed
kafka_wire.py      Kafka's protocol by hand
gateway.py         names of Java's classes, asked for once
history.py         what clients did and saw, and the check against the final log
served_log.py      a log server in the event loop of a test
server_process.py  a log server to be killed, paused and starved
postgres.py        PostgreSQL, the real one
redis.py           Redis, the real one
rooms.py           where state is: in memory, or in mapped files that are let go all the time
s3.py              an object store, as S3 serves them
in_process_cluster.py  nodes and proxies in one event loop, with real sockets
scraped.py         one of everything that has metrics, at work
soak.py            how long `make soak` goes on, and its seeds
tcp_proxy.py       a network that delays, stalls, cuts and swallows
ui_page.py         a page of `penstock ui` in a real browser
made_up_queries.py  queries that nobody runs, and reports of them
warm_parent.py     a process that has imported the servers, and forks them
warm_starts.py     servers as processes that start at once
mutation.py        bytes and messages that are nearly right
frame_wire.py      the protocols of frames by hand
cluster_process.py nodes and a proxy as a process
maven.py           Java's clients of Kafka: jars, settings, JVMs
ports.py           ports for servers that come back
waiting.py         polls for what has no event
"""
