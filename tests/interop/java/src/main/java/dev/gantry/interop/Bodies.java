package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.SplittableRandom;

/** Bodies that name their run and number, and an order-free digest of a set of them. */
final class Bodies {
    private final long[] sum = new long[4];

    static byte[] make(String run, long number, int size) {
        byte[] head = (run + "#" + number + "#").getBytes(StandardCharsets.US_ASCII);
        byte[] body = new byte[Math.max(size, head.length)];
        System.arraycopy(head, 0, body, 0, head.length);
        for (int i = head.length; i < body.length; i++) {
            body[i] = (byte) ('a' + (number + i) % 26);
        }
        return body;
    }

    /** As `make`, with bytes behind the number that do not compress. */
    static byte[] random(String run, long number, int size) {
        byte[] body = make(run, number, size);
        int head = (run + "#" + number + "#").length();
        if (head < body.length) {
            byte[] rest = new byte[body.length - head];
            new SplittableRandom(number).nextBytes(rest);
            System.arraycopy(rest, 0, body, head, rest.length);
        }
        return body;
    }

    static String runOf(byte[] body) {
        String text = new String(body, 0, Math.min(body.length, 200), StandardCharsets.US_ASCII);
        int at = text.indexOf('#');
        return at < 0 ? "" : text.substring(0, at);
    }

    /** The number within the run, or -1 for a body of somebody else. */
    static long numberOf(byte[] body) {
        int at = 0;
        while (at < body.length && body[at] != '#') {
            at++;
        }
        long number = 0;
        for (int i = at + 1; i < body.length && body[i] != '#'; i++) {
            if (body[i] < '0' || body[i] > '9') {
                return -1;
            }
            number = number * 10 + body[i] - '0';
        }
        return at + 1 < body.length ? number : -1;
    }

    synchronized void add(byte[] body) {
        byte[] sha;
        try {
            sha = MessageDigest.getInstance("SHA-256").digest(body);
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
        for (int i = 0; i < 32; i++) {
            sum[i / 8] ^= (sha[i] & 0xFFL) << (i % 8 * 8);
        }
    }

    synchronized String digest() {
        return String.format("%016x%016x%016x%016x", sum[0], sum[1], sum[2], sum[3]);
    }
}
