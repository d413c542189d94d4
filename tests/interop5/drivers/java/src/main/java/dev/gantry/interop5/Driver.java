package dev.gantry.interop5;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives the official Java client of RocketMQ 5: commands as JSON lines on standard input, events as JSON lines on
 * standard output. What only newer clients have is called by its name, so one source serves all versions.
 */
public final class Driver {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final PrintStream OUT = System.out;
    private static final Map<String, CountDownLatch> STOPS = new ConcurrentHashMap<>();

    /** The fields of all commands; each uses those that it knows. */
    private static final class Command {
        String id = "";
        String of;
        String endpoints;
        boolean tls;
        String accessKey;
        String secretKey;
        String topic;
        String group;
        String kind;
        int first;
        int count;
        int size;
        List<String> tags;
        int groups = 1;
        long delayMs;
        long pauseMs;
        long workMs;
        long requestMs = 5000;
        List<String> plan;
        long settleMs;
        long timeoutMs;
        String expression = "*";
        boolean sql;
        int fail;
        long changeMs;
        long awaitMs = 5000;
        long invisibleMs = 15000;
        int batch = 16;
        String handle;

        // `do` is no name in Java.
        @com.google.gson.annotations.SerializedName("do")
        String what;

        CountDownLatch stop() {
            return STOPS.computeIfAbsent(id, unused -> new CountDownLatch(1));
        }

