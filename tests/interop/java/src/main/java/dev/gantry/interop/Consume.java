package dev.gantry.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Receives until `--count` different messages are there (and `--settle-ms` more), or `--timeout-s` is over. */
final class Consume {
    private final Args args;
    private final Out out;
    private final String run;
    private final Bodies bodies = new Bodies();
    private final Set<Long> numbers = new HashSet<>();
    private final Map<String, Long> lastNumber = new HashMap<>();
    private final Map<String, Long> lastOffset = new HashMap<>();
    private final Map<String, Long> queues = new TreeMap<>();
    private final Map<Long, Integer> tries = new HashMap<>();
    private long received;
    private long repeated;
    private long disorder;
    private long strangers;
    private long wrong;
    private long lastNewNs = System.nanoTime();

    Consume(Args args, Out out) {
        this.args = args;
        this.out = out;
        this.run = args.get("run", "run");
    }

    /** Returns how often this number was seen before. */
    private synchronized int take(MessageExt message) {
        received++;
        String queue = message.getBrokerName() + ":" + message.getQueueId();
        long n = Bodies.numberOf(message.getBody());
        if (!Bodies.runOf(message.getBody()).equals(run)) {
            strangers++;
        }
        int before = tries.merge(n, 1, Integer::sum) - 1;
        if (args.has("each")) {
            out.line("message", "n", n, "queue", message.getQueueId(), "broker", message.getBrokerName(),
                "offset", message.getQueueOffset(),
                "msgId", message.getMsgId(), "keys", message.getKeys(), "tags", message.getTags(),
                "topic", message.getTopic(), "reconsume", message.getReconsumeTimes(),
                "bornMs", message.getBornTimestamp(), "storeMs", message.getStoreTimestamp(),
                "wallMs", System.currentTimeMillis(), "size", message.getBody().length,
                "sysFlag", message.getSysFlag(), "properties", message.getProperties());
        }
        if (!numbers.add(n)) {
            repeated++;
            return before;
        }
        lastNewNs = System.nanoTime();
        bodies.add(message.getBody());
        queues.merge(queue, 1L, Long::sum);
        Long number = lastNumber.put(queue, n);
        Long offset = lastOffset.put(queue, message.getQueueOffset());
        if (number != null && number >= n || offset != null && offset >= message.getQueueOffset()) {
            disorder++;
        }
        if (args.has("keys") && !(args.get("keys") + n).equals(message.getKeys())) {
            wrong++;
        }
        List<String> tags = args.list("check-tags");
        if (!tags.isEmpty() && !tags.get((int) (n % tags.size())).equals(message.getTags())) {
            wrong++;
        }
        if (args.has("properties") && !Long.toString(n).equals(message.getUserProperty("n"))) {
            wrong++;
        }
        return before;
    }

    private synchronized boolean finished(long deadlineNs) {
        long now = System.nanoTime();
        boolean all = numbers.size() >= args.big("count", 1)
            && received >= args.big("min-received", 0)
            && now - lastNewNs > args.big("settle-ms", 1000) * 1_000_000L;
        return all || now > deadlineNs;
    }

    void run() throws Exception {
        long started = System.nanoTime();
        long deadline = started + args.number("timeout-s", 60) * 1_000_000_000L;
        switch (args.get("mode", "push")) {
            case "pull" -> pull(deadline);
            case "litepull" -> litePull(deadline);
            default -> push(deadline);
        }
        synchronized (this) {
            out.line("summary", "received", received, "unique", numbers.size(), "repeated", repeated,
                "disorder", disorder, "strangers", strangers, "wrong", wrong, "queues", queues,
                "digest", bodies.digest(), "seconds", (lastNewNs - started) / 1e9);
        }
    }

