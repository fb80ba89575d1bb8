// With kafkajs (npm install kafkajs): node examples/due/remind.js 'call Ada' 5s [127.0.0.1:9092]
const { Kafka, logLevel } = require("kafkajs");

const [text, delay, bootstrap = "127.0.0.1:9092"] = process.argv.slice(2);

(async () => {
  const producer = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR }).producer();
  await producer.connect();
  await producer.send({
    topic: "reminders",
    messages: [{ value: text, headers: { "dovetail-delay": delay } }],
  });
  await producer.disconnect();
})();
