"""The page: everything that runs on a log, live, in a browser.

server.py    the process: listening, TLS, how it stops
config.py    its settings and bounds
app.py       routes: which request does what
assets.py    the files of the page itself, and what they may do in a browser
live.py      one update a second, shared by all pages of a token
hearing.py   who is heard of, when clocks of two machines differ
gather.py    the facts of an update, read from the log
clusters.py  what the cluster of a log says of itself
tailing.py   a stream's rows as they come: filtered, and never more than a person reads
asking.py    what a page may ask for: stop, rescale
tickets.py   one page that signs in without being asked, for programs that open it
beside.py    the page beside another program, on a thread
place.py     where the page of a directory is served
card.py      a query as a small card, for notebooks
view/        what is shown, made of facts

The page is in the folder static; static/vendor has what others wrote.

Law: it holds no rights. Each page shows the token of who looks at it, and the log decides. It never
starts a log's server: of a log that is down it says so, and goes on when it is up.
"""
