"""q0 … q8 in Flink SQL, each with its own columns and, last, `lat_ts` in milliseconds.

`lat_ts` is the moment from which a row's latency counts, as for all systems: the end of the window
for rows that appear with it, else the newest event that the row derives from. It adds no update
that the plain query would not make. The views `person`, `auction` and `bid` have `event_time`, the
time attribute, and `ms`, the same as a number. `newest` and `time_of_max` are in java/peer: the
built-in MAX needs time that grows with its state when its input may be taken back.
"""

from __future__ import annotations

from typing import Final

VIEWS: Final = {
    "person": (0, "id, name, emailAddress, creditCard, city, state, extra"),
    "auction": (
        1,
        "id, itemName, description, initialBid, reserve, expires, seller, category, extra",
    ),
    "bid": (2, "auction, bidder, price, channel, url, extra"),
}
#: The mode in which each is run, and whether `lat_ts` is the end of a window.
MODES: Final = {
    **dict.fromkeys(("q0", "q1", "q2", "q3", "q5", "q7", "q8"), "append"),
    "q4": "update",
}

_HIGHEST = """
    SELECT A.id, A.category, MAX(B.price) AS final,
      time_of_max(B.price, B.ms) AS sold_at
    FROM auction A JOIN bid B
      ON A.id = B.auction AND B.event_time >= A.event_time AND B.event_time <= A.expires
    GROUP BY A.id, A.category"""
_COUNTS = """
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""


def _first(kind: str, columns: str) -> str:
    """The first event of each window of 10 s that has these columns; it does not wait for the end.

    By the order in which rows come, which is that of their time: such rows are never taken back.
    """
    return f"""
    SELECT {columns}, w, ms FROM (
      SELECT {columns}, w, ms,
        ROW_NUMBER() OVER (PARTITION BY {columns}, w ORDER BY seen ASC) AS place
      FROM (SELECT {columns}, ms - MOD(ms, 10000) AS w, ms, PROCTIME() AS seen FROM {kind})
    ) WHERE place = 1"""


QUERIES: Final = {
    "q0": "SELECT auction, bidder, price, event_time AS `dateTime`, extra, ms AS lat_ts FROM bid",
    "q1": """
    SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
      event_time AS `dateTime`, extra, ms AS lat_ts
    FROM bid""",
    "q2": "SELECT auction, price, ms AS lat_ts FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
    SELECT P.name, P.city, P.state, A.id, GREATEST(P.ms, A.ms) AS lat_ts
    FROM (SELECT id, seller, ms FROM auction WHERE category = 10) A
    JOIN (SELECT id, name, city, state, ms FROM person WHERE state IN ('OR', 'ID', 'CA')) P
      ON A.seller = P.id""",
    "q4": f"""
    SELECT category, AVG(final) AS final, newest(sold_at) AS lat_ts
    FROM ({_HIGHEST}) GROUP BY category""",
    "q5": f"""
    SELECT C.auction, C.num, C.window_start AS starttime, C.window_end AS endtime,
      C.window_end AS lat_ts
    FROM ({_COUNTS}) C
    JOIN (SELECT MAX(num) AS most, window_start, window_end FROM ({_COUNTS})
          GROUP BY window_start, window_end) M
      ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most""",
    "q7": """
    SELECT B.auction, B.price, B.bidder, B.event_time AS `dateTime`, B.extra, M.window_end AS lat_ts
    FROM bid B
    JOIN (SELECT MAX(price) AS highest, window_start, window_end, window_time
          FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(event_time), INTERVAL '10' SECOND))
          GROUP BY window_start, window_end, window_time) M
      ON B.price = M.highest AND B.event_time >= M.window_time - INTERVAL '9.999' SECOND
      AND B.event_time <= M.window_time + INTERVAL '0.001' SECOND""",
    "q8": f"""
    SELECT P.id, P.name, TO_TIMESTAMP_LTZ(P.w, 3) AS starttime, GREATEST(P.ms, A.ms) AS lat_ts
    FROM ({_first("person", "id, name")}) P JOIN ({_first("auction", "seller")}) A
      ON P.id = A.seller AND P.w = A.w""",
}
REFUSED: Final = {
    "q6": "Flink 2.3 has no OVER with ROWS BETWEEN that is ordered by anything but a time attribute"
    ' ("Non-time attribute sort is not supported for bounded OVER window")',
}


def view(name: str) -> str:
    """The statement that makes the view."""
    number, columns = VIEWS[name]
    fields = ", ".join(f"{name}.{column} AS {column}" for column in columns.split(", "))
    return (
        f"CREATE TEMPORARY VIEW {name} AS SELECT {fields}, event_time, ms"
        f" FROM events WHERE event_type = {number}"
    )
