package peer;

import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.types.Row;

/**
 * Follows one growing file of events, one per line, fields apart by tabs.
 *
 * <p>Replayable: the position in the file is part of every checkpoint, as an offset is with Kafka.
 * Ordered: one reader. A line counts when its end is there.
 */
public final class LineSource implements SourceFunction<Row>, CheckpointedFunction {
    private static final int CHUNK_BYTES = 1 << 16;
    private static final TypeInformation<?>[] PERSON = {
        Types.LONG, Types.STRING, Types.STRING, Types.STRING, Types.STRING, Types.STRING, Types.INSTANT, Types.STRING
    };
    private static final TypeInformation<?>[] AUCTION = {
        Types.LONG, Types.STRING, Types.STRING, Types.LONG, Types.LONG,
        Types.INSTANT, Types.INSTANT, Types.LONG, Types.LONG, Types.STRING
    };
    private static final TypeInformation<?>[] BID = {
        Types.LONG, Types.LONG, Types.LONG, Types.STRING, Types.STRING, Types.INSTANT, Types.STRING
    };
    private static final TypeInformation<?>[][] KINDS = {PERSON, AUCTION, BID};
    private static final int[] TIME = {6, 5, 5};

    /** Events handed on by the reader of this JVM, for whoever waits until all are. */
    public static volatile long handedOn;

    /** A field of a class cannot be set through the gateway; a method can be called. */
    public static void reset() {
        handedOn = 0;
    }

    private final String path;
    private volatile boolean isWanted = true;
    private transient ListState<Long> positions;
    private long position;

    public LineSource(String path) {
        this.path = path;
    }

    public static TypeInformation<Row> type() {
        return Types.ROW_NAMED(
                new String[] {"event_type", "happened", "ms", "person", "auction", "bid"},
                Types.INT,
                Types.INSTANT,
                Types.LONG,
                Types.ROW_NAMED(
                        new String[] {"id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"},
                        PERSON),
                Types.ROW_NAMED(
                        new String[] {
                            "id", "itemName", "description", "initialBid", "reserve",
                            "dateTime", "expires", "seller", "category", "extra"
                        },
                        AUCTION),
                Types.ROW_NAMED(
                        new String[] {"auction", "bidder", "price", "channel", "url", "dateTime", "extra"}, BID));
    }

    @Override
    public void run(SourceContext<Row> context) throws Exception {
        byte[] buffer = new byte[CHUNK_BYTES];
        int filled = 0;
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            file.seek(position);
            while (isWanted) {
                if (filled == buffer.length) {
                    buffer = java.util.Arrays.copyOf(buffer, 2 * buffer.length);
                }
                int read = file.read(buffer, filled, buffer.length - filled);
                if (read <= 0) {
                    Thread.sleep(1);
                    continue;
                }
                filled += read;
                int start = 0;
                for (int at = filled - read; at < filled; at++) {
                    if (buffer[at] == '\n') {
                        Row row = parse(new String(buffer, start, at - start, StandardCharsets.UTF_8));
                        synchronized (context.getCheckpointLock()) {
                            context.collect(row);
                            position += at + 1 - start;
                            handedOn++;
                        }
                        start = at + 1;
                    }
                }
                System.arraycopy(buffer, start, buffer, 0, filled - start);
                filled -= start;
            }
        }
    }

    static Row parse(String line) {
        int kind = line.charAt(0) - '0';
        TypeInformation<?>[] types = KINDS[kind];
        Row inner = new Row(types.length);
        int start = 2;
        for (int field = 0; field < types.length; field++) {
            int end = field == types.length - 1 ? line.length() : line.indexOf('\t', start);
            String text = line.substring(start, end);
            start = end + 1;
            if (types[field] == Types.LONG) {
                inner.setField(field, Long.parseLong(text));
            } else if (types[field] == Types.INSTANT) {
                inner.setField(field, Instant.ofEpochMilli(Long.parseLong(text)));
            } else {
                inner.setField(field, text);
            }
        }
        Instant time = (Instant) inner.getField(TIME[kind]);
        Row row = new Row(6);
        row.setField(0, kind);
        row.setField(1, time);
        row.setField(2, time.toEpochMilli());
        row.setField(3 + kind, inner);
        return row;
    }

    @Override
    public void cancel() {
        isWanted = false;
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        positions.update(java.util.List.of(position));
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        positions = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("position", Types.LONG));
        for (Long known : positions.get()) {
            position = known;
        }
    }
}
