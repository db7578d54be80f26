package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions to many targets: each has a partition of its own, and a consumer that reads what is committed.
 *
 * <p>Arguments: bootstrap, targets, producers. Then lines on standard input: transactions, how many a second, bytes of
 * a record; each transaction has a record for half of the targets. A line is answered with the milliseconds from when
 * a producer began a transaction to when a consumer had its record, all of them in one line, in no order. Producers
 * take turns, so that a transaction need not wait for the one before to be completed. Ends when its input does.
 */
public final class Deliveries {
    private static final String TOPIC = "delivered";
    private static final Duration WAIT = Duration.ofMillis(100);
    private static final int WARM = 100;
    private static final long SETTLE_SECONDS = 60;

    private final int targets;
    private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
    private final Map<Long, Long> began = new java.util.concurrent.ConcurrentHashMap<>();
    private final List<Double> times = Collections.synchronizedList(new ArrayList<>());
    private final AtomicLong received = new AtomicLong();
    private long numbers;

    private Deliveries(int targets) {
        this.targets = targets;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        Deliveries run = new Deliveries(Integer.parseInt(arguments[1]));
        run.open(arguments[0], Integer.parseInt(arguments[2]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int rate = Integer.parseInt(words[1]);
            int bytes = Integer.parseInt(words[2]);
            run.load(WARM, rate, bytes);
            answers.println(run.load(Integer.parseInt(words[0]), rate, bytes));
        }
        System.exit(0);
    }

    private void open(String bootstrap, int count) throws Exception {
        Map<String, Object> ways = Map.of("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(ways)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, targets, (short) 1))).all().get();
        }
        for (int at = 0; at < count; at++) {
            Map<String, Object> own = new HashMap<>(ways);
            own.put("transactional.id", "producer-" + at);
            own.put("linger.ms", "0");
            producers.add(new KafkaProducer<>(own, new ByteArraySerializer(), new ByteArraySerializer()));
            producers.get(at).initTransactions();
        }
        for (int at = 0; at < targets; at++) {
            TopicPartition mine = new TopicPartition(TOPIC, at);
            Thread thread = new Thread(() -> consume(ways, mine), "target-" + at);
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void consume(Map<String, Object> ways, TopicPartition mine) {
        Map<String, Object> own = new HashMap<>(ways);
        own.put("isolation.level", "read_committed");
        own.put("auto.offset.reset", "earliest");
        own.put("fetch.min.bytes", "1");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(own, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(mine));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(WAIT)) {
                    long now = System.nanoTime();
                    times.add((now - began.get(ByteBuffer.wrap(record.value()).getLong())) / 1e6);
                    received.incrementAndGet();
                }
            }
        } catch (RuntimeException error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private String load(int transactions, int rate, int bytes) throws Exception {
        Random chance = new Random(1);
        List<List<Integer>> touched = new ArrayList<>();
        List<Integer> all = new ArrayList<>();
        for (int at = 0; at < targets; at++) {
            all.add(at);
        }
        for (int at = 0; at < transactions; at++) {
            Collections.shuffle(all, chance);
            touched.add(List.copyOf(all.subList(0, Math.max(1, targets / 2))));
        }
        times.clear();
        received.set(0);
        long first = numbers;
        numbers += transactions;
        long start = System.nanoTime();
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            Thread thread = new Thread(() -> {
                for (int at = next.getAndIncrement(); at < transactions; at = next.getAndIncrement()) {
                    sleepUntil(start + at * 1_000_000_000L / rate);
                    commit(producer, first + at, touched.get(at), bytes);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        long wanted = (long) transactions * Math.max(1, targets / 2);
        long deadline = System.nanoTime() + SETTLE_SECONDS * 1_000_000_000L;
        while (received.get() < wanted) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(received.get() + " of " + wanted + " records came");
            }
            Thread.sleep(5);
        }
        began.clear();
        List<Double> found = List.copyOf(times);
        return transactions / seconds + " " + found.stream().map(String::valueOf).collect(Collectors.joining(" "));
    }

    private void commit(KafkaProducer<byte[], byte[]> producer, long number, List<Integer> partitions, int bytes) {
        byte[] value = ByteBuffer.allocate(bytes).putLong(number).array();
        began.put(number, System.nanoTime());
        producer.beginTransaction();
        for (int partition : partitions) {
            producer.send(new ProducerRecord<>(TOPIC, partition, null, value));
        }
        producer.commitTransaction();
    }

    private static void sleepUntil(long nanos) {
        long left = nanos - System.nanoTime();
        if (left > 0) {
            try {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
