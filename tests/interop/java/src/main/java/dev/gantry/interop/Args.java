package dev.gantry.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** `--name value` pairs of one command; a name without a value is a switch. */
final class Args {
    private final Map<String, String> values = new HashMap<>();
    final List<String> rest = new ArrayList<>();

    Args(List<String> words) {
        for (int i = 0; i < words.size(); i++) {
            String word = words.get(i);
            if (!word.startsWith("--")) {
                rest.add(word);
            } else if (i + 1 < words.size() && !words.get(i + 1).startsWith("--")) {
                values.put(word.substring(2), words.get(++i));
            } else {
                values.put(word.substring(2), "true");
            }
        }
    }

    String get(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String get(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    long big(String name, long otherwise) {
        return values.containsKey(name) ? Long.parseLong(values.get(name)) : otherwise;
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    List<String> list(String name) {
        String value = values.get(name);
        return value == null || value.isEmpty() ? List.of() : Arrays.asList(value.split(","));
    }
}
