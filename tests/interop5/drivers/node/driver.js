// Drives the official Node client: commands as JSON lines on standard input, events as JSON lines on standard output.
'use strict';
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require(
  'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const stopped = new Set();
const write = process.stdout.write.bind(process.stdout);
const logger = { info() {}, debug() {}, warn: console.error, error: console.error };

function say(c, event, values = {}) {
  write(JSON.stringify({ id: c.id, event, ...values }) + '\n');
}

function failed(c, error, values = {}) {
  say(c, 'error', { code: error.code ?? null, text: `${error.name}: ${error.message}`.slice(0, 500), ...values });
}

function options(c) {
  return {
    endpoints: c.endpoints, namespace: '', sslEnabled: c.tls, logger, requestTimeout: c.requestMs ?? 5000,
    sessionCredentials: c.accessKey ? { accessKey: c.accessKey, accessSecret: c.secretKey } : undefined,
  };
}

const numberOf = body => parseInt(body.subarray(0, 12).toString().split(' ')[0], 10);

function shown(m) {
  return {
    n: numberOf(m.body), size: m.body.length, tag: m.tag ?? null, keys: m.keys,
    properties: Object.fromEntries(m.properties), attempt: m.deliveryAttempt, group: m.messageGroup ?? null,
    messageId: m.messageId, at: Date.now(), corrupted: m.corrupted,
  };
}

async function wait(c, ms, enough = () => false) {
  const end = Date.now() + ms;
  while (Date.now() < end && !stopped.has(c.id) && !enough()) await sleep(20);
}

function build(c, n) {
  const body = Buffer.alloc(Math.max(c.size ?? 0, `${n} `.length), 'x');
  body.write(`${n} `);
  const message = { topic: c.topic, body, keys: [ `k${n}` ], properties: new Map([[ 'n', String(n) ]]) };
  if (c.tags) message.tag = c.tags[n % c.tags.length];
  if (c.kind === 'fifo') message.messageGroup = `g${n % (c.groups ?? 1)}`;
  if (c.kind === 'delay') message.deliveryTimestamp = new Date(Date.now() + c.delayMs);
  return message;
}

async function produce(c) {
  const given = { ...options(c), topic: c.topic };
  if (c.kind === 'transaction') {
    given.checker = {
      async check(view) {
        const n = numberOf(view.body);
        say(c, 'check', { n });
        const commits = c.plan[n % c.plan.length].endsWith('commit');
        return commits ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
      },
    };
  }
  const producer = new Producer(given);
  await producer.startup();
  say(c, 'started');
  const first = c.first ?? 0;
  for (let n = first; n < first + c.count && !stopped.has(c.id); n++) {
    try {
      const began = Date.now();
      let receipt;
      if (c.kind === 'transaction') {
        const transaction = producer.beginTransaction();
        receipt = await producer.send(build(c, n), transaction);
        const step = c.plan[n % c.plan.length];
        if (step === 'commit') await transaction.commit();
        if (step === 'rollback') await transaction.rollback();
      } else {
        receipt = await producer.send(build(c, n));
      }
      say(c, 'sent', {
        n, messageId: receipt.messageId, ms: Date.now() - began, recallHandle: receipt.recallHandle, at: Date.now(),
      });
    } catch (error) {
      failed(c, error, { n });
    }
    if (c.pauseMs) await sleep(c.pauseMs);
  }
  await wait(c, c.settleMs ?? 0);
  return producer;
}

function subscriptions(c) {
  const type = c.sql ? FilterType.SQL : FilterType.TAG;
  return new Map([[ c.topic, new FilterExpression(c.expression ?? '*', type) ]]);
}

async function push(c) {
  const good = new Set();
  const tries = new Map();
  const consumer = new PushConsumer({
    ...options(c), consumerGroup: c.group, subscriptions: subscriptions(c),
    messageListener: {
      async consume(message) {
        const n = numberOf(message.body);
        tries.set(n, (tries.get(n) ?? 0) + 1);
        const ok = tries.get(n) > (c.fail ?? 0);
        say(c, 'message', { ok, ...shown(message) });
        if (c.workMs) await sleep(c.workMs);
        if (ok) good.add(n);
        return ok ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
      },
    },
  });
  await consumer.startup();
  say(c, 'started');
  await wait(c, c.timeoutMs, () => good.size >= c.count);
  await wait(c, c.settleMs ?? 0);
  return consumer;
}

async function simple(c) {
  const consumer = new SimpleConsumer({
    ...options(c), consumerGroup: c.group, subscriptions: subscriptions(c), awaitDuration: c.awaitMs ?? 5000,
  });
  await consumer.startup();
  say(c, 'started');
  const good = new Set();
  const end = Date.now() + c.timeoutMs;
  while (Date.now() < end && good.size < c.count && !stopped.has(c.id)) {
    let messages;
    try {
      messages = await consumer.receive(c.batch ?? 16, c.invisibleMs ?? 15000);
    } catch (error) {
      failed(c, error);
      await sleep(200);
      continue;
    }
    for (const message of messages) {
      const ok = message.deliveryAttempt > (c.fail ?? 0);
      say(c, 'message', { ok, ...shown(message) });
      try {
        if (!ok && c.changeMs) {
          await consumer.changeInvisibleDuration(message, c.changeMs);
        } else if (ok) {
          await consumer.ack(message);
          good.add(numberOf(message.body));
        }
      } catch (error) {
        failed(c, error, { n: numberOf(message.body) });
      }
    }
  }
  await wait(c, c.settleMs ?? 0);
  return consumer;
}

async function recall(c) {
  const producer = new Producer({ ...options(c), topic: c.topic });
  await producer.startup();
  const receipt = await producer.recallMessage(c.topic, c.handle);
  say(c, 'recalled', { messageId: String(receipt.messageId) });
  return producer;
}

async function run(c) {
  let client;
  try {
    client = await { produce, push, simple, recall }[c.do](c);
  } catch (error) {
    console.error(error);
    failed(c, error);
  }
  say(c, 'done');
  await client?.shutdown().catch(console.error);
}

process.on('unhandledRejection', error => console.error('unhandled', error));
say({ id: '' }, 'ready');
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', text => {
  const c = JSON.parse(text);
  if (c.do === 'stop') stopped.add(c.of);
  else run(c);
});
lines.on('close', () => process.exit(0));
