package peer;

import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.WindowStore;

/** q8: persons who came and opened an auction in the same window; the first of each counts, and waits for no end. */
final class NewSellers implements Processor<Long, String, byte[], byte[]> {
    private static final long WINDOW_MS = 10_000;

    private ProcessorContext<byte[], byte[]> context;
    /** Time and name of who came. */
    private WindowStore<Long, String> came;
    /** The time of the first auction. */
    private WindowStore<Long, Long> sold;

    static Set<StoreBuilder<?>> stores(Topologies made) {
        return Set.of(
                made.windows("came", WINDOW_MS, Serdes.Long(), Serdes.String()),
                made.windows("sold", WINDOW_MS, Serdes.Long(), Serdes.Long()));
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        came = context.getStateStore("came");
        sold = context.getStateStore("sold");
    }

    @Override
    public void process(Record<Long, String> record) {
        long person = record.key();
        String[] event = record.value().split("\t", -1);
        long time = Long.parseLong(event[1]);
        long start = time - time % WINDOW_MS;
        String known = came.fetch(person, start);
        Long firstMs = sold.fetch(person, start);
        if (event[0].equals("0")) {
            if (known != null) {
                return;
            }
            known = record.value().substring(2);
            came.put(person, known, start);
        } else {
            if (firstMs != null) {
                return;
            }
            firstMs = time;
            sold.put(person, time, start);
        }
        if (known != null && firstMs != null) {
            String[] who = known.split("\t", -1);
            long newestMs = Math.max(Long.parseLong(who[0]), firstMs);
            byte[] row = Topologies.row(person, who[1], start, newestMs);
            context.forward(new Record<>(null, row, record.timestamp()));
        }
    }
}
