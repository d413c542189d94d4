package dev.gantry.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** `mqadmin`: the official command line, its output captured. One at a time: it prints to the process's own streams. */
final class Admin {
    private Admin() {
    }

    static synchronized void run(String[] words, RPCHook hook, Out out) {
        PrintStream stdout = System.out;
        PrintStream stderr = System.err;
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(text, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        try {
            MQAdminStartup.main0(words, hook);
        } finally {
            System.setOut(stdout);
            System.setErr(stderr);
        }
        out.line("summary", "output", text.toString(StandardCharsets.UTF_8));
    }
}
