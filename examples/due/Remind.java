import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringSerializer;

/** With Kafka's own client: java -cp 'kafka/libs/*' examples/due/Remind.java 'call Ada' 5s [127.0.0.1:9092] */
public class Remind {
    public static void main(String[] args) throws Exception {
        String bootstrap = args.length > 2 ? args[2] : "127.0.0.1:9092";
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
        var delay = new RecordHeader("dovetail-delay", args[1].getBytes());
        try (var producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.send(
                new ProducerRecord<>("reminders", null, (String) null, args[0], List.of(delay)))
                .get();
        }
    }
}
