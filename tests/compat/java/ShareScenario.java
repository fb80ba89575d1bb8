import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Share consumers and what Kafka's admin tools ask of share groups; prints "done". */
public class ShareScenario {
    static String bootstrap;
    static String topic;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all()
            .get();
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, topic);
        admin.incrementalAlterConfigs(Map.of(group, List.of(
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"),
                AlterConfigOp.OpType.SET)))).all().get();
        same("earliest", admin.describeConfigs(List.of(group)).all().get().get(group)
            .get("share.auto.offset.reset").value());
        produce(0, 10);

        KafkaShareConsumer<byte[], byte[]> one = consumer();
        Map<String, Short> counts = new TreeMap<>();
        take(one, 10, counts, record -> {
            String value = new String(record.value());
            return switch (value) {
                case "3" -> AcknowledgeType.REJECT;
                case "5" -> AcknowledgeType.RELEASE;
                case "7" -> AcknowledgeType.RENEW;
                default -> AcknowledgeType.ACCEPT;
            };
        });
        same(10, counts.size());
        same(Optional.empty(), one.commitSync().values().stream().findFirst().get());
        // What was renewed is still this member's, and what was released comes again.
        take(one, 2, counts, record -> AcknowledgeType.ACCEPT);
        same((short) 2, counts.get("5"));
        same((short) 1, counts.get("7"));
        one.commitSync();

        ShareGroupDescription found = admin.describeShareGroups(List.of(topic)).all().get()
            .get(topic);
        same(GroupState.STABLE, found.groupState());
        same(1, found.members().size());
        same(Set.of(new TopicPartition(topic, 0)),
            found.members().iterator().next().assignment().topicPartitions());
        same(true, admin.listGroups().all().get().stream().anyMatch(listed ->
            listed.groupId().equals(topic) && listed.type().equals(Optional.of(GroupType.SHARE))));
        same(10L, offsets(admin).startOffset());
        same(Optional.of(0L), offsets(admin).lag());
        refused(GroupNotEmptyException.class, () -> admin.alterShareGroupOffsets(topic,
            Map.of(new TopicPartition(topic, 0), 2L)).all().get());
        one.close();

        admin.alterShareGroupOffsets(topic, Map.of(new TopicPartition(topic, 0), 8L)).all().get();
        same(8L, offsets(admin).startOffset());
        same(Optional.of(2L), offsets(admin).lag());
        KafkaShareConsumer<byte[], byte[]> two = consumer();
        counts.clear();
        take(two, 2, counts, record -> AcknowledgeType.ACCEPT);
        same(Set.of("8", "9"), counts.keySet());
        two.commitSync();
        two.close();

        admin.deleteShareGroupOffsets(topic, Set.of(topic)).all().get();
        same(null, offsets(admin));
        admin.deleteShareGroups(List.of(topic)).all().get();
        refused(GroupIdNotFoundException.class,
            () -> admin.describeShareGroups(List.of(topic)).all().get());
        admin.close();
        System.out.println("done");
    }

    interface Decide {
        AcknowledgeType of(ConsumerRecord<byte[], byte[]> record);
    }

    interface Ask {
        void run() throws Exception;
    }

    static void refused(Class<? extends Exception> kind, Ask ask) throws Exception {
        try {
            ask.run();
        } catch (ExecutionException error) {
            same(kind, error.getCause().getClass());
            return;
        }
        throw new AssertionError("not refused with " + kind);
    }

    static SharePartitionOffsetInfo offsets(Admin admin) throws Exception {
        Map<TopicPartition, SharePartitionOffsetInfo> found = admin.listShareGroupOffsets(
            Map.of(topic, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(topic).get();
        return found.get(new TopicPartition(topic, 0));
    }

    static void take(KafkaShareConsumer<byte[], byte[]> consumer, int many,
            Map<String, Short> counts, Decide decide) {
        int got = 0;
        long end = System.currentTimeMillis() + 30_000;
        while (got < many) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("only " + counts);
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                counts.put(new String(record.value()), record.deliveryCount().get());
                AcknowledgeType type = decide.of(record);
                consumer.acknowledge(record, type);
                got++;
            }
        }
    }

    static KafkaShareConsumer<byte[], byte[]> consumer() {
        Map<String, Object> given = new HashMap<>();
        given.put("bootstrap.servers", bootstrap);
        given.put("group.id", topic);
        given.put("share.acknowledgement.mode", "explicit");
        KafkaShareConsumer<byte[], byte[]> made = new KafkaShareConsumer<>(
            given, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        made.subscribe(List.of(topic));
        return made;
    }

    static void produce(int from, int to) throws Exception {
        Map<String, Object> given = Map.of("bootstrap.servers", bootstrap);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(given, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = from; number < to; number++) {
                byte[] value = Integer.toString(number).getBytes();
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            }
        }
    }

    static void same(Object wanted, Object found) {
        if (wanted == null ? found != null : !wanted.equals(found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }
}
