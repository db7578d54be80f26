package peer;

import org.apache.flink.table.functions.AggregateFunction;

/** The time at which the greatest value came first. Its input is never retracted. */
public final class TimeOfMax extends AggregateFunction<Long, TimeOfMax.Best> {
    public static final class Best {
        public long value = Long.MIN_VALUE;
        public long time = Long.MIN_VALUE;
    }

    @Override
    public Best createAccumulator() {
        return new Best();
    }

    @Override
    public Long getValue(Best best) {
        return best.time == Long.MIN_VALUE ? null : best.time;
    }

    public void accumulate(Best best, Long value, Long time) {
        if (value != null && (value > best.value || value == best.value && time < best.time)) {
            best.value = value;
            best.time = time;
        }
    }
}
