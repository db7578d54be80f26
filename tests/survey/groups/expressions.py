"""Functions of one row, by what they are about: the bulk of what queries call."""

from __future__ import annotations

from typing import Final

from survey.construct import Construct, Group, expressions

STRINGS: Final[Group] = expressions(
    {
        "upper, lower, initcap": "concat(upper(item), lower(code), initcap(note))",
        "trim, ltrim, rtrim": "concat('[', trim(note), ltrim(note), rtrim(note), ']')",
        "length of characters and bytes": "length(note) + octet_length(note)",
        "substring": "substring(code, 2, 3)",
        "concat": "concat(item, '-', code)",
        "concat_ws over columns and arrays": "concat_ws('|', item, tags, note)",
        "lpad and rpad": "concat(lpad(code, 10, '*'), rpad(item, 6, '.'))",
        "split by a literal": "split(code, '-')",
        "split by a regular expression with a limit": "split(note, '[ ,]+', 2)",
        "split_part": "split_part(email, '@', 2)",
        "substring_index": "substring_index(url, '/', 3)",
        "instr, locate, position": "instr(note, 'or') + locate('o', note, 3)",
        "replace": "replace(note, 'order', 'bill')",
        "translate": "translate(code, 'AB-', 'xy')",
        "startswith, endswith, contains": "startswith(note, 'f') or endswith(note, 'p') "
        "or contains(note, '#')",
        "ilike": "note ILIKE '%ORDER%'",
        "rlike with classes and groups": "email RLIKE '^[a-z]+@(mail|post)[.]example$'",
        "rlike without regard to case": "note RLIKE '(?i)ORDER'",
        "rlike with a word boundary": r"note RLIKE r'\border\b'",
        "regexp_extract": r"regexp_extract(code, r'([A-Z]+)-(\d+)', 2)",
        "regexp_extract_all": r"regexp_extract_all(url, r'(\w+)=(\w+)', 1)",
        "regexp_replace": r"regexp_replace(note, r'\s+', ' ')",
        "regexp_replace with groups": r"regexp_replace(code, r'(\w+)-(\d+)', '$2:$1')",
        "regular expression of Unicode letters": r"regexp_replace(note, r'[^\p{L}\p{N} ]', '')",
        "format_string": "format_string('%s has %05d at %.2f', item, id, price)",
        "format_number": "format_number(price * 1000, 2)",
        "base64 and unbase64": "cast(unbase64(base64(raw)) AS binary)",
        "md5, sha2, crc32": "concat(md5(raw), sha2(note, 256), crc32(note))",
        "hash and xxhash64": "struct(xxhash64(id, item), hash(customer))",
        "parse_url": "parse_url(url, 'QUERY', 'q')",
        "url_encode and url_decode": "url_decode(url_encode(note))",
        "str_to_map": "str_to_map(parse_url(url, 'QUERY'), '&', '=')",
        "uuid": "length(uuid())",
        "collate": "note COLLATE UTF8_LCASE = 'FIRST ORDER, PLEASE WRAP'",
        "aes_encrypt and aes_decrypt": "cast(aes_decrypt(aes_encrypt(note, "
        "'0000111122223333', 'ECB'), '0000111122223333', 'ECB') AS string)",
    }
)

NUMBERS: Final[Group] = (
    Construct(
        "rand with a seed",
        "SELECT id, rand(42) AS x FROM orders",
        unlike_batch="Spark's numbers depend on its partitions",
    ),
    Construct(
        "randn", "SELECT id, randn() AS x FROM orders", unlike_batch="Spark's numbers are random"
    ),
    *expressions(
        {
            "arithmetic of mixed types": "price * quantity - amount / 3",
            "division, div, remainder": "struct(id / 3, id div 3, id % 3, pmod(-id, 3))",
            "arithmetic of decimals": "amount * 1.19 + amount / 7",
            "try_divide, try_add, try_multiply": "try_divide(price, quantity - 1) + try_add(id, 1)",
            "round, bround, ceil, floor": "struct(round(price, 1), bround(price), ceil(price), "
            "floor(amount))",
            "abs, sign, negative": "abs(-price) + sign(amount) + negative(id)",
            "sqrt, pow, exp, log": "sqrt(price) + pow(price, 2) + ln(price) + log10(price)",
            "trigonometry": "sin(price) + cos(price) + atan2(price, 2) + radians(id) + degrees(id)",
            "greatest and least": "greatest(price, quantity, 5) - least(id, quantity)",
            "cast of text to int, try_cast": "struct(try_cast(code AS int), int(string(id)))",
            "cast of double to decimal": "cast(price AS decimal(8, 1))",
            "bit operations": "struct(id & 6, id | 1, id ^ 5, ~id, shiftleft(id, 2))",
            "width_bucket": "width_bucket(price, 0, 300, 6)",
            "isnan and nanvl": "nanvl(cast('NaN' AS double), price)",
            "to_number": "to_number(number_text, '99,999.99')",
            "try_to_number": "try_to_number(code, '999')",
            "to_char of a number": "to_char(amount, '$99,999.00')",
            "monotonically_increasing_id": "monotonically_increasing_id() >= 0",
        }
    ),
)

