package dev.gantry.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Drives the official client for the tests. Either one command on the command line, or `session`: lines on standard
 * input, `id TAB command TAB word TAB word...`, each run in a thread of its own. Every answer is a JSON line with that id;
 * the last one of a command is `{"event":"done"}`.
 */
public final class Driver {
    private Driver() {
    }

    public static void main(String[] words) throws Exception {
        System.setProperty("rocketmq.client.logLevel", System.getProperty("rocketmq.client.logLevel", "WARN"));
        if (words.length == 0) {
            throw new IllegalArgumentException("a command is missing: session, produce, consume, failover, ...");
        }
        if (!words[0].equals("session")) {
            perform("0", words[0], Arrays.asList(words).subList(1, words.length));
            System.exit(0);
        }
        new Out("").line("ready", "serialize", RemotingCommand.getSerializeTypeConfigInThisServer().name(),
            "java", System.getProperty("java.version"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> parts = Arrays.asList(line.split("\t", -1));
            Thread thread = new Thread(() -> perform(parts.get(0), parts.get(1), parts.subList(2, parts.size())));
            thread.setDaemon(true);
            thread.start();
        }
        System.exit(0);
    }

    private static void perform(String id, String command, List<String> words) {
        Out out = new Out(id);
        Args args = new Args(words);
        try {
            switch (command) {
                case "produce" -> new Produce(args, out).run();
                case "consume" -> new Consume(args, out).run();
                case "failover" -> new Failover(args, out).run();
                case "stop" -> {
                    Failover.stop();
                    Transactions.stop();
                }
                case "transactions" -> new Transactions(args, out).run();
                case "request-reply" -> new RequestReply(args, out).run();
                case "query" -> new Query(args, out).run();
                case "mqadmin" -> Admin.run(Access.others(words), Access.hook(args), out);
                default -> throw new IllegalArgumentException("unknown command: " + command);
            }
        } catch (Throwable e) {
            out.error(e);
        }
        out.line("done");
    }
}
