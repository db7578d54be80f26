package peer;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.types.Row;

/**
 * A row of the result as a line: its kind, when it was emitted (milliseconds), its columns; apart by tabs.
 *
 * <p>Called when the last operator hands the row to the sink: emitted, but not yet visible.
 */
public final class LineEncoder implements Encoder<Row> {
    @Override
    public void encode(Row row, OutputStream stream) throws IOException {
        StringBuilder line = new StringBuilder(128);
        line.append(row.getKind().shortString()).append('\t').append(System.currentTimeMillis());
        for (int field = 0; field < row.getArity(); field++) {
            line.append('\t').append(text(row.getField(field)));
        }
        stream.write(line.append('\n').toString().getBytes(StandardCharsets.UTF_8));
    }

    /** Times as milliseconds: all of them are UTC. */
    private static Object text(Object value) {
        if (value instanceof Instant) {
            return ((Instant) value).toEpochMilli();
        }
        if (value instanceof LocalDateTime) {
            return ((LocalDateTime) value).toInstant(ZoneOffset.UTC).toEpochMilli();
        }
        return value;
    }
}
