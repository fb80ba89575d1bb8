// Producers, transactional where they can, readers of what is committed and a share group, by three
// clients of Go.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	segmentio "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions   = 3
	transactions = 4
	records      = 6
	shared       = 30
)

// Every second transaction is aborted.
func value(client string, number, record int) string {
	return fmt.Sprintf("%s/%d/%d", client, number, record)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func franz(ctx context.Context, bootstrap, topic string) map[string]bool {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(topic+"-franz"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	check(err)
	defer client.Close()
	for number := 0; number < transactions; number++ {
		check(client.BeginTransaction())
		for record := 0; record < records; record++ {
			client.Produce(ctx, &kgo.Record{
				Topic:     topic,
				Partition: int32(record % partitions),
				Value:     []byte(value("franz", number, record)),
			}, func(_ *kgo.Record, err error) { check(err) })
		}
		check(client.Flush(ctx))
		check(client.EndTransaction(ctx, kgo.TransactionEndTry(number%2 == 0)))
	}

	reader, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	check(err)
	defer reader.Close()
	found := map[string]bool{}
	for len(found) < transactions/2*records {
		fetched := reader.PollFetches(ctx)
		check(fetched.Err())
		fetched.EachRecord(func(record *kgo.Record) { found[string(record.Value)] = true })
	}
	return found
}

func ibm(ctx context.Context, bootstrap, topic string) map[string]bool {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Idempotent = true
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Transaction.ID = topic + "-sarama"
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	brokers := []string{bootstrap}
	producer, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	defer producer.Close()
	for number := 0; number < transactions; number++ {
		check(producer.BeginTxn())
		for record := 0; record < records; record++ {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{
				Topic:     topic,
				Partition: int32(record % partitions),
				Value:     sarama.StringEncoder(value("sarama", number, record)),
			})
			check(err)
		}
		if number%2 == 0 {
			check(producer.CommitTxn())
		} else {
			check(producer.AbortTxn())
		}
	}

	consumer, err := sarama.NewConsumer(brokers, config)
	check(err)
	defer consumer.Close()
	arrived := make(chan string)
	for number := int32(0); number < partitions; number++ {
		reader, err := consumer.ConsumePartition(topic, number, sarama.OffsetOldest)
		check(err)
		go func() {
			for message := range reader.Messages() {
				arrived <- string(message.Value)
			}
		}()
	}
	found := map[string]bool{}
	for len(found) < transactions/2*records {
		select {
		case one := <-arrived:
			found[one] = true
		case <-ctx.Done():
			log.Fatal(ctx.Err())
		}
	}
	return found
}

// It has no transactional producer: it writes all, and its group reads what others see of it.
func kafkaGo(ctx context.Context, bootstrap, topic string) map[string]bool {
	writer := &segmentio.Writer{
		Addr:         segmentio.TCP(bootstrap),
		Topic:        topic,
		RequiredAcks: segmentio.RequireAll,
		Compression:  segmentio.Zstd,
		BatchTimeout: 10 * time.Millisecond,
		Balancer: segmentio.BalancerFunc(func(message segmentio.Message, _ ...int) int {
			return int(message.Key[0]-'0') % partitions
		}),
	}
	defer writer.Close()
	for number := 0; number < transactions; number += 2 {
		messages := []segmentio.Message{}
		for record := 0; record < records; record++ {
			messages = append(messages, segmentio.Message{
				Key:   []byte(fmt.Sprint(record)),
				Value: []byte(value("kafka-go", number, record)),
			})
		}
		check(writer.WriteMessages(ctx, messages...))
	}

	found := map[string]bool{}
	// A second reader of the group goes on where the first one has committed.
	for half := 1; half <= 2; half++ {
		reader := segmentio.NewReader(segmentio.ReaderConfig{
			Brokers:        []string{bootstrap},
			GroupID:        topic + "-kafka-go",
			Topic:          topic,
			StartOffset:    segmentio.FirstOffset,
			IsolationLevel: segmentio.ReadCommitted,
			MaxWait:        100 * time.Millisecond,
		})
		for len(found) < half*transactions/4*records {
			message, err := reader.FetchMessage(ctx)
			check(err)
			if found[string(message.Value)] {
				log.Fatalf("%s came twice", message.Value)
			}
			found[string(message.Value)] = true
			check(reader.CommitMessages(ctx, message))
		}
		check(reader.Close())
	}
	return found
}

// A share group: of three records one is accepted at once, one is released first, one is renewed
// and rejected. Prints what became of each at which delivery.
func franzShare(ctx context.Context, bootstrap, topic string) map[string]bool {
	seeds := kgo.SeedBrokers(bootstrap)
	producer, err := kgo.NewClient(seeds, kgo.DefaultProduceTopic(topic))
	check(err)
	defer producer.Close()
	for record := 0; record < shared; record++ {
		made := &kgo.Record{Value: []byte(fmt.Sprint(record))}
		check(producer.ProduceSync(ctx, made).FirstErr())
	}

	failed := make(chan error, 100)
	member := func() *kgo.Client {
		client, err := kgo.NewClient(seeds, kgo.ShareGroup(topic), kgo.ConsumeTopics(topic),
			kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
				if err := results.Error(); err != nil {
					failed <- err
				}
			}))
		check(err)
		return client
	}
	first := member()
	found := map[string]bool{}
	for len(found) < shared {
		fetched := first.PollFetches(ctx)
		check(fetched.Err())
		fetched.EachRecord(func(record *kgo.Record) {
			number, err := strconv.Atoi(string(record.Value))
			check(err)
			switch {
			case number%3 == 1 && record.DeliveryCount() == 1:
				record.Ack(kgo.AckRelease)
				return
			case number%3 == 2:
				record.Ack(kgo.AckRenew)
				record.Ack(kgo.AckReject)
			default:
				record.Ack(kgo.AckAccept)
			}
			found[fmt.Sprintf("%d/%d", number, record.DeliveryCount())] = true
		})
	}
	check(first.FlushAcks(ctx))
	first.Close()

	// Nothing is left for anybody else but what comes now.
	second := member()
	defer second.Close()
	check(producer.ProduceSync(ctx, &kgo.Record{Value: []byte("last")}).FirstErr())
	for len(found) == shared {
		second.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			found[fmt.Sprintf("%s/%d", record.Value, record.DeliveryCount())] = true
			record.Ack(kgo.AckAccept)
		})
		check(ctx.Err())
	}
	check(second.FlushAcks(ctx))
	select {
	case err := <-failed:
		log.Fatal(err)
	default:
	}
	return found
}

func main() {
	client, bootstrap, topic := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	clients := map[string]func(context.Context, string, string) map[string]bool{
		"franz": franz, "sarama": ibm, "kafka-go": kafkaGo, "franz-share": franzShare,
	}
	for one := range clients[client](ctx, bootstrap, topic) {
		fmt.Println(one)
	}
}
