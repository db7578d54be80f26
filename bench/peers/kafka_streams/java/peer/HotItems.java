package peer;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.WindowStore;

/**
 * q5: every 2 s the auctions with the most bids of the last 10 s, ties included, as soon as a bid is that late.
 *
 * <p>Counts by pane of 2 s, which five windows share: one change of state per bid. They are read from the heap; the
 * store is what they are restored from.
 */
final class HotItems implements Processor<Long, Long, byte[], byte[]> {
    private static final long SIZE_MS = 10_000;
    private static final long PANE_MS = 2_000;
    private static final String NEXT = "next";

    private ProcessorContext<byte[], byte[]> context;
    private WindowStore<Long, Long> stored;
    private KeyValueStore<String, Long> ends;
    /** By start of the pane, and auction. */
    private final TreeMap<Long, Map<Long, Long>> panes = new TreeMap<>();
    /** The end of the first window that is not over; null before the first bid. */
    private Long next;

    static Set<StoreBuilder<?>> stores(Topologies made) {
        return Set.of(
                made.windows("counts", PANE_MS, Serdes.Long(), Serdes.Long()),
                made.table("ends", Serdes.String(), Serdes.Long()));
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        stored = context.getStateStore("counts");
        ends = context.getStateStore("ends");
        next = ends.get(NEXT);
        if (next == null) {
            return;
        }
        try (KeyValueIterator<Windowed<Long>, Long> all = stored.all()) {
            all.forEachRemaining(count -> {
                if (count.key.window().start() >= next - SIZE_MS) {
                    pane(count.key.window().start()).put(count.key.key(), count.value);
                }
            });
        }
    }

    @Override
    public void process(Record<Long, Long> bid) {
        long time = bid.value();
        long start = time - time % PANE_MS;
        if (next == null || time >= next) {
            for (; next != null && next <= time; next += PANE_MS) {
                close(bid, next);
            }
            next = start + PANE_MS;
            ends.put(NEXT, next);
        }
        long count = pane(start).merge(bid.key(), 1L, Long::sum);
        stored.put(bid.key(), count, start);
    }

    private Map<Long, Long> pane(long start) {
        return panes.computeIfAbsent(start, unused -> new HashMap<>());
    }

    private void close(Record<Long, Long> bid, long end) {
        Map<Long, Long> counts = new HashMap<>();
        for (Map<Long, Long> pane : panes.headMap(end).values()) {
            pane.forEach((auction, count) -> counts.merge(auction, count, Long::sum));
        }
        long most = counts.values().stream().mapToLong(Long::longValue).max().orElse(0);
        counts.forEach((auction, count) -> {
            if (count == most) {
                byte[] row = Topologies.row(auction, count, end - SIZE_MS, end, end);
                context.forward(new Record<>(null, row, bid.timestamp()));
            }
        });
        // The next window begins a pane later.
        panes.headMap(end - SIZE_MS + PANE_MS).clear();
    }
}
