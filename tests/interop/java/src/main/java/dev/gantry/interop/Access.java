package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The official signature: `--access-key NAME --secret-key KEY [--security-token TOKEN]` of a command. */
final class Access {
    private Access() {
    }

    /** Null without an access key: then requests are not signed. */
    static RPCHook hook(Args args) {
        if (!args.has("access-key")) {
            return null;
        }
        SessionCredentials credentials = new SessionCredentials(args.get("access-key"), args.get("secret-key"));
        if (args.has("security-token")) {
            credentials.setSecurityToken(args.get("security-token"));
        }
        return new AclClientRPCHook(credentials);
    }

    /** The words of a mqadmin command without those that are for `hook`. */
    static String[] others(List<String> words) {
        List<String> rest = new ArrayList<>();
        for (int i = 0; i < words.size(); i++) {
            if (words.get(i).equals("--access-key") || words.get(i).equals("--secret-key")) {
                i++;
            } else {
                rest.add(words.get(i));
            }
        }
        return rest.toArray(new String[0]);
    }
}
