package dev.gantry.interop;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** One JSON object a line on the real standard output, tagged with the number of the command that it belongs to. */
final class Out {
    private static final PrintStream STDOUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    private final String id;

    Out(String id) {
        this.id = id;
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    void line(String event, Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("id", id);
        map.put("event", event);
        map.putAll(map(pairs));
        String text = RemotingSerializable.toJson(map, false);
        synchronized (STDOUT) {
            STDOUT.println(text);
            STDOUT.flush();
        }
    }

    void error(Throwable e) {
        StringBuilder chain = new StringBuilder();
        for (Throwable t = e; t != null; t = t.getCause()) {
            chain.append(chain.length() == 0 ? "" : " / ").append(t);
        }
        line("error", "type", e.getClass().getSimpleName(), "message", chain.toString(), "code", codeOf(e));
    }

    /** The broker's response code, or null where the error is the client's own. */
    static Integer codeOf(Throwable e) {
        for (Throwable t = e; t != null; t = t.getCause()) {
            if (t instanceof org.apache.rocketmq.client.exception.MQBrokerException b) {
                return b.getResponseCode();
            }
            if (t instanceof org.apache.rocketmq.client.exception.MQClientException c && c.getResponseCode() > 0) {
                return c.getResponseCode();
            }
        }
        return null;
    }
}