_APPENDED: Final = "it is the time at which the log took the row: tests/oracle/test_append_times.py"
TIMES: Final[Group] = (
    *(
        Construct(name, f"SELECT id, {e} AS x FROM orders", unlike_batch=_APPENDED)
        for name, e in {
            "current_timestamp": "current_timestamp()",
            "current_date": "datediff(current_date(), day)",
            "unix_timestamp of now": "unix_timestamp() - epoch",
        }.items()
    ),
    *expressions(
        {
            "to_timestamp of plain text": "to_timestamp(time_text)",
            "to_timestamp with a pattern": "to_timestamp(time_text, 'yyyy-MM-dd HH:mm:ss')",
            "to_date with a pattern": "to_date(day_text, 'dd/MM/yyyy')",
            "try_to_timestamp": "try_to_timestamp(note)",
            "cast of a timestamp to date and long": "struct(cast(ts AS date), cast(ts AS bigint))",
            "unix_timestamp of a column": "unix_timestamp(ts)",
            "from_unixtime": "from_unixtime(epoch, 'yyyy-MM-dd HH:mm')",
            "timestamp_millis and timestamp_seconds": "struct(timestamp_millis(epoch * 1000), "
            "timestamp_seconds(epoch))",
            "date_format": "date_format(ts, 'yyyy/MM/dd HH:mm:ss.SSS')",
            "date_format with names of days and months": "date_format(ts, 'EEE, d MMM yyyy')",
            "year, month, day": "year(ts) * 10000 + month(day) * 100 + dayofmonth(day)",
            "hour, minute, second": "hour(ts) * 3600 + minute(ts) * 60 + second(ts)",
            "dayofweek, weekday, weekofyear": "struct(dayofweek(day), weekday(day), "
            "weekofyear(day), quarter(day), dayofyear(day))",
            "extract": "extract(WEEK FROM ts) + extract(SECOND FROM ts)",
            "date_trunc": "date_trunc('hour', ts)",
            "trunc of a date": "trunc(day, 'MONTH')",
            "date_add and date_sub": "struct(date_add(day, 3), date_sub(day, quantity))",
            "add_months and months_between": "struct(add_months(day, 1), months_between(ts, day))",
            "datediff": "datediff(day, ts)",
            "timestampdiff and timestampadd": "timestampdiff(DAY, ts, timestampadd(HOUR, 50, ts))",
            "last_day and next_day": "struct(last_day(day), next_day(day, 'Mon'))",
            "timestamp plus an interval": "ts + INTERVAL 90 MINUTES - INTERVAL '1' DAY",
            "date plus a month": "day + INTERVAL 1 MONTH",
            "interval from a column": "ts + make_interval(0, 0, 0, quantity)",
            "difference of timestamps as an interval": "ts - timestamp'2024-03-01 00:00:00Z'",
            "from_utc_timestamp and to_utc_timestamp": "struct(from_utc_timestamp(ts, 'Japan'), "
            "to_utc_timestamp(ts, 'America/New_York'))",
            "make_date and make_timestamp": "struct(make_date(2024, 1, quantity), "
            "make_timestamp(2024, 1, 2, 3, quantity, 5.5))",
            "timestamps without zone": "local + INTERVAL 1 HOUR",
            "comparison with a literal": "ts >= '2024-03-01 12:30:00' AND day < date'2024-10-01'",
            "sequence of dates": "sequence(day, day + 2)",
            "sequence of months": "sequence(day, add_months(day, 2), INTERVAL 1 MONTH)",
            "times of day": "to_time(substring(time_text, 12)) < time'23:00:00'",
        }
    ),
)

CONDITIONS: Final[Group] = expressions(
    {
        "case when": "CASE WHEN price > 50 THEN 'dear' WHEN price > 5 THEN 'fair' ELSE 'cheap' END",
        "if and iff": "if(active, price, -1)",
        "coalesce": "coalesce(price, quantity, 0)",
        "nvl, nvl2, ifnull, nullif": "concat(nvl(customer, '?'), nvl2(price, 'y', 'n'), "
        "ifnull(note, '-'), nullif(item, 'pen'))",
        "is null and is not null": "customer IS NULL OR price IS NOT NULL",
        "null-safe equality": "customer <=> NULL",
        "in a list": "item IN ('book', 'desk')",
        "in a long list": "id IN (0, 1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 23, 24)",
        "between": "price BETWEEN 3 AND 20",
        "and, or, not with nulls": "active AND price > 10 OR NOT active",
        "is true, is distinct from": "active IS TRUE OR item IS DISTINCT FROM note",
        "assert_true": "assert_true(id >= 0)",
        "raise_error in a branch": "CASE WHEN id < 0 THEN raise_error('negative') ELSE id END",
    }
)

