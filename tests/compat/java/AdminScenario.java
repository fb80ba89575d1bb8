import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The requests behind Kafka's admin tools, one after another; prints "done" when all answer. */
public class AdminScenario {
    static Admin admin;
    static String topic;

    public static void main(String[] args) throws Exception {
        topic = args[1];
        admin = Admin.create(Map.of("bootstrap.servers", args[0], "request.timeout.ms", 10000));
        settings();
        produce(args[0]);
        places();
        quotas();
        cluster();
        admin.close();
        System.out.println("done");
    }

    static void settings() throws Exception {
        Map<String, String> wanted = Map.of(
            "min.insync.replicas", "1", "compression.type", "zstd", "delete.retention.ms", "1000",
            "unclean.leader.election.enable", "false", "message.timestamp.after.max.ms", "60000",
            "preallocate", "true", "segment.jitter.ms", "5", "cleanup.policy", "delete");
        NewTopic asked = new NewTopic(topic, Optional.of(2), Optional.empty()).configs(wanted);
        admin.createTopics(List.of(asked)).all().get();

        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        wanted.forEach((name, value) -> same(value, found.get(name).value()));
        same(ConfigEntry.ConfigType.BOOLEAN, found.get("preallocate").type());
        same(ConfigEntry.ConfigType.LIST, found.get("cleanup.policy").type());

        fails("InvalidConfiguration", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("min.cleanable.dirty.ratio", "2"),
                AlterConfigOp.OpType.SET)))).all().get());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
            new ConfigEntry("leader.replication.throttled.replicas", "0:1"),
            AlterConfigOp.OpType.APPEND)))).all().get();

        String id = admin.describeCluster().nodes().get().iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        Config own = admin.describeConfigs(List.of(broker)).all().get().get(broker);
        for (String name : List.of("log.retention.ms", "num.partitions", "message.max.bytes",
                "default.replication.factor", "min.insync.replicas", "auto.create.topics.enable")) {
            if (own.get(name) == null) {
                throw new AssertionError(name);
            }
        }
        same(true, admin.listConfigResources().all().get().stream()
            .anyMatch(one -> one.name().equals(topic)));
    }

    static void produce(String bootstrap) throws Exception {
        Map<String, Object> how = Map.of("bootstrap.servers", bootstrap, "linger.ms", "0");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(how, bytes, bytes)) {
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1000])).get();
            long late = System.currentTimeMillis() + 3_600_000;
            fails("InvalidTimestamp", () -> producer.send(
                new ProducerRecord<>(topic, 0, late, null, new byte[10])).get());
        }
    }

    static void places() throws Exception {
        TopicDescription found =
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        same(2, found.partitions().size());
        int leader = found.partitions().get(0).leader().id();
        same(List.of(leader), found.partitions().get(0).replicas().stream()
            .map(node -> node.id()).toList());

        long size = admin.describeLogDirs(List.of(leader)).allDescriptions().get().get(leader)
            .values().stream().mapToLong(dir -> {
                var replica = dir.replicaInfos().get(new TopicPartition(topic, 0));
                return replica == null ? 0 : replica.size();
            }).sum();
        same(true, size > 0);

        Set<TopicPartition> first = Set.of(new TopicPartition(topic, 0));
        same(true, admin.electLeaders(ElectionType.PREFERRED, first).partitions().get()
            .get(new TopicPartition(topic, 0)).get().getClass().getSimpleName()
            .startsWith("ElectionNotNeeded"));
        admin.electLeaders(ElectionType.PREFERRED, null).all().get();

        TopicPartition zero = new TopicPartition(topic, 0);
        admin.alterPartitionReassignments(Map.of(zero,
            Optional.of(new NewPartitionReassignment(List.of(leader))))).all().get();
        same(0, admin.listPartitionReassignments().reassignments().get().size());
        fails("NoReassignmentInProgress", () ->
            admin.alterPartitionReassignments(Map.of(zero, Optional.empty())).all().get());
        fails("InvalidReplicaAssignment", () -> admin.alterPartitionReassignments(Map.of(zero,
            Optional.of(new NewPartitionReassignment(List.of(leader + 77))))).all().get());
    }

    static void quotas() throws Exception {
        ClientQuotaEntity entity =
            new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, topic));
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(
            new ClientQuotaAlteration.Op("producer_byte_rate", 1024.0),
            new ClientQuotaAlteration.Op("request_percentage", 50.5))))).all().get();
        var filter = ClientQuotaFilter.containsOnly(List.of(
            org.apache.kafka.common.quota.ClientQuotaFilterComponent
                .ofEntity(ClientQuotaEntity.CLIENT_ID, topic)));
        waitFor(() -> Map.of("producer_byte_rate", 1024.0, "request_percentage", 50.5)
            .equals(admin.describeClientQuotas(filter).entities().get().get(entity)));
        fails("Invalid", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", -1.0))))).all().get());
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(
            new ClientQuotaAlteration.Op("producer_byte_rate", null),
            new ClientQuotaAlteration.Op("request_percentage", null))))).all().get();
        waitFor(() -> admin.describeClientQuotas(filter).entities().get().isEmpty());
    }

    static void cluster() throws Exception {
        admin.describeFeatures().featureMetadata().get();
        fails("InvalidUpdateVersion", () -> admin.updateFeatures(Map.of("no.such.feature",
            new FeatureUpdate((short) 5, FeatureUpdate.UpgradeType.UPGRADE)),
            new UpdateFeaturesOptions()).all().get());
        admin.describeMetadataQuorum().quorumInfo().get();
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(topic,
            new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"))).all().get();
        waitFor(() -> admin.describeUserScramCredentials(List.of(topic)).all().get()
            .containsKey(topic));
    }

    interface Step {
        void run() throws Exception;
    }

    interface Question {
        boolean ask() throws Exception;
    }

    /** Kafka's brokers hear of a change a moment after it is made. */
    static void waitFor(Question question) throws Exception {
        for (int tries = 0; tries < 100; tries++) {
            try {
                if (question.ask()) {
                    return;
                }
            } catch (ExecutionException error) {
                // Not there yet.
            }
            Thread.sleep(50);
        }
        throw new AssertionError("it never came to be");
    }

    static void same(Object wanted, Object found) {
        if (!wanted.equals(found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }

    static void fails(String name, Step step) throws Exception {
        try {
            step.run();
        } catch (ExecutionException error) {
            if (error.getCause().getClass().getSimpleName().startsWith(name)) {
                return;
            }
            throw error;
        }
        throw new AssertionError("it should have failed with " + name);
    }
}
