import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Records that are due later, with the idempotent producer and in a transaction; prints "done". */
public class DueScenario {
    static final long DELAY_MS = 1_500;
    static String bootstrap;
    static String topic;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            NewTopic made = new NewTopic(topic, Optional.of(1), Optional.empty());
            made.configs(Map.of("dovetail.due", "true",
                "message.timestamp.type", "LogAppendTime"));
            admin.createTopics(List.of(made)).all().get();
        }

        long began = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            producer.send(record("last", header("dovetail-delay", 2 * DELAY_MS + "ms"),
                new RecordHeader("h", "1".getBytes())));
            producer.send(record("due",
                header("dovetail-due", Long.toString(began + DELAY_MS))));
            producer.send(record("now")).get();
            producer.flush();
            refused(producer);
        }
        transactions(began);

        List<ConsumerRecord<String, String>> found = read(4);
        List<String> values = found.stream().map(ConsumerRecord::value).toList();
        same(List.of("now", "due", "last", "committed"), values);
        same(true, found.get(1).timestamp() >= began + DELAY_MS);
        same(true, found.get(2).timestamp() >= began + 2 * DELAY_MS);
        same("1", new String(found.get(2).headers().lastHeader("h").value()));
        same(null, found.get(2).headers().lastHeader("dovetail-delay"));
        same(true, found.get(2).headers().lastHeader("dovetail-due-id") != null);
        System.out.println("done");
    }

    /** A time that nobody can read is refused, and the producer goes on. */
    static void refused(KafkaProducer<String, String> producer) throws Exception {
        try {
            producer.send(record("bad", header("dovetail-due", "tomorrow"))).get();
            throw new AssertionError("a time that cannot be was taken");
        } catch (ExecutionException error) {
            same(InvalidRecordException.class, error.getCause().getClass());
        }
    }

    /** What is aborted never appears; what is committed does, once. */
    static void transactions(long began) {
        Header later = header("dovetail-due", Long.toString(began + 3 * DELAY_MS));
        try (KafkaProducer<String, String> producer =
                producer(Map.of("transactional.id", topic))) {
            producer.initTransactions();
            for (String value : List.of("aborted", "committed")) {
                producer.beginTransaction();
                producer.send(record(value, later));
                if (value.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> config = new java.util.HashMap<>(more);
        config.put("bootstrap.servers", bootstrap);
        config.put("linger.ms", 0);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static ProducerRecord<String, String> record(String value, Header... headers) {
        return new ProducerRecord<>(topic, 0, "k", value, List.of(headers));
    }

    static Header header(String name, String value) {
        return new RecordHeader(name, value.getBytes());
    }

    static List<ConsumerRecord<String, String>> read(int count) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap,
            "isolation.level", "read_committed");
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config,
                new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (found.size() < count) {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            }
        }
        return found;
    }

    static void same(Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