        ClientConfiguration configuration() throws Exception {
            ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
                .setEndpoints(endpoints).setRequestTimeout(Duration.ofMillis(requestMs));
            if (accessKey != null) {
                builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secretKey));
            }
            if (!tls) {
                ClientConfigurationBuilder.class.getMethod("enableSsl", boolean.class).invoke(builder, false);
            }
            return builder.build();
        }

        Map<String, FilterExpression> subscription() {
            FilterExpressionType type = sql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
            return Map.of(topic, new FilterExpression(expression, type));
        }
    }

    private interface Work {
        Closeable run(Command command) throws Exception;
    }

    private static void say(Command c, String event, Map<String, Object> values) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", c.id);
        line.put("event", event);
        line.putAll(values);
        synchronized (OUT) {
            OUT.println(GSON.toJson(line));
            OUT.flush();
        }
    }

    private static void failed(Command c, Throwable error, Map<String, Object> values) {
        Throwable cause = error;
        while (!(cause instanceof ClientException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> shown = new HashMap<>(values);
        String text = cause.toString();
        int at = text.indexOf("response-code=");
        if (at >= 0) {
            shown.put("code", Integer.parseInt(text.substring(at + 14).split("[^0-9]", 2)[0]));
        }
        shown.put("text", text.substring(0, Math.min(500, text.length())));
        say(c, "error", shown);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    private static int number(byte[] body) {
        String start = new String(body, 0, Math.min(12, body.length), StandardCharsets.UTF_8);
        return Integer.parseInt(start.split(" ", 2)[0]);
    }

    private static Map<String, Object> shown(MessageView m, boolean ok) {
        byte[] body = bytes(m.getBody());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("ok", ok);
        line.put("n", number(body));
        line.put("size", body.length);
        line.put("tag", m.getTag().orElse(null));
        line.put("keys", m.getKeys());
        line.put("properties", m.getProperties());
        line.put("attempt", m.getDeliveryAttempt());
        line.put("group", m.getMessageGroup().orElse(null));
        line.put("messageId", m.getMessageId().toString());
        line.put("at", System.currentTimeMillis());
        return line;
    }

    private static void pause(Command c, long ms, BooleanSupplier enough) throws InterruptedException {
        long end = System.currentTimeMillis() + ms;
        while (System.currentTimeMillis() < end && !enough.getAsBoolean()) {
            if (c.stop().await(20, TimeUnit.MILLISECONDS)) {
                return;
            }
        }
    }

    private static Message build(Command c, int n) {
        byte[] start = (n + " ").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[Math.max(c.size, start.length)];
        Arrays.fill(body, (byte) 'x');
        System.arraycopy(start, 0, body, 0, start.length);
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(c.topic).setBody(body).setKeys("k" + n)
            .addProperty("n", Integer.toString(n));
        if (c.tags != null) {
            builder.setTag(c.tags.get(n % c.tags.size()));
        }
        if ("fifo".equals(c.kind)) {
            builder.setMessageGroup("g" + n % c.groups);
        }
        if ("delay".equals(c.kind)) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + c.delayMs);
        }
        return builder.build();
    }

    private static Producer producer(Command c) throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(c.configuration())
            .setTopics(c.topic);
        if ("transaction".equals(c.kind)) {
            builder.setTransactionChecker(view -> {
                int n = number(bytes(view.getBody()));
                say(c, "check", Map.of("n", n));
                boolean commits = c.plan.get(n % c.plan.size()).endsWith("commit");
                return commits ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            });
        }
        return builder.build();
    }

    private static SendReceipt send(Command c, Producer producer, int n) throws ClientException {
        if (!"transaction".equals(c.kind)) {
            return producer.send(build(c, n));
        }
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(build(c, n), transaction);
        switch (c.plan.get(n % c.plan.size())) {
            case "commit":
                transaction.commit();
                break;
            case "rollback":
                transaction.rollback();
                break;
            default: // a check decides
        }
        return receipt;
    }

    private static Object call(Object of, Class<?> type, String method) {
        try {
            return type.getMethod(method).invoke(of);
        } catch (ReflectiveOperationException e) {
            return null;
        }
    }

    private static Closeable produce(Command c) throws Exception {
        Producer producer = producer(c);
        say(c, "started", Map.of());
        for (int n = c.first; n < c.first + c.count; n++) {
            long began = System.currentTimeMillis();
            try {
                SendReceipt receipt = send(c, producer, n);
                Map<String, Object> line = new HashMap<>();
                line.put("n", n);
                line.put("messageId", receipt.getMessageId().toString());
                line.put("ms", System.currentTimeMillis() - began);
                line.put("recallHandle", call(receipt, SendReceipt.class, "getRecallHandle"));
                line.put("at", System.currentTimeMillis());
                say(c, "sent", line);
            } catch (Exception e) {
                failed(c, e, Map.of("n", n));
            }
            Thread.sleep(c.pauseMs);
        }
        pause(c, c.settleMs, () -> false);
        return producer;
    }

    private static Closeable push(Command c) throws Exception {
        Set<Integer> good = ConcurrentHashMap.newKeySet();
        Map<Integer, Integer> tries = new ConcurrentHashMap<>();
        Closeable consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(c.configuration())
            .setConsumerGroup(c.group).setSubscriptionExpressions(c.subscription())
            .setMessageListener(view -> {
                int n = number(bytes(view.getBody()));
                boolean ok = tries.merge(n, 1, Integer::sum) > c.fail;
                say(c, "message", shown(view, ok));
                try {
                    Thread.sleep(c.workMs);
                } catch (InterruptedException e) {
                    return ConsumeResult.FAILURE;
                }
                if (ok) {
                    good.add(n);
                }
                return ok ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            }).build();
        say(c, "started", Map.of());
        pause(c, c.timeoutMs, () -> good.size() >= c.count);
        pause(c, c.settleMs, () -> false);
        return consumer;
    }

    private static Closeable simple(Command c) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(c.configuration())
            .setConsumerGroup(c.group).setAwaitDuration(Duration.ofMillis(c.awaitMs))
            .setSubscriptionExpressions(c.subscription()).build();
        say(c, "started", Map.of());
        Set<Integer> good = ConcurrentHashMap.newKeySet();
        long end = System.currentTimeMillis() + c.timeoutMs;
        while (System.currentTimeMillis() < end && good.size() < c.count && c.stop().getCount() > 0) {
            List<MessageView> messages;
            try {
                messages = consumer.receive(c.batch, Duration.ofMillis(c.invisibleMs));
            } catch (Exception e) {
                failed(c, e, Map.of());
                Thread.sleep(200);
                continue;
            }
            for (MessageView m : messages) {
                boolean ok = m.getDeliveryAttempt() > c.fail;
                int n = number(bytes(m.getBody()));
                say(c, "message", shown(m, ok));
                try {
                    if (!ok && c.changeMs > 0) {
                        consumer.changeInvisibleDuration(m, Duration.ofMillis(c.changeMs));
                    } else if (ok) {
                        consumer.ack(m);
                        good.add(n);
                    }
                } catch (Exception e) {
                    failed(c, e, Map.of("n", n));
                }
            }
        }
        pause(c, c.settleMs, () -> false);
        return consumer;
    }

    private static Closeable recall(Command c) throws Exception {
        Producer producer = producer(c);
        Object receipt = Producer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, c.topic, c.handle);
        say(c, "recalled", Map.of("messageId", receipt.toString()));
        return producer;
    }

    private static void run(Command c) {
        Map<String, Work> works = Map.of("produce", Driver::produce, "push", Driver::push, "simple", Driver::simple,
            "recall", Driver::recall);
        Closeable client = null;
        try {
            client = works.get(c.what).run(c);
        } catch (Throwable e) {
            e.printStackTrace();
            failed(c, e, Map.of());
        }
        say(c, "done", Map.of());
        try {
            if (client != null) {
                client.close();
            }
        } catch (Exception e) {
            e.printStackTrace();
        }
    }

    public static void main(String[] words) throws Exception {
        say(new Command(), "ready", Map.of());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Command c = GSON.fromJson(line, Command.class);
            if ("stop".equals(c.what)) {
                STOPS.computeIfAbsent(c.of, unused -> new CountDownLatch(1)).countDown();
                continue;
            }
            Thread thread = new Thread(() -> run(c), "command-" + c.id);
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }
}
