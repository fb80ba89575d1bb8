import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions with the Java client: commits, aborts, positions, fencing, lists, a hanging one. */
public class TransactionScenario {
    public static void main(String[] words) throws Exception {
        String bootstrap = words[0], topic = words[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            commitsAndAborts(bootstrap, topic);
            positions(bootstrap, topic, admin);
            fencing(bootstrap, topic);
            lists(bootstrap, topic, admin);
        }
        System.out.println("done");
    }

    static KafkaProducer<String, String> producer(String bootstrap, String id) {
        Properties given = new Properties();
        given.put("bootstrap.servers", bootstrap);
        given.put("transactional.id", id);
        given.put("key.serializer", StringSerializer.class.getName());
        given.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> made = new KafkaProducer<>(given);
        made.initTransactions();
        return made;
    }

    static Set<String> committed(String bootstrap, String topic) {
        Properties given = new Properties();
        given.put("bootstrap.servers", bootstrap);
        given.put("isolation.level", "read_committed");
        given.put("key.deserializer", StringDeserializer.class.getName());
        given.put("value.deserializer", StringDeserializer.class.getName());
        Set<String> found = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(given)) {
            List<TopicPartition> places =
                List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = new HashMap<>(consumer.endOffsets(places));
            while (places.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
            }
        }
        return found;
    }

    static void await(String what, java.util.concurrent.Callable<Boolean> met) throws Exception {
        long deadline = System.currentTimeMillis() + 30_000;
        while (!met.call()) {
            check(System.currentTimeMillis() < deadline, what);
            Thread.sleep(50);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void commitsAndAborts(String bootstrap, String topic) throws Exception {
        Set<String> wanted = new TreeSet<>();
        try (KafkaProducer<String, String> producer = producer(bootstrap, topic + "-a")) {
            for (int number = 0; number < 20; number++) {
                producer.beginTransaction();
                List<String> values = List.of("a" + number + "/0", "a" + number + "/1");
                for (int part = 0; part < 2; part++) {
                    producer.send(new ProducerRecord<>(topic, part, null, values.get(part)));
                }
                producer.flush();
                if (number % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    wanted.addAll(values);
                }
            }
        }
        await("commits and aborts", () -> committed(bootstrap, topic).equals(wanted));
    }

    static void positions(String bootstrap, String topic, Admin admin) throws Exception {
        String group = topic + "-group";
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer(bootstrap, topic + "-p")) {
            for (long upto = 1; upto <= 3; upto++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 1, null, "p" + upto));
                producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(upto)), new ConsumerGroupMetadata(group));
                if (upto == 2) producer.abortTransaction(); else producer.commitTransaction();
            }
        }
        await("positions", () -> {
            OffsetAndMetadata found = admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata().get().get(place);
            return found != null && found.offset() == 3;
        });
        await("p2 is aborted", () -> {
            Set<String> seen = committed(bootstrap, topic);
            return seen.contains("p1") && seen.contains("p3") && !seen.contains("p2");
        });
    }

    static void fencing(String bootstrap, String topic) throws Exception {
        KafkaProducer<String, String> zombie = producer(bootstrap, topic + "-f");
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, null, "zombie")).get();
        try (KafkaProducer<String, String> successor = producer(bootstrap, topic + "-f")) {
            try {
                zombie.commitTransaction();
                throw new AssertionError("a zombie committed");
            } catch (ProducerFencedException expected) {
                zombie.close(Duration.ZERO);
            }
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, 0, null, "successor"));
            successor.commitTransaction();
        }
        await("the successor", () -> committed(bootstrap, topic).contains("successor"));
        check(!committed(bootstrap, topic).contains("zombie"), "the zombie's record is seen");
    }

    static void lists(String bootstrap, String topic, Admin admin) throws Exception {
        String id = topic + "-l";
        TopicPartition place = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = producer(bootstrap, id);
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, "hangs")).get();

        List<TransactionListing> all = new ArrayList<>(admin.listTransactions().all().get());
        check(all.stream().anyMatch(one -> one.transactionalId().equals(id)), "it is not listed");
        TransactionDescription described =
            admin.describeTransactions(List.of(id)).description(id).get();
        check(described.topicPartitions().contains(place), "described without its partition");
        check(described.state().toString().equals("Ongoing"), "described as " + described.state());

        ProducerState state = admin.describeProducers(List.of(place)).partitionResult(place).get()
            .activeProducers().stream()
            .filter(one -> one.producerId() == described.producerId()).findFirst().orElseThrow();
        check(state.currentTransactionStartOffset().isPresent(), "no open transaction is shown");

        admin.abortTransaction(new AbortTransactionSpec(place, state.producerId(),
            (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
        await("its abort", () -> admin.describeProducers(List.of(place)).partitionResult(place)
            .get().activeProducers().stream()
            .filter(one -> one.producerId() == described.producerId())
            .noneMatch(one -> one.currentTransactionStartOffset().isPresent()));
        check(!committed(bootstrap, topic).contains("hangs"), "what was aborted is seen");
        producer.close(Duration.ZERO);
    }
}
