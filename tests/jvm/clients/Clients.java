import java.io.FileReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own clients, as their documentation has them used. One command for each run: what it
 * finds is said on standard output, a line each; what goes wrong ends it.
 */
public class Clients {
  static Properties ways = new Properties();
  static final Duration WAIT = Duration.ofMillis(200);

  public static void main(String[] given) throws Exception {
    try (FileReader file = new FileReader(given[1])) {
      ways.load(file);
    }
    switch (given[0]) {
      case "describe" -> describe(given[2]);
      case "produce" -> produce(given[2], Integer.parseInt(given[3]));
      case "read" -> read(given[2], Integer.parseInt(given[3]));
      case "group" -> group(given[2], Integer.parseInt(given[3]));
      case "transact" -> transact(given[2]);
      case "pump" -> pump(given[2], given[3], Integer.parseInt(given[4]));
      default -> throw new IllegalArgumentException(given[0]);
    }
  }

  static void say(Object... words) {
    System.out.println(
        java.util.Arrays.stream(words).map(String::valueOf).collect(Collectors.joining("\t")));
  }

  static Properties with(String... more) {
    Properties all = new Properties();
    all.putAll(ways);
    for (int at = 0; at < more.length; at += 2) all.setProperty(more[at], more[at + 1]);
    return all;
  }

  static KafkaProducer<String, String> producer(String... more) {
    return new KafkaProducer<>(with(more), new StringSerializer(), new StringSerializer());
  }

  static KafkaConsumer<String, String> consumer(String... more) {
    Properties all =
        with("auto.offset.reset", "earliest", "enable.auto.commit", "false",
            "isolation.level", "read_committed");
    for (int at = 0; at < more.length; at += 2) all.setProperty(more[at], more[at + 1]);
    return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
  }

