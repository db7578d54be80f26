package peer;

import java.nio.ByteBuffer;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;

/** q3: persons and what they offer, joined in whatever order they come. Both sides are kept for good. */
final class LocalSellers implements Processor<Long, String, byte[], byte[]> {
    private ProcessorContext<byte[], byte[]> context;
    /** By person: time, name, city, state. */
    private KeyValueStore<Long, String> persons;
    /** By person and auction: its time. */
    private KeyValueStore<Bytes, Long> offers;

    static Set<StoreBuilder<?>> stores(Topologies made) {
        return Set.of(
                made.table("persons", Serdes.Long(), Serdes.String()),
                made.table("offers", Serdes.Bytes(), Serdes.Long()));
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        persons = context.getStateStore("persons");
        offers = context.getStateStore("offers");
    }

    @Override
    public void process(Record<Long, String> record) {
        long seller = record.key();
        String[] event = record.value().split("\t", -1);
        if (event[0].equals("0")) {
            String person = record.value().substring(2);
            persons.put(seller, person);
            try (KeyValueIterator<Bytes, Long> all = offers.range(key(seller, 0), key(seller, Long.MAX_VALUE))) {
                all.forEachRemaining(offer ->
                        join(record, person, ByteBuffer.wrap(offer.key.get()).getLong(8), offer.value));
            }
            return;
        }
        long time = Long.parseLong(event[1]);
        long auction = Long.parseLong(event[2]);
        offers.put(key(seller, auction), time);
        String person = persons.get(seller);
        if (person != null) {
            join(record, person, auction, time);
        }
    }

    private void join(Record<Long, String> record, String known, long auction, long offeredMs) {
        String[] person = known.split("\t", -1);
        long newestMs = Math.max(Long.parseLong(person[0]), offeredMs);
        byte[] row = Topologies.row(person[1], person[2], person[3], auction, newestMs);
        context.forward(new Record<>(null, row, record.timestamp()));
    }

    /** Ids are not negative: the order of the bytes is theirs. */
    private static Bytes key(long seller, long auction) {
        return Bytes.wrap(ByteBuffer.allocate(16).putLong(seller).putLong(auction).array());
    }
}
