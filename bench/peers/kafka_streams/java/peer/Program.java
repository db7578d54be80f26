package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.streams.KafkaStreams;

/**
 * The Streams application: one query at a time, started and stopped by lines on standard input.
 *
 * <p><code>start PATH</code>, where the file has the settings of Streams and ours (`peer.…`), and <code>stop</code>.
 * Each is answered by <code>done</code> once it is. Ends when its input does, and with an error when the query dies.
 */
public final class Program {
    private static final long START_SECONDS = 150;

    private Program() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KafkaStreams running = null;
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            if (command.startsWith("start ")) {
                running = start(Path.of(command.substring("start ".length())));
            } else if (running != null) {
                running.close(Duration.ofSeconds(30));
                running = null;
            }
            answers.println("done");
        }
        if (running != null) {
            running.close(Duration.ofSeconds(3));
        }
        System.exit(0);
    }

    private static KafkaStreams start(Path file) throws Exception {
        Properties settings = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            settings.load(reader);
        }
        Topologies topologies = new Topologies(settings);
        makeTopics(settings, topologies.events, topologies.result);
        KafkaStreams streams = new KafkaStreams(topologies.build(), settings);
        CountDownLatch runs = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                runs.countDown();
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // a query that died gives no more rows: nobody shall wait for them
            return null;
        });
        streams.start();
        if (!runs.await(START_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the query did not run in time, but was " + streams.state());
        }
        return streams;
    }

    /** One partition each: all events of a run have one order, and so have its results. */
    private static void makeTopics(Properties settings, String events, String result) throws Exception {
        // A record of the result tells when the broker appended it.
        Map<String, String> appended = Map.of(TopicConfig.MESSAGE_TIMESTAMP_TYPE_CONFIG, "LogAppendTime");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", settings.getProperty("bootstrap.servers")))) {
            List<NewTopic> topics = List.of(
                    new NewTopic(events, 1, (short) 1), new NewTopic(result, 1, (short) 1).configs(appended));
            admin.createTopics(topics).all().get();
        }
    }
}