  /** Makes a topic of three partitions, and asks for all that can be known of it. */
  static void describe(String topic) throws Exception {
    try (Admin admin = Admin.create(ways)) {
      NewTopic made =
          new NewTopic(topic, Optional.of(3), Optional.empty())
              .configs(Map.of("cleanup.policy", "compact"));
      say("made", admin.createTopics(List.of(made)).numPartitions(topic).get());
      try {
        admin.createTopics(List.of(made)).all().get();
      } catch (ExecutionException error) {
        say("again", error.getCause() instanceof TopicExistsException);
      }
      say("nodes", admin.describeCluster().nodes().get().size());
      say("cluster", admin.describeCluster().clusterId().get());
      say("listed", admin.listTopics().names().get().contains(topic));
      var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
      say("partitions", described.partitions().size());
      var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
      var configs = admin.describeConfigs(List.of(resource)).all().get().get(resource);
      for (var each : new TreeSet<>(configs.entries().stream().map(e -> e.name()).toList()))
        say("config", each, configs.get(each).value());
      var place = new TopicPartition(topic, 0);
      for (var spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp()))
        say("offset", spec.getClass().getSimpleName(),
            admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset());
    }
  }

  /** So many values to each partition with each compression: "codec-partition-number". */
  static void produce(String topic, int count) throws Exception {
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
      try (var producer = producer("compression.type", codec, "linger.ms", "2")) {
        int partitions = producer.partitionsFor(topic).size();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++)
          for (int at = 0; at < partitions; at++) {
            String value = codec + "-" + at + "-" + number;
            var record = new ProducerRecord<>(topic, at, 1_700_000_000_000L + number, codec, value);
            record.headers().add("h", "x".getBytes(StandardCharsets.UTF_8));
            sent.add(producer.send(record));
          }
        long last = -1;
        for (var each : sent)
          if (each.get().partition() == 0) {
            if (each.get().offset() <= last) throw new IllegalStateException("offsets fall");
            last = each.get().offset();
          }
      }
    }
    say("sent");
  }

  /** All partitions, without a group, up to their ends as they are now. */
  static void read(String topic, int count) {
    try (var consumer = consumer()) {
      var places =
          consumer.partitionsFor(topic).stream()
              .map(each -> new TopicPartition(topic, each.partition()))
              .toList();
      consumer.assign(places);
      consumer.seekToBeginning(places);
      int found = 0;
      while (found < count)
        for (var each : consumer.poll(WAIT)) {
          String header = each.headers().lastHeader("h") == null ? "" : "h";
          say("row", each.partition(), each.offset(), each.timestamp(), each.key(), header, each.value());
          found++;
        }
      for (var end : new TreeMap<>(index(consumer.endOffsets(places))).entrySet())
        say("end", end.getKey(), end.getValue(),
            consumer.position(new TopicPartition(topic, end.getKey())));
      var times = consumer.offsetsForTimes(Map.of(places.get(0), 0L));
      say("begin", times.get(places.get(0)).offset(),
          consumer.beginningOffsets(places).get(places.get(0)));
    }
  }

  static Map<Integer, Long> index(Map<TopicPartition, Long> found) {
    return found.entrySet().stream()
        .collect(Collectors.toMap(each -> each.getKey().partition(), Map.Entry::getValue));
  }

  /** Two members share a topic; one leaves, and the other goes on. */
  static void group(String topic, int count) throws Exception {
    String[] own = {"group.id", "group-of-" + topic};
    var one = consumer(own);
    var two = consumer(own);
    one.subscribe(List.of(topic));
    two.subscribe(List.of(topic));
    int found = 0;
    while (found < count || one.assignment().isEmpty() || two.assignment().isEmpty()) {
      for (var each : List.of(one, two)) {
        for (var record : each.poll(WAIT)) {
          say("row", record.partition(), record.offset(), record.value());
          found++;
        }
        each.commitSync();
      }
    }
    say("shared", one.assignment().size(), two.assignment().size());
    two.close();
    while (one.assignment().size() < 3) for (var each : one.poll(WAIT)) say("again", each.value());
    say("alone", one.assignment().size());
    one.enforceRebalance();
    for (int at = 0; at < 10; at++) for (var each : one.poll(WAIT)) say("again", each.value());
    var places = one.assignment();
    for (var each : one.committed(places).entrySet())
      say("committed", each.getKey().partition(), each.getValue().offset());
    one.close();
    try (Admin admin = Admin.create(ways)) {
      say("kept", admin.listConsumerGroupOffsets(own[1]).partitionsToOffsetAndMetadata().get().size());
    }
  }

  /** One transaction that is given up, one that is not, and a producer that was fenced. */
  static void transact(String topic) throws Exception {
    String[] own = {"transactional.id", "transactions-of-" + topic};
    var old = producer(own);
    old.initTransactions();
    old.beginTransaction();
    old.send(new ProducerRecord<>(topic, 0, "k", "given up")).get();
    old.flush();
    old.abortTransaction();
    old.beginTransaction();
    for (int at = 0; at < 3; at++) old.send(new ProducerRecord<>(topic, at, "k", "counts " + at));
    old.commitTransaction();
    old.beginTransaction();
    old.send(new ProducerRecord<>(topic, 0, "k", "of the old")).get();
    try (var newer = producer(own)) {
      newer.initTransactions();
      newer.beginTransaction();
      newer.send(new ProducerRecord<>(topic, 0, "k", "of the new"));
      try {
        old.commitTransaction();
        say("not fenced");
      } catch (ProducerFencedException error) {
        say("fenced");
      }
      newer.commitTransaction();
    }
    old.close();
  }

  /**
   * Moves so many rows from one topic to another, each poll in a transaction with its offsets, as
   * Kafka's own example of it does: what can be aborted is, and read again; after anything else
   * the producer is made anew.
   */
  static void pump(String from, String to, int rows) throws Exception {
    String group = "pump-of-" + from;
    try (var consumer = consumer("group.id", group, "max.poll.records", "5",
        "session.timeout.ms", "6000", "heartbeat.interval.ms", "300")) {
      consumer.subscribe(List.of(from));
      while (true) {
        try (var producer = producer("transactional.id", group, "max.block.ms", "20000")) {
          producer.initTransactions();
          if (pump(consumer, producer, to, rows)) return;
        } catch (KafkaException error) {
          say("anew", error.getClass().getSimpleName());
          rewind(consumer);
        }
      }
    }
  }

  static boolean pump(
      KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer, String to,
      int rows) {
    while (true) {
      ConsumerRecords<String, String> found = consumer.poll(WAIT);
      if (found.isEmpty()) continue;
      boolean ends = false;
      try {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> each : found) {
          for (int at = 0; at < 2; at++)
            producer.send(new ProducerRecord<>(to, at, null, at + ":" + each.value()));
          ends |= each.value().equals(String.valueOf(rows - 1));
          offsets.put(
              new TopicPartition(each.topic(), each.partition()),
              new OffsetAndMetadata(each.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
        say("moved", found.count());
        if (ends) return true;
      } catch (ProducerFencedException | OutOfOrderSequenceException error) {
        throw error;
      } catch (KafkaException error) {
        say("aborted", error.getClass().getSimpleName());
        producer.abortTransaction();
        rewind(consumer);
      }
    }
  }

  /** To what was committed. */
  static void rewind(KafkaConsumer<String, String> consumer) {
    for (int left = 20; ; left--) {
      try {
        var places = consumer.assignment();
        var kept = consumer.committed(places, Duration.ofSeconds(10));
        for (var each : places)
          if (kept.get(each) == null) consumer.seekToBeginning(List.of(each));
          else consumer.seek(each, kept.get(each));
        return;
      } catch (KafkaException error) {
        if (left == 0) throw error;
        say("again", error.getClass().getSimpleName());
      }
    }
  }
}
