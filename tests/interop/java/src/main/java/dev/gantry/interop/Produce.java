package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages. With `--shards N` message n goes to queue n % N by a queue selector and each of the
 * `--threads` threads keeps to its own shards, so that within a queue the numbers ascend.
 */
final class Produce {
    private final Args args;
    private final Out out;
    private final String run;
    private final Bodies bodies = new Bodies();
    private final Map<String, AtomicLong> statuses = new ConcurrentHashMap<>();
    private final Map<String, AtomicLong> queues = new ConcurrentHashMap<>();
    private final Map<String, AtomicLong> errors = new ConcurrentHashMap<>();

    Produce(Args args, Out out) {
        this.args = args;
        this.out = out;
        this.run = args.get("run", "run");
    }

    static DefaultMQProducer producer(Args args, String defaultGroup) {
        DefaultMQProducer producer = new DefaultMQProducer(args.get("group", defaultGroup), Access.hook(args));
        configure(producer, args);
        return producer;
    }

    static void configure(DefaultMQProducer producer, Args args) {
        producer.setNamesrvAddr(args.get("namesrv"));
        producer.setInstanceName("p" + System.nanoTime());
        if (args.has("timeout-ms")) {
            producer.setSendMsgTimeout(args.number("timeout-ms", 3000));
        }
        if (args.has("max-size")) {
            producer.setMaxMessageSize(args.number("max-size", 4194304));
        }
        if (args.has("compress-over")) {
            producer.setCompressMsgBodyOverHowmuch(args.number("compress-over", 4096));
        }
        if (args.has("retries")) {
            producer.setRetryTimesWhenSendFailed(args.number("retries", 2));
        }
    }

    Message message(long n) {
        Message message = new Message(args.get("topic"), Bodies.make(run, n, args.number("size", 64)));
        if (args.has("body")) {
            message.setBody(args.get("body").getBytes(StandardCharsets.UTF_8));
        }
        List<String> tags = args.list("tags");
        if (!tags.isEmpty()) {
            message.setTags(tags.get((int) (n % tags.size())));
        }
        if (args.has("keys")) {
            message.setKeys(args.get("keys") + n);
        }
        if (args.has("properties")) {
            message.putUserProperty("n", Long.toString(n));
            message.putUserProperty("a", Long.toString(n % 10));
            message.putUserProperty("word", "w" + n % 3);
        }
        for (String pair : args.list("props")) {
            int at = pair.indexOf('=');
            String name = pair.substring(0, at);
            if (org.apache.rocketmq.common.message.MessageConst.STRING_HASH_SET.contains(name)) {
                org.apache.rocketmq.common.message.MessageAccessor.putProperty(message, name, pair.substring(at + 1));
            } else {
                message.putUserProperty(name, pair.substring(at + 1));
            }
        }
        if (args.has("deliver-in-ms")) {
            org.apache.rocketmq.common.message.MessageAccessor.putProperty(message, "TIMER_DELIVER_MS",
                Long.toString(System.currentTimeMillis() + args.number("deliver-in-ms", 0)));
        }
        if (args.has("delay-level")) {
            message.setDelayTimeLevel(args.number("delay-level", 1));
        }
        if (args.has("no-wait")) {
            message.setWaitStoreMsgOK(false);
        }
        return message;
    }

    private void count(Map<String, AtomicLong> map, String name) {
        map.computeIfAbsent(name, x -> new AtomicLong()).incrementAndGet();
    }

    private void sent(Message message, SendResult result, long n) {
        count(statuses, result.getSendStatus().name());
        count(queues, result.getMessageQueue().getBrokerName() + ":" + result.getMessageQueue().getQueueId());
        bodies.add(message.getBody());
        if (args.has("each")) {
            out.line("sent", "n", n, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
                "offsetMsgId", result.getOffsetMsgId(), "queue", result.getMessageQueue().getQueueId(),
                "broker", result.getMessageQueue().getBrokerName(), "offset", result.getQueueOffset(),
                "wallMs", System.currentTimeMillis());
        }
    }

    private void failed(Throwable e) {
        Integer code = Out.codeOf(e);
        count(errors, e.getClass().getSimpleName() + (code == null ? "" : ":" + code));
        if (args.has("each")) {
            out.error(e);
        }
    }

    void run() throws Exception {
        DefaultMQProducer producer = producer(args, "interop_producer");
        producer.start();
        long first = args.big("first", 0);
        long count = args.big("count", 1);
        int threads = args.number("threads", 1);
        long started = System.nanoTime();
        try {
            List<Thread> running = new ArrayList<>();
            for (int t = 0; t < threads; t++) {
                final int mine = t;
                Thread thread = new Thread(() -> sendAll(producer, first, count, threads, mine), "send-" + t);
                thread.start();
                running.add(thread);
            }
            for (Thread thread : running) {
                thread.join();
            }
        } finally {
            producer.shutdown();
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        out.line("summary", "statuses", plain(statuses), "queues", plain(queues), "errors", plain(errors),
            "digest", bodies.digest(), "seconds", seconds);
    }

    static Map<String, Long> plain(Map<String, AtomicLong> map) {
        Map<String, Long> copy = new TreeMap<>();
        map.forEach((k, v) -> copy.put(k, v.get()));
        return copy;
    }

    private void sendAll(DefaultMQProducer producer, long first, long count, int threads, int mine) {
        String mode = args.get("mode", "sync");
        int shards = args.number("shards", 0);
        int batch = args.number("batch", 32);
        Semaphore window = new Semaphore(args.number("window", 64));
        List<Message> pending = new ArrayList<>();
        CountDownLatch done = new CountDownLatch(1);
        AtomicLong open = new AtomicLong(1);
        for (long i = first; i < first + count; i++) {
            long shard = shards > 0 ? i % shards : i;
            if (shard % threads != mine) {
                continue;
            }
            final long n = i;
            Message message = message(n);
            try {
                switch (mode) {
                    case "oneway" -> {
                        if (shards > 0) {
                            producer.sendOneway(message, (mqs, m, arg) -> mqs.get((int) ((Long) arg % mqs.size())), shard);
                        } else {
                            producer.sendOneway(message);
                        }
                        bodies.add(message.getBody());
                        count(statuses, "ONEWAY");
                    }
                    case "batch" -> {
                        pending.add(message);
                        if (pending.size() == batch || i + threads >= first + count) {
                            SendResult result = producer.send(pending);
                            for (Message m : pending) {
                                sent(m, result, Bodies.numberOf(m.getBody()));
                            }
                            pending.clear();
                        }
                    }
                    case "async" -> {
                        window.acquire();
                        open.incrementAndGet();
                        producer.send(message, new SendCallback() {
                            @Override
                            public void onSuccess(SendResult result) {
                                sent(message, result, n);
                                close();
                            }

                            @Override
                            public void onException(Throwable e) {
                                failed(e);
                                close();
                            }

                            private void close() {
                                window.release();
                                if (open.decrementAndGet() == 0) {
                                    done.countDown();
                                }
                            }
                        });
                    }
                    default -> {
                        SendResult result = shards > 0
                            ? producer.send(message, (mqs, m, arg) -> mqs.get((int) ((Long) arg % mqs.size())), shard)
                            : producer.send(message);
                        sent(message, result, n);
                    }
                }
            } catch (Exception e) {
                failed(e);
                pending.clear();
            }
        }
        if (open.decrementAndGet() > 0) {
            try {
                done.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
