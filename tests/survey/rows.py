"""The rows that every construct of the survey is run over: two streams and two static tables."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Final

import pyarrow as pa

_NOON: Final = dt.datetime(2024, 3, 1, 12, 0, tzinfo=dt.UTC)
_NAMES: Final = ("ann", "bob", "cyd", None, "Dörte")
_ITEMS: Final = ("book", "pen", "lamp", "desk")
_PRICES: Final = (12.5, 3.25, None, 99.9, 250.0, 12.5)
_NOTES: Final = (
    "first order, please wrap",
    "call +49 30 1234567",
    None,
    "naïve café ☕ order #42",
    "  padded  ",
    "",
)


def _order(index: int) -> dict[str, object]:
    """The order of this number; every field that may be null is null somewhere."""
    time = _NOON + dt.timedelta(minutes=7 * index, seconds=13 * index)
    name, item, price = _NAMES[index % 5], _ITEMS[index % 4], _PRICES[index % 6]
    quantity = None if index % 7 == 6 else index % 4 + 1
    city = ("Berlin", "Oslo", "Porto")[index % 3]
    return {
        "id": index,
        "customer": name,
        "item": item,
        "price": price,
        "amount": None if index % 8 == 5 else Decimal(index * 325) / 100,
        "quantity": quantity,
        "active": None if index % 6 == 4 else index % 2 == 0,
        "note": _NOTES[index % 6],
        "tags": None if index % 5 == 4 else ["new", item, "new"][: index % 4],
        "scores": None if index % 6 == 5 else [index, None, 3, index % 2][: index % 5],
        "attrs": None if index % 5 == 3 else [("color", "red"), ("size", str(index))][: index % 3],
        "address": None if index % 9 == 8 else {"city": city, "zip": f"{10115 + index}"},
        "lines": [
            {"sku": f"{item}-{n}", "qty": n + 1, "cost": 1.5 * n if n else None}
            for n in range(index % 3)
        ],
        "ts": time,
        "local": time.replace(tzinfo=None),
        "day": None if index % 10 == 9 else time.date() + dt.timedelta(days=20 * index),
        "time_text": time.strftime("%Y-%m-%d %H:%M:%S"),
        "day_text": time.strftime("%d/%m/%Y"),
        "epoch": int(time.timestamp()),
        "json": f'{{"user":{{"name":"u{index}","age":{20 + index}}},"ok":true,"list":[1,{index}]}}'
        if index % 6
        else '{"user": broken',
        "csv": f"{index},{item},{price if price is not None else ''}",
        "xml": f"<o><id>{index}</id><item>{item}</item></o>",
        "url": f"https://shop.example/p/{item}?q={index}&lang=en#top",
        "email": f"{name or 'nobody'}@mail.example",
        "code": f"AB-{100 + index}-{item[:1]}",
        "number_text": f"{index},{100 + index}.50",
        "raw": bytes([index, 255 - index, 65]),
    }


_LINE: Final = pa.struct([("sku", pa.string()), ("qty", pa.int32()), ("cost", pa.float64())])
_ORDERS: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("item", pa.string()),
        ("price", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
        ("quantity", pa.int32()),
        ("active", pa.bool_()),
        ("note", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("scores", pa.list_(pa.int32())),
        ("attrs", pa.map_(pa.string(), pa.string())),
        ("address", pa.struct([("city", pa.string()), ("zip", pa.string())])),
        ("lines", pa.list_(_LINE)),
        ("ts", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("time_text", pa.string()),
        ("day_text", pa.string()),
        ("epoch", pa.int64()),
        ("json", pa.string()),
        ("csv", pa.string()),
        ("xml", pa.string()),
        ("url", pa.string()),
        ("email", pa.string()),
        ("code", pa.string()),
        ("number_text", pa.string()),
        ("raw", pa.binary()),
    ]
)


def _payment(index: int) -> dict[str, object]:
    """Some orders are paid twice, some never; some payments are of no order."""
    return {
        "order_id": (index * 3) % 16,
        "payer": _NAMES[index % 5],
        "paid": round(2.5 * index, 2),
        "method": ("card", "cash", None)[index % 3],
        "paid_at": _NOON + dt.timedelta(minutes=9 * index),
    }


_PAYMENTS: Final = pa.schema(
    [
        ("order_id", pa.int64()),
        ("payer", pa.string()),
        ("paid", pa.float64()),
        ("method", pa.string()),
        ("paid_at", pa.timestamp("us", "UTC")),
    ]
)

STREAMS: Final = {
    "orders": pa.Table.from_pylist([_order(index) for index in range(14)], _ORDERS),
    "payments": pa.Table.from_pylist([_payment(index) for index in range(10)], _PAYMENTS),
}
STATICS: Final = {
    "customers": pa.table(
        {
            "customer": ["ann", "bob", "eve"],
            "country": ["DE", "NO", "PT"],
            "credit": pa.array([100, None, 50], pa.int32()),
            "since": [dt.date(2020, 1, 1), dt.date(2024, 3, 1), None],
        }
    ),
    "rates": pa.table({"country": ["DE", "NO", "SE"], "rate": [0.19, 0.25, 0.25]}),
}