    private void push(long deadline) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args.get("group"), Access.hook(args), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(switch (args.get("start", "first")) {
            case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            case "timestamp" -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
            default -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
        });
        if (args.has("from-time")) {
            consumer.setConsumeTimestamp(args.get("from-time"));
        }
        // A client of 5.x may skip the heartbeat with which it should tell of its own new version of a subscription.
        // Brokers refuse its pulls then (SUBSCRIPTION_NOT_LATEST) until the next one, which is 30 s later by default.
        consumer.setHeartbeatBrokerInterval(1000);
        // The enum lives in another package in 5.x.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), args.get("model", "CLUSTERING")));
        if (args.has("poll-ms")) {
            consumer.setPollNameServerInterval(args.number("poll-ms", 30000));
        }
        if (args.has("max-reconsume")) {
            consumer.setMaxReconsumeTimes(args.number("max-reconsume", 16));
        }
        if (args.has("suspend-ms")) {
            consumer.setSuspendCurrentQueueTimeMillis(args.number("suspend-ms", 1000));
        }
        if (args.has("pop")) {
            byBroker(consumer);
        }
        if (args.has("strategy")) {
            consumer.setAllocateMessageQueueStrategy(strategy(args.get("strategy")));
        }
        if (args.has("threads")) {
            consumer.setConsumeThreadMin(args.number("threads", 20));
            consumer.setConsumeThreadMax(args.number("threads", 20));
        }
        if (args.has("pull-batch")) {
            consumer.setPullBatchSize(args.number("pull-batch", 32));
        }
        if (args.has("sql")) {
            consumer.subscribe(args.get("topic"), MessageSelector.bySql(args.get("sql")));
        } else {
            consumer.subscribe(args.get("topic"), args.get("expr", "*"));
        }
        int failures = args.number("fail", 0);
        if (args.get("mode", "push").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean again = false;
                for (MessageExt message : messages) {
                    again |= take(message) < failures;
                }
                return again ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean again = false;
                for (MessageExt message : messages) {
                    again |= take(message) < failures;
                }
                if (args.has("delay-retry")) {
                    context.setDelayLevelWhenNextConsume(args.number("delay-retry", 0));
                }
                return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        out.line("started", "mode", args.get("mode", "push"));
        try {
            await(deadline);
        } finally {
            consumer.shutdown();
        }
    }

    /** The broker assigns queues, and says whether to pull or to pop; clients of 4.x cannot. Retries come after 1 s. */
    private void byBroker(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        DefaultMQPushConsumer.class.getMethod("setPopInvisibleTime", long.class)
            .invoke(consumer, args.big("invisible-ms", 60_000));
        Object inner = consumer.getDefaultMQPushConsumerImpl();
        var delays = inner.getClass().getDeclaredField("popDelayLevel");
        delays.setAccessible(true);
        Arrays.fill((int[]) delays.get(inner), 1);
    }

    private static org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy strategy(String name)
        throws ReflectiveOperationException {
        String type = "org.apache.rocketmq.client.consumer.rebalance." + name;
        return (org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy)
            Class.forName(type).getDeclaredConstructor().newInstance();
    }

    private void await(long deadline) throws InterruptedException {
        while (!finished(deadline)) {
            Thread.sleep(20);
        }
    }

    /** The plain pull API of 4.x: one pass over every queue up to its end, by offset. `--once`: one pull, nothing else. */
    private void pull(long deadline) throws Exception {
        @SuppressWarnings("deprecation")
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.get("group"), Access.hook(args));
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.start();
        try {
            Collection<MessageQueue> all = consumer.fetchSubscribeMessageQueues(args.get("topic"));
            for (MessageQueue queue : all) {
                boolean once = args.has("once");
                long offset = once ? 0 : Math.max(args.big("offset", 0), consumer.minOffset(queue));
                long end = once ? 1 : consumer.maxOffset(queue);
                while (offset < end && System.nanoTime() < deadline) {
                    PullResult result = consumer.pull(queue, args.get("expr", "*"), offset, 32);
                    if (result.getMsgFoundList() != null && !once) {
                        result.getMsgFoundList().forEach(this::take);
                    }
                    if (args.has("each")) {
                        out.line("pulled", "queue", queue.getQueueId(), "status", result.getPullStatus().name(),
                            "next", result.getNextBeginOffset(), "min", result.getMinOffset(), "max", result.getMaxOffset());
                    }
                    if (once || result.getNextBeginOffset() <= offset && result.getMsgFoundList() == null) {
                        break;
                    }
                    offset = result.getNextBeginOffset();
                }
                if (args.has("commit")) {
                    consumer.updateConsumeOffset(queue, offset);
                    consumer.getDefaultMQPullConsumerImpl().updateConsumeOffset(queue, offset);
                    consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    private void litePull(long deadline) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.get("group"));
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        boolean assign = args.has("assign");
        if (!assign && args.has("sql")) {
            consumer.subscribe(args.get("topic"), MessageSelector.bySql(args.get("sql")));
        } else if (!assign) {
            consumer.subscribe(args.get("topic"), args.get("expr", "*"));
        }
        consumer.start();
        out.line("started", "mode", "litepull");
        try {
            if (assign) {
                List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(args.get("topic")));
                consumer.assign(queues);
                // Each queue is pulled from its start already, and seek() beside a pull under way may lose to it.
                consumer.pause(queues);
                while (!consumer.poll(1500).isEmpty()) {
                }
                for (MessageQueue queue : queues) {
                    consumer.seek(queue, args.big("offset", 0));
                }
                consumer.resume(queues);
            }
            while (!finished(deadline)) {
                consumer.poll(200).forEach(this::take);
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }
}