NESTED: Final[Group] = expressions(
    {
        "field of a struct": "address.city",
        "struct and named_struct": "struct(id, named_struct('a', item, 'b', price) AS inner)",
        "element of an array": "split(code, '-')[1]",
        "element_at and try_element_at": "try_element_at(scores, -1)",
        "value of a map": "attrs['color']",
        "field of an array of structs": "lines.sku",
        "size and cardinality": "size(tags) + array_size(scores)",
        "array_contains": "array_contains(tags, 'new')",
        "array_distinct": "array_distinct(tags)",
        "array_union, array_intersect, array_except": "struct(array_union(tags, array(item)), "
        "array_intersect(tags, array(item)), array_except(tags, array(item)))",
        "array_join": "array_join(scores, ',', '-')",
        "array_append, array_prepend, array_insert": "array_insert(array_append(tags, 'z'), 1, "
        "'y')",
        "array_compact": "array_compact(scores)",
        "array_max and array_min": "array_max(scores) - array_min(scores)",
        "arrays_overlap and arrays_zip": "struct(arrays_overlap(tags, array('pen')), "
        "arrays_zip(tags, scores))",
        "sort_array": "sort_array(scores, false)",
        "array_sort": "array_sort(scores)",
        "array_sort with a comparator": "array_sort(lines, (l, r) -> r.qty - l.qty)",
        "slice, flatten, reverse": "struct(slice(scores, 1, 2), flatten(array(tags, tags)), "
        "reverse(tags))",
        "sequence": "sequence(1, quantity)",
        "transform": "transform(scores, x -> x * 2)",
        "transform with an index": "transform(tags, (t, i) -> concat(t, i))",
        "filter": "filter(lines, l -> l.qty > 1)",
        "exists and forall": "exists(scores, s -> s > 3) OR forall(tags, t -> t = 'new')",
        "aggregate": "aggregate(scores, 0, (a, x) -> a + coalesce(x, 0))",
        "zip_with": "zip_with(scores, scores, (a, b) -> a + b)",
        "map and map_from_arrays": "map_from_arrays(array('a', 'b'), array(id, quantity))",
        "map_from_entries and map_entries": "map_from_entries(map_entries(attrs))",
        "map_keys and map_values": "struct(map_keys(attrs), map_values(attrs))",
        "map_contains_key": "map_contains_key(attrs, 'color')",
        "map_filter": "map_filter(attrs, (k, v) -> k = 'size')",
        "transform_values and transform_keys": "transform_values(transform_keys(attrs, (k, v) -> "
        "upper(k)), (k, v) -> length(v))",
        "cast of a struct": "cast(address AS struct<town: string, code: int>)",
    }
)

TEXT_FORMATS: Final[Group] = expressions(
    {
        "from_json to a struct": "from_json(json, 'user struct<name: string, age: int>, ok "
        "boolean')",
        "field of from_json": "from_json(json, 'user struct<name: string, age: int>').user.age",
        "from_json to a map": "from_json(json, 'map<string, string>')",
        "from_json to an array": "from_json(get_json_object(json, '$.list'), 'array<int>')",
        "from_json with options": "from_json(json, 'ok boolean, _corrupt_record string', "
        "map('columnNameOfCorruptRecord', '_corrupt_record'))",
        "from_json by schema_of_json": "from_json(json, schema_of_json('{\"ok\": true}'))",
        "get_json_object": "get_json_object(json, '$.user.name')",
        "to_json of a struct": "to_json(struct(id, item, price, tags))",
        "to_json of a map and an array": "concat(to_json(attrs), to_json(lines))",
        "to_json of times with a format": "to_json(struct(ts, day), "
        "map('timestampFormat', 'yyyy-MM-dd HH:mm'))",
        "json_array_length and json_object_keys": "struct(json_array_length("
        "get_json_object(json, '$.list')), json_object_keys(json))",
        "from_csv": "from_csv(csv, 'id int, item string, price double')",
        "to_csv": "to_csv(struct(id, item, price))",
        "schema_of_csv": "schema_of_csv('1,abc')",
        "parse_json and variant_get": "variant_get(parse_json(to_json(struct(id, item))), '$.id', "
        "'int')",
        "try_parse_json": "try_variant_get(try_parse_json(json), '$.user.age', 'int')",
        "path of a variant with a cast": "parse_json(to_json(struct(item))):item::string",
        "to_variant_object": "to_json(to_variant_object(struct(id, item)))",
        "from_xml": "from_xml(xml, 'id int, item string')",
    }
)

#: Values of no row: where they come from is a matter of the session, not of the query.
SURROUNDINGS: Final[Group] = (
    *expressions(
        {
            "spark_partition_id": "spark_partition_id() >= 0",
            "input_file_name": "length(input_file_name())",
        }
    ),
    Construct(
        "a session variable",
        lambda f: (f.spark.sql("DECLARE OR REPLACE VARIABLE least DOUBLE DEFAULT 10"), f.orders)[
            1
        ].where("price > least"),
    ),
)
