package peer;

import java.io.IOException;
import kafka.Kafka;
import kafka.tools.StorageTool;
import org.apache.kafka.common.Uuid;

/** One broker that is its own controller, on a fresh disk; it ends when its standard input does. */
public final class Broker {
    private Broker() {}

    public static void main(String[] arguments) {
        String settings = arguments[0];
        String[] format = {"format", "--cluster-id", Uuid.randomUuid().toString(), "--config", settings};
        int code = StorageTool.execute(format, System.err);
        if (code != 0) {
            System.exit(code);
        }
        Thread watcher = new Thread(Broker::endWithInput, "watcher");
        watcher.setDaemon(true);
        watcher.start();
        Kafka.main(new String[] {settings});
    }

    /** Whoever started this process holds the other end of its input: gone, so go. */
    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {}
        } catch (IOException gone) {
            // as good as an end
        }
        System.exit(0);
    }
}
