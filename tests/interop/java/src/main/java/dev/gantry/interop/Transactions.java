package dev.gantry.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional messages. `--plan commit,rollback,unknown-commit,unknown-rollback,unknown` says what happens to message n:
 * at once, or at the first check-back, or never. The producer stays for `--stay-s`, or until `stop`, so that the broker can ask.
 */
final class Transactions {
    private static volatile CountDownLatch stopped = new CountDownLatch(1);
    private final Args args;
    private final Out out;

    /** Ends the stay of all producers that run now. */
    static void stop() {
        CountDownLatch running = stopped;
        stopped = new CountDownLatch(1);
        running.countDown();
    }

    Transactions(Args args, Out out) {
        this.args = args;
        this.out = out;
    }

    void run() throws Exception {
        CountDownLatch mine = stopped;
        String[] plan = args.get("plan", "commit").split(",");
        Map<Long, AtomicInteger> checks = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(args.get("group", "interop_transactions"));
        Produce.configure(producer, args);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return switch (plan[(int) (Bodies.numberOf(message.getBody()) % plan.length)]) {
                    case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                long n = Bodies.numberOf(message.getBody());
                checks.computeIfAbsent(n, x -> new AtomicInteger()).incrementAndGet();
                out.line("check", "n", n, "topic", message.getTopic(), "keys", message.getKeys(),
                    "transactionId", message.getTransactionId(), "wallMs", System.currentTimeMillis());
                return switch (plan[(int) (n % plan.length)]) {
                    case "unknown-commit" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "unknown-rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }
        });
        producer.start();
        try {
            Produce messages = new Produce(args, out);
            for (long n = 0; n < args.big("count", 1); n++) {
                TransactionSendResult result = producer.sendMessageInTransaction(messages.message(n), null);
                out.line("sent", "n", n, "status", result.getSendStatus().name(), "state",
                    result.getLocalTransactionState().name(), "msgId", result.getMsgId(),
                    "transactionId", result.getTransactionId());
            }
            mine.await(args.number("stay-s", 0), TimeUnit.SECONDS);
        } finally {
            producer.shutdown();
        }
        Map<String, Integer> asked = new java.util.TreeMap<>();
        checks.forEach((n, times) -> asked.put(Long.toString(n), times.get()));
        out.line("summary", "checks", asked);
    }
}
