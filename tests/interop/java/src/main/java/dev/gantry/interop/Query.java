package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Queries by key, by either kind of id, and the offsets of every queue. */
final class Query {
    private final Args args;
    private final Out out;

    Query(Args args, Out out) {
        this.args = args;
        this.out = out;
    }

    private static Map<String, Object> brief(MessageExt m) {
        return Out.map("n", Bodies.numberOf(m.getBody()), "msgId", m.getMsgId(), "queue", m.getQueueId(), "offset",
            m.getQueueOffset(), "keys", m.getKeys(), "tags", m.getTags(), "topic", m.getTopic());
    }

    void run() throws Exception {
        DefaultMQProducer client = Produce.producer(args, "interop_query");
        client.start();
        String topic = args.get("topic");
        try {
            if (args.has("key")) {
                try {
                    QueryResult found = client.queryMessage(topic, args.get("key"), args.number("max", 32),
                        args.big("begin", 0), args.big("end", System.currentTimeMillis() + 60_000));
                    List<Object> all = new ArrayList<>();
                    found.getMessageList().forEach(m -> all.add(brief(m)));
                    out.line("found", "messages", all);
                } catch (Exception e) {
                    out.error(e);
                }
            }
            for (String id : args.list("ids")) {
                try {
                    MessageExt message = client.viewMessage(topic, id);
                    out.line("message", "message", message == null ? null : brief(message));
                } catch (Exception e) {
                    out.error(e);
                }
            }
            if (args.has("offsets")) {
                List<MessageQueue> queues = new ArrayList<>(client.fetchPublishMessageQueues(topic));
                java.util.Collections.sort(queues);
                for (MessageQueue q : queues) {
                    Map<String, Object> at = Out.map("queue", q.getQueueId(), "broker", q.getBrokerName(),
                        "min", client.minOffset(q), "max", client.maxOffset(q));
                    at.put("earliest", client.earliestMsgStoreTime(q));
                    for (String time : args.list("times")) {
                        at.put("at" + time, client.searchOffset(q, Long.parseLong(time)));
                    }
                    out.line("queue", "queue", at);
                }
            }
        } finally {
            client.shutdown();
        }
        out.line("summary");
    }
}
