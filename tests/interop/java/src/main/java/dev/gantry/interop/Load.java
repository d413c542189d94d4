package dev.gantry.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A load for benchmarks/batches.py: `send` gives batches to the broker from several threads, `drain` pulls all queues
 * of a topic once. Both print the number of messages so far, four times a second, and `end` with the last one.
 */
public final class Load {
    private static final AtomicLong DONE = new AtomicLong();

    private Load() {
    }

    public static void main(String[] words) throws Exception {
        Args args = new Args(Arrays.asList(words));
        Thread shows = new Thread(Load::show);
        shows.setDaemon(true);
        shows.start();
        if (args.rest.get(0).equals("send")) {
            send(args);
        } else {
            drain(args);
        }
        System.out.println("end " + DONE.get());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void show() {
        while (true) {
            System.out.println("at " + DONE.get());
            try {
                Thread.sleep(250);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    private static void all(int threads, Work work) throws Exception {
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    work.run(number);
                } catch (Exception e) {
                    e.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            thread.start();
            started.add(thread);
        }
        for (Thread thread : started) {
            thread.join();
        }
    }

    private static void send(Args args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("batches");
        producer.setNamesrvAddr(args.get("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        int each = args.number("batch", 32);
        long total = args.big("count", 1_000_000);
        byte[] body = new byte[args.number("size", 128)];
        Arrays.fill(body, (byte) 'x');
        AtomicLong taken = new AtomicLong();
        all(args.number("threads", 4), number -> {
            while (taken.addAndGet(each) <= total) {
                List<Message> batch = new ArrayList<>(each);
                for (int i = 0; i < each; i++) {
                    batch.add(new Message(args.get("topic"), "TagA", body));
                }
                producer.send(batch);
                DONE.addAndGet(each);
            }
        });
    }

    private static void drain(Args args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("drains");
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(args.get("topic")));
        int each = args.number("batch", 32);
        int threads = args.number("threads", 4);
        all(threads, number -> {
            for (int i = number; i < queues.size(); i += threads) {
                MessageQueue queue = queues.get(i);
                long offset = 0;
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult found = consumer.pull(queue, "*", offset, each);
                    if (found.getPullStatus() == PullStatus.FOUND) {
                        DONE.addAndGet(found.getMsgFoundList().size());
                    }
                    offset = found.getNextBeginOffset();
                }
            }
        });
    }

    /** What a thread does. */
    private interface Work {
        void run(int number) throws Exception;
    }
}
