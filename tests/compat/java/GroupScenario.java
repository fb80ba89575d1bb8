import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Consumers of the new group protocol; prints "done" when each record was read as it should. */
public class GroupScenario {
    static final int PARTITIONS = 4;
    static String bootstrap;
    static String topic;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        NewTopic asked = new NewTopic(topic, Optional.of(PARTITIONS), Optional.empty());
        admin.createTopics(List.of(asked)).all().get();
        produce(0, 40);

        KafkaConsumer<byte[], byte[]> first = consumer("uniform");
        first.subscribe(List.of(topic));
        Set<String> seen = new HashSet<>();
        until(() -> seen.size() == 40, List.of(first), seen);
        first.commitSync();

        KafkaConsumer<byte[], byte[]> second = consumer("uniform");
        second.subscribe(List.of(topic));
        until(() -> first.assignment().size() == 2 && second.assignment().size() == 2,
            List.of(first, second), seen);
        Set<TopicPartition> both = new HashSet<>(first.assignment());
        both.addAll(second.assignment());
        same(PARTITIONS, both.size());

        ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(topic)).all().get()
            .get(topic);
        same(GroupType.CONSUMER, found.type());
        same(2, found.members().size());
        same("uniform", found.partitionAssignor());
        same(true, admin.listGroups().all().get().stream().anyMatch(one ->
            one.groupId().equals(topic) && one.type().equals(Optional.of(GroupType.CONSUMER))));

        produce(40, 80);
        until(() -> seen.size() == 80, List.of(first, second), seen);
        first.close();
        until(() -> second.assignment().size() == PARTITIONS, List.of(second), seen);
        second.commitSync();
        second.close();

        // Who comes later goes on from the positions that were committed; here by a pattern.
        produce(80, 90);
        KafkaConsumer<byte[], byte[]> third = consumer("range");
        third.subscribe(new SubscriptionPattern(topic.substring(0, topic.length() - 2) + "..?"));
        Set<String> later = new HashSet<>();
        until(() -> later.size() == 10, List.of(third), later);
        third.close();
        until(() -> admin.describeConsumerGroups(List.of(topic)).all().get().get(topic)
            .groupState() == GroupState.EMPTY, List.of(), seen);

        // An empty group changes its protocol, and keeps its positions.
        produce(90, 95);
        KafkaConsumer<byte[], byte[]> classic = consumer(null);
        classic.subscribe(List.of(topic));
        Set<String> last = new HashSet<>();
        until(() -> last.size() == 5, List.of(classic), last);
        classic.close();
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        admin.close();
        System.out.println("done");
    }

    static KafkaConsumer<byte[], byte[]> consumer(String assignor) {
        Map<String, Object> how = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
            "group.id", topic, "auto.offset.reset", "earliest", "enable.auto.commit", "true"));
        how.put("group.protocol", assignor == null ? "classic" : "consumer");
        if (assignor != null) {
            how.put("group.remote.assignor", assignor);
        }
        return new KafkaConsumer<>(how, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void produce(int from, int to) throws Exception {
        ByteArraySerializer bytes = new ByteArraySerializer();
        Map<String, Object> how = Map.of("bootstrap.servers", bootstrap);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(how, bytes, bytes)) {
            for (int number = from; number < to; number++) {
                byte[] value = Integer.toString(number).getBytes();
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value));
            }
        }
    }

    interface Question {
        boolean ask() throws Exception;
    }

    static void until(Question question, List<KafkaConsumer<byte[], byte[]>> consumers,
            Set<String> seen) throws Exception {
        long end = System.currentTimeMillis() + 40_000;
        while (!question.ask()) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("it never came to be; seen " + seen.size());
            }
            for (KafkaConsumer<byte[], byte[]> one : consumers) {
                for (ConsumerRecord<byte[], byte[]> record : one.poll(Duration.ofMillis(50))) {
                    seen.add(new String(record.value()));
                }
            }
        }
    }

    static void same(Object wanted, Object found) {
        if (!wanted.equals(found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }
}
