package peer;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * q1, q3, q5 and q8. A record of the result is a line: the query's columns, and last `lat_ts`, in milliseconds.
 *
 * <p>An event is a line too: its kind (0 person, 1 auction, 2 bid), then its columns, apart by tabs. All events are in
 * one partition, so one task has all rows of every key and no record is late; <code>peer.exchange</code> sends them
 * through a topic by key all the same, as the DSL does whenever a key was chosen.
 */
final class Topologies {
    static final int PERSON = 0;
    static final int AUCTION = 1;
    static final int BID = 2;
    private static final Set<String> NEARBY = Set.of("OR", "ID", "CA");
    private static final Serde<byte[]> BYTES = Serdes.ByteArray();
    /** Rows come in the order of their time; longer than any window of these queries. */
    private static final Duration KEPT = Duration.ofMinutes(1);

    final String events;
    final String result;
    private final String query;
    private final boolean hasExchange;
    private final boolean isInMemory;
    private final boolean isCached;

    Topologies(Properties settings) {
        events = settings.getProperty("peer.events");
        result = settings.getProperty("peer.result");
        query = settings.getProperty("peer.query");
        hasExchange = Boolean.parseBoolean(settings.getProperty("peer.exchange"));
        isInMemory = Boolean.parseBoolean(settings.getProperty("peer.in.memory"));
        isCached = Boolean.parseBoolean(settings.getProperty("peer.cached"));
    }

    Topology build() {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> lines = builder.stream(events, Consumed.with(BYTES, BYTES));
        rows(lines).to(result, Produced.with(BYTES, BYTES));
        return builder.build();
    }

    private KStream<byte[], byte[]> rows(KStream<byte[], byte[]> lines) {
        switch (query) {
            case "q1":
                return lines.filter((key, line) -> kind(line) == BID).mapValues(Topologies::inEuros);
            case "q3":
                return keyed(lines.filter((key, line) -> kind(line) != BID).flatMap(Topologies::localSide))
                        .process(supplier(LocalSellers::new, LocalSellers.stores(this)));
            case "q5":
                KStream<Long, Long> bids = lines.filter((key, line) -> kind(line) == BID).map((key, line) -> {
                    String[] bid = fields(line);
                    return KeyValue.pair(Long.parseLong(bid[1]), Long.parseLong(bid[6]));
                });
                return exchanged(bids, Serdes.Long()).process(supplier(HotItems::new, HotItems.stores(this)));
            case "q8":
                return keyed(lines.filter((key, line) -> kind(line) != BID).map(Topologies::newSide))
                        .process(supplier(NewSellers::new, NewSellers.stores(this)));
            default:
                throw new IllegalArgumentException("no such query: " + query);
        }
    }

    private KStream<Long, String> keyed(KStream<Long, String> rows) {
        return exchanged(rows, Serdes.String());
    }

    private <V> KStream<Long, V> exchanged(KStream<Long, V> rows, Serde<V> values) {
        if (!hasExchange) {
            return rows;
        }
        return rows.repartition(
                Repartitioned.with(Serdes.Long(), values).withName("by-key").withNumberOfPartitions(1));
    }

    // -- events

    static int kind(byte[] line) {
        return line[0] - '0';
    }

    static String[] fields(byte[] line) {
        return new String(line, StandardCharsets.UTF_8).split("\t", -1);
    }

    static byte[] row(Object... columns) {
        StringBuilder line = new StringBuilder(128);
        for (Object column : columns) {
            line.append(line.length() == 0 ? "" : "\t").append(column);
        }
        return line.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] inEuros(byte[] line) {
        String[] bid = fields(line);
        long thousandths = 908 * Long.parseLong(bid[3]);
        String euros = String.valueOf(thousandths / 1_000);
        String rest = String.valueOf(1_000 + thousandths % 1_000).substring(1);
        return row(bid[1], bid[2], euros + "." + rest, bid[6], bid[7], bid[6]);
    }

    /** What q3 keeps of an event, by person; nothing if it cannot take part. */
    private static Iterable<KeyValue<Long, String>> localSide(byte[] key, byte[] line) {
        String[] event = fields(line);
        if (kind(line) == PERSON) {
            return NEARBY.contains(event[6])
                    ? Set.of(side(event[1], PERSON, event[7], event[2], event[5], event[6]))
                    : Set.of();
        }
        return event[9].equals("10") ? Set.of(side(event[8], AUCTION, event[6], event[1])) : Set.of();
    }

    /** What q8 keeps of an event, by person. */
    private static KeyValue<Long, String> newSide(byte[] key, byte[] line) {
        String[] event = fields(line);
        return kind(line) == PERSON
                ? side(event[1], PERSON, event[7], event[2])
                : side(event[8], AUCTION, event[6]);
    }

    private static KeyValue<Long, String> side(String person, int kind, String... rest) {
        return KeyValue.pair(Long.parseLong(person), kind + "\t" + String.join("\t", rest));
    }

    // -- state, all of it with a changelog

    private static <K, V> ProcessorSupplier<K, V, byte[], byte[]> supplier(
            ProcessorSupplier<K, V, byte[], byte[]> make, Set<StoreBuilder<?>> stores) {
        return new ProcessorSupplier<>() {
            @Override
            public Processor<K, V, byte[], byte[]> get() {
                return make.get();
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
                return stores;
            }
        };
    }

    <K, V> StoreBuilder<KeyValueStore<K, V>> table(String name, Serde<K> keys, Serde<V> values) {
        return chosen(Stores.keyValueStoreBuilder(
                isInMemory ? Stores.inMemoryKeyValueStore(name) : Stores.persistentKeyValueStore(name), keys, values));
    }

    <K, V> StoreBuilder<WindowStore<K, V>> windows(String name, long sizeMs, Serde<K> keys, Serde<V> values) {
        Duration size = Duration.ofMillis(sizeMs);
        return chosen(Stores.windowStoreBuilder(
                isInMemory
                        ? Stores.inMemoryWindowStore(name, KEPT, size, false)
                        : Stores.persistentWindowStore(name, KEPT, size, false),
                keys,
                values));
    }

    private <S extends StateStore> StoreBuilder<S> chosen(StoreBuilder<S> store) {
        return isCached ? store.withCachingEnabled() : store.withCachingDisabled();
    }
}
