package peer;

import org.apache.flink.table.functions.AggregateFunction;

/**
 * The newest time that ever took part in a group, whether or not its row was replaced since.
 *
 * <p>In constant time: the built-in MAX keeps every value once its input may be retracted.
 */
public final class Newest extends AggregateFunction<Long, Newest.Time> {
    public static final class Time {
        public long newest = Long.MIN_VALUE;
    }

    @Override
    public Time createAccumulator() {
        return new Time();
    }

    @Override
    public Long getValue(Time time) {
        return time.newest == Long.MIN_VALUE ? null : time.newest;
    }

    public void accumulate(Time time, Long value) {
        if (value != null) {
            time.newest = Math.max(time.newest, value);
        }
    }

    public void retract(Time time, Long value) {}
}
