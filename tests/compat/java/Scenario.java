// Drives the Java client for the compatibility suite: admin calls, idempotent producing with every
// codec, reading by assignment and by time, reading by group with a restart. Throws on the first
// thing that is not as it should be; prints "done" at the end.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Scenario {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final long START_MS = 1_700_000_000_000L;
    private static final long DEADLINE_NS = System.nanoTime() + 40_000_000_000L;

    private final String bootstrap;
    private final String topic;
    private final TopicPartition part;

    private Scenario(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.part = new TopicPartition(topic, 0);
    }

    public static void main(String[] args) throws Exception {
        Scenario scenario = new Scenario(args[0], args[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            scenario.create(admin);
            scenario.produce();
            scenario.readByAssignment();
            scenario.readByGroup(0, 3);
            scenario.readByGroup(3, 2);
            scenario.describe(admin);
            admin.deleteTopics(List.of(args[1])).all().get();
        }
        System.out.println("done");
    }

    private static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    private void create(Admin admin) throws Exception {
        NewTopic wanted = new NewTopic(topic, 1, (short) 1);
        admin.createTopics(List.of(wanted)).all().get();
        try {
            admin.createTopics(List.of(wanted)).all().get();
            check(false, "a topic was created twice");
        } catch (ExecutionException error) {
            check(error.getCause() instanceof TopicExistsException, "wrong error: " + error);
        }
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get();
    }

    private void produce() throws Exception {
        for (int number = 0; number < CODECS.length; number++) {
            Map<String, Object> settings =
                    Map.of("bootstrap.servers", bootstrap, "compression.type", CODECS[number]);
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(
                            settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>(
                                topic, 0, START_MS + 1000L * number, null, value(number));
                record.headers().add("a", "1".getBytes(UTF_8)).add("a", null);
                long offset = producer.send(record).get().offset();
                check(offset == number, "offset " + offset + " for " + CODECS[number]);
            }
        }
    }

    private static byte[] value(int number) {
        return (CODECS[number] + " ").repeat(100).getBytes(UTF_8);
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Map<String, Object> settings =
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", topic + "-group",
                        "auto.offset.reset", "earliest",
                        "enable.auto.commit", false,
                        "max.poll.records", 1);
        return new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(
            KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        while (records.size() < count) {
            check(System.nanoTime() < DEADLINE_NS, "only " + records.size() + " of " + count);
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        }
        return records;
    }

    private static void checkValues(List<ConsumerRecord<byte[], byte[]>> records, int first) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            int number = first++;
            check(record.offset() == number, "offset " + record.offset() + ", not " + number);
            check(java.util.Arrays.equals(record.value(), value(number)), "value " + number);
            check(record.key() == null, "key " + number);
            check(record.timestamp() == START_MS + 1000L * number, "timestamp " + number);
            check(record.headers().toArray().length == 2, "headers " + number);
            check(record.headers().lastHeader("a").value() == null, "null header " + number);
        }
    }

    private void readByAssignment() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(part));
            consumer.seekToBeginning(List.of(part));
            checkValues(take(consumer, CODECS.length), 0);
            long found = consumer.offsetsForTimes(Map.of(part, START_MS + 1500)).get(part).offset();
            check(found == 2, "offset by time " + found);
            consumer.seek(part, found);
            checkValues(take(consumer, CODECS.length - 2), 2);
        }
    }

    private void readByGroup(int first, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.subscribe(List.of(topic));
            checkValues(take(consumer, count), first);
            consumer.commitSync(Map.of(part, new OffsetAndMetadata(first + count)));
            check(consumer.assignment().size() == 2, "assignment " + consumer.assignment());
        }
    }

    private void describe(Admin admin) throws Exception {
        String group = topic + "-group";
        long committed =
                admin.listConsumerGroupOffsets(group)
                        .partitionsToOffsetAndMetadata()
                        .get()
                        .get(part)
                        .offset();
        check(committed == CODECS.length, "committed " + committed);
        check(admin.describeCluster().nodes().get().size() == 1, "nodes");
        check(
                admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic).partitions()
                                .size()
                        == 2,
                "partitions");
        check(
                admin.listConsumerGroups().all().get().stream()
                        .anyMatch(listed -> listed.groupId().equals(group)),
                "group is not listed");
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }
}
