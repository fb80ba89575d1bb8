// Drives kafkajs for the compatibility suite: one JSON request per line on standard input, one
// JSON answer per line on standard output. Bytes travel as base64, offsets as strings.
'use strict'

const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const [bootstrap, sessionTimeout, heartbeatInterval, maxWaitTimeInMs] = process.argv.slice(2)
const kafka = new Kafka({
  brokers: [bootstrap],
  // To standard error: what a call that hangs has met.
  logLevel: logLevel.WARN,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${JSON.stringify(log)}\n`),
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 8 },
})
const admin = kafka.admin()
const members = new Map()

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})
const zstd = new Promise(resolve => ZstdCodec.run(binding => resolve(new binding.Streaming())))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(new Uint8Array(encoder.buffer))),
  decompress: async buffer => Buffer.from((await zstd).decompress(new Uint8Array(buffer))),
})

const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const toBuffer = text => (text === null ? null : Buffer.from(text, 'base64'))
const toText = buffer => (buffer === null || buffer === undefined ? null : buffer.toString('base64'))

// kafkajs keeps headers in an object, with a list where a name is repeated.
function toHeaders(pairs) {
  const headers = {}
  for (const [name, text] of pairs) headers[name] = [...(headers[name] || []), toBuffer(text)]
  return headers
}

function fromHeaders(headers) {
  return Object.entries(headers || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map(one => [name, toText(one)])
  )
}

const toRecord = (partition, message) => ({
  partition,
  offset: message.offset,
  timestamp: message.timestamp,
  key: toText(message.key),
  value: toText(message.value),
  headers: fromHeaders(message.headers),
})

function newConsumer(groupId) {
  return kafka.consumer({
    groupId,
    sessionTimeout: Number(sessionTimeout),
    rebalanceTimeout: Number(sessionTimeout),
    heartbeatInterval: Number(heartbeatInterval),
    maxWaitTimeInMs: Number(maxWaitTimeInMs),
  })
}

async function produce({ topic, messages, codec, idempotent, timeoutMs }) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 })
  await producer.connect()
  try {
    await producer.send({
      topic,
      acks: -1,
      timeout: timeoutMs,
      compression: codecs[codec],
      messages: messages.map(message => ({
        partition: message.partition,
        key: toBuffer(message.key),
        value: toBuffer(message.value),
        headers: toHeaders(message.headers),
        ...(message.timestamp === null ? {} : { timestamp: String(message.timestamp) }),
      })),
    })
  } finally {
    await producer.disconnect()
  }
}

// kafkajs has no reading without a group: a group of one, moved before its first fetch.
async function read({ topic, group, partition, start, count }) {
  const consumer = newConsumer(group)
  const records = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      consumer.on(consumer.events.GROUP_JOIN, () => {
        if (start !== null) consumer.seek({ topic, partition, offset: String(start) })
      })
      const eachMessage = async ({ partition: from, message }) => {
        if (from !== partition || records.length >= count) return
        records.push(toRecord(from, message))
        if (records.length >= count) resolve()
      }
      consumer.run({ autoCommit: false, eachMessage }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return records
}

async function memberOpen({ name, group, topic }) {
  const consumer = newConsumer(group)
  const member = { consumer, topic, owned: [], records: [], failure: null }
  consumer.on(consumer.events.GROUP_JOIN, event => {
    member.owned = event.payload.memberAssignment[topic] || []
  })
  consumer.on(consumer.events.REBALANCING, () => { member.owned = [] })
  consumer.on(consumer.events.CRASH, event => { member.failure = event.payload.error })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  members.set(name, member)
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      member.records.push(toRecord(partition, message))
    },
  })
}

async function memberTake({ name }) {
  const member = members.get(name)
  if (member.failure) throw member.failure
  return { owned: member.owned, records: member.records.splice(0) }
}

async function memberCommit({ name, positions }) {
  const { consumer, topic } = members.get(name)
  await consumer.commitOffsets(
    positions.map(([partition, offset]) => ({ topic, partition, offset: String(offset) }))
  )
}

async function memberClose({ name }) {
  const { consumer } = members.get(name)
  members.delete(name)
  await consumer.disconnect()
}

let connected = null
async function callAdmin({ method, args }) {
  connected = connected || admin.connect()
  await connected
  return (await admin[method](...args)) ?? null
}

const operations = { produce, read, memberOpen, memberTake, memberCommit, memberClose, callAdmin }

// An admin error may hold one error per topic or group; the innermost tells what happened.
function toError(error) {
  const inner = (error.errors && error.errors[0]) || error.cause || error
  const deepest = inner.groups ? inner.groups[0].error : inner
  return { name: deepest.type || error.type || deepest.name, message: String(error.message) }
}

const lines = readline.createInterface({ input: process.stdin })
lines.on('line', async line => {
  const { id, operation, args } = JSON.parse(line)
  const answer = { id }
  try {
    answer.result = (await operations[operation](args)) ?? null
  } catch (error) {
    answer.error = toError(error)
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
})
lines.on('close', () => process.exit(0))
