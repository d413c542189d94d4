package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A replying consumer and a requesting producer in one process; reports each round trip. */
final class RequestReply {
    private final Args args;
    private final Out out;

    RequestReply(Args args, Out out) {
        this.args = args;
        this.out = out;
    }

    void run() throws Exception {
        String topic = args.get("topic");
        DefaultMQProducer replier = Produce.producer(args, "interop_replier");
        replier.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.get("consumer-group", "interop_reply"));
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.setInstanceName("r" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullTimeDelayMillsWhenException(500);
        // The client omits one of two heartbeats at the same time. If that was the one with the version of its
        // subscription after a rebalance, any broker refuses its pulls until the next one, 30 s later by default.
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("reply to " + new String(message.getBody(), StandardCharsets.UTF_8))
                        .getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body);
                    out.line("replied", "status", replier.send(reply, 3000).getSendStatus().name());
                } catch (Exception e) {
                    out.error(e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer requester = new DefaultMQProducer("interop_requester");
        requester.setNamesrvAddr(args.get("namesrv"));
        requester.setInstanceName("q" + System.nanoTime());
        requester.start();
        int answered = 0;
        try {
            // Only the requests count, not the time in which the consumer finds its queues.
            Thread.sleep(args.number("wait-ms", 3000));
            for (int i = 0; i < args.number("count", 1); i++) {
                long started = System.nanoTime();
                Message request = new Message(topic, ("question " + i).getBytes(StandardCharsets.UTF_8));
                Message reply = requester.request(request, args.number("ttl-ms", 10000));
                String text = new String(reply.getBody(), StandardCharsets.UTF_8);
                answered += text.equals("reply to question " + i) ? 1 : 0;
                out.line("reply", "body", text, "ms", (System.nanoTime() - started) / 1e6);
            }
        } finally {
            requester.shutdown();
            consumer.shutdown();
            replier.shutdown();
        }
        out.line("summary", "answered", answered);
    }
}
