package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer in its default configuration that sends without pause until it is told to stop, and reports each answer:
 * `{"event":"ok","n":..,"ms":wall clock of the answer,"msgId":..,"tries":n}`, other statuses and errors likewise.
 */
final class Failover {
    private static final AtomicBoolean STOP = new AtomicBoolean();
    private final Args args;
    private final Out out;

    Failover(Args args, Out out) {
        this.args = args;
        this.out = out;
    }

    static void stop() {
        STOP.set(true);
    }

    void run() throws Exception {
        STOP.set(false);
        DefaultMQProducer producer = new DefaultMQProducer(args.get("group", "failover_producer"), Access.hook(args));
        producer.setNamesrvAddr(args.get("namesrv"));
        producer.setInstanceName("f" + System.nanoTime());
        if (args.has("compress-over")) {
            producer.setCompressMsgBodyOverHowmuch(args.number("compress-over", 4096));
        }
        if (args.has("poll-ms")) {
            producer.setPollNameServerInterval(args.number("poll-ms", 30000));
        }
        ThreadLocal<AtomicInteger> tries = ThreadLocal.withInitial(AtomicInteger::new);
        producer.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
            @Override
            public String hookName() {
                return "count";
            }

            @Override
            public void sendMessageBefore(SendMessageContext context) {
                tries.get().incrementAndGet();
            }

            @Override
            public void sendMessageAfter(SendMessageContext context) {
                // Only the attempts count.
            }
        });
        producer.start();
        AtomicLong numbers = new AtomicLong(args.big("first", 0));
        long deadline = System.nanoTime() + args.big("seconds", 3600) * 1_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < args.number("threads", 1); t++) {
            Thread thread = new Thread(() -> loop(producer, numbers, deadline, tries), "failover-" + t);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        out.line("summary", "sent", numbers.get());
    }

    /** Waits for `--pause-ms` between two sends. */
    private void pause() {
        try {
            Thread.sleep(args.big("pause-ms", 0));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void loop(DefaultMQProducer producer, AtomicLong numbers, long deadline, ThreadLocal<AtomicInteger> tries) {
        String run = args.get("run", "run");
        int size = args.number("size", 128);
        while (!STOP.get() && System.nanoTime() < deadline) {
            long n = numbers.getAndIncrement();
            byte[] body = args.has("random") ? Bodies.random(run, n, size) : Bodies.make(run, n, size);
            Message message = new Message(args.get("topic"), body);
            message.setKeys(run + "-" + n);
            tries.get().set(0);
            long began = System.nanoTime();
            try {
                SendResult result = producer.send(message);
                out.line(result.getSendStatus() == SendStatus.SEND_OK ? "ok" : "status", "n", n, "ms",
                    System.currentTimeMillis(), "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
                    "tries", tries.get().get(), "us", (System.nanoTime() - began) / 1000);
            } catch (Exception e) {
                out.line("failed", "n", n, "ms", System.currentTimeMillis(), "tries", tries.get().get(),
                    "type", e.getClass().getSimpleName(), "message", String.valueOf(e.getMessage()));
            }
            pause();
        }
    }
}
