"""Whether a client can use a cluster of this machine, and what `gantry up` says once it can."""

from __future__ import annotations

from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.probe import check_group, not_writable
from gantry_operator.cluster.second_site import follows_archive
from gantry_operator.platforms.local.certificates import authorities_file, proxy_has_tls, scheme, uses_tls
from gantry_operator.platforms.local.platform import LocalPlatform
from gantry_operator.platforms.local.ports import http
from gantry_operator.platforms.local.proxies import why_no_proxy
from gantry_operator.platforms.local.users import authentication


async def why_not_ready(control: ClusterControl, platform: LocalPlatform) -> str:
    """Empty: a message was sent to every group and read back; else the reason."""
    if platform.cluster.spec.hibernate:
        running = [name for name in platform.children.table if platform.children.running(name)]
        return f"{', '.join(running)} still stop" if running else ""
    if control.sites.reads_only:
        return control.sites.why_not_ready()
    servers = platform.name_servers()
    for group in platform.plan.groups:
        if group.name not in control.staying:
            continue  # It takes no messages any more.
        controller = control.controllers.get(group.name)
        if controller is None:
            return f"group {group.name} starts"
        leader = controller.leader_watch
        problem = not_writable(
            controller.blocking_wait,
            None if leader is None else leader.name,
            None if leader is None else leader.status,
        )
        if problem is None:
            address = platform.ports.address(f"group/{group.name}")
            problem = await check_group(
                control.remoting, servers, platform.cluster.broker_name(group.name), address, address
            )
        if problem is not None:
            # What a member says that fills its disk: how far it is, or why that fails.
            problems = [f"{w.name}: {w.problem}" for w in controller.watches.values() if leader is None and w.problem]
            return "; ".join([f"group {group.name}: {problem}", *problems])
    for proxy in platform.plan.proxies:
        url = f"{scheme(platform.cluster)}://{platform.ports.address(http(proxy.name))}"
        why = await why_no_proxy(platform.http, url)
        if why:
            return f"{proxy.name}: {why}"
    return ""


def describe_ready(control: ClusterControl, platform: LocalPlatform, seconds: float) -> str:
    """Return the addresses and commands for the user who started the cluster."""
    if platform.cluster.spec.hibernate:
        return f"\n{platform.cluster.name} hibernates: nothing runs, and the messages are kept\n"
    servers = ";".join(platform.name_servers())
    leaving = control.leaving
    lines = [f"\n{platform.cluster.name} is ready ({seconds:.1f} s)\n", f"  name servers   {servers}"]
    for group in platform.plan.groups:
        controller = control.controllers[group.name]
        leadership = controller.leadership
        names = {m.member: m.name for m in platform.members(group.name)}
        master = "-" if leadership is None or leadership.master is None else names.get(leadership.master.member, "-")
        in_sync = 0 if leadership is None else len(leadership.in_sync)
        address = platform.ports.address(f"group/{group.name}")
        state = f"master {master}, {in_sync} of {len(names)} in sync"
        if control.sites.is_standby:
            follow = sum(follows_archive(watch.status) for watch in controller.watches.values())
            state = f"a standby, {follow} of {len(names)} follow the archive"
        if group.name in leaving:
            state += "; it leaves: gantry status shows how far its drain is"
        lines.append(f"  group {group.name:<8} {address}  {state}")
    for proxy in platform.plan.proxies:
        form = "TLS or clear text" if proxy_has_tls(platform.cluster) else "clear text"
        if proxy_has_tls(platform.cluster) and platform.cluster.spec.proxy is not None:
            mode = platform.cluster.spec.proxy.tls_mode(platform.cluster.spec.security.tls.mode)
            form = "TLS" if mode == "Required" else form
        lines.append(f"  gRPC           {platform.ports.address(proxy.name)}  {form}")
    lines += [f"  note           {text}" for text in platform.ports.unusual(platform.plan)]
    if uses_tls(platform.cluster):
        lines.append(f"  TLS authority  {authorities_file(platform.folder)}")
    if authentication(platform.cluster) != "Disabled":
        lines.append("  users          gantry user create | list; the super user's key: gantry user key admin")
    commands = "gantry produce TOPIC --count 10 | gantry consume TOPIC --group G"
    if control.sites.is_standby:
        commands = "gantry promote --token TOKEN"
    lines.append(f"\n  gantry status | {commands} | gantry down\n")
    return "\n".join(lines)
