"""Drives the official Python client: commands as JSON lines on standard input, events as JSON lines on standard output.

It runs in an environment of its own, which has `rocketmq-python-client` and nothing of this project.
"""

import json
import os
import sys
import threading
import time
import traceback

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

OUT = os.fdopen(os.dup(1), "w", buffering=1)
WRITING = threading.Lock()
STOPS = {}


def say(command, event, **values):
    with WRITING:
        OUT.write(json.dumps({"id": command, "event": event, **values}) + "\n")


def number(body):
    return int(body[:12].split(b" ")[0])


def configuration(c):
    credentials = Credentials(c["accessKey"], c["secretKey"]) if c.get("accessKey") else Credentials()
    return ClientConfiguration(c["endpoints"], credentials, request_timeout=c.get("requestMs", 5000) // 1000)


def failed(c, error, **values):
    code = getattr(error, "code", None)
    say(
        c["id"],
        "error",
        code=code if isinstance(code, int) else None,
        text=f"{type(error).__name__}: {error}"[:500],
        **values,
    )


def shown(message, **values):
    return {
        "n": number(message.body),
        "size": len(message.body),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": message.properties,
        "attempt": message.delivery_attempt,
        "group": message.message_group,
        "messageId": message.message_id,
        "at": time.time() * 1000,
        "corrupted": message.corrupted,
        **values,
    }


class Checker(TransactionChecker):
    def __init__(self, c):
        self.c = c

    def check(self, message):
        n = number(message.body)
        say(self.c["id"], "check", n=n)
        if self.c["plan"][n % len(self.c["plan"])].endswith("commit"):
            return TransactionResolution.COMMIT
        return TransactionResolution.ROLLBACK


def build(c, n):
    message = Message()
    message.topic = c["topic"]
    message.body = f"{n} ".encode().ljust(c.get("size", 0), b"x")
    if c.get("tags"):
        message.tag = c["tags"][n % len(c["tags"])]
    message.keys = f"k{n}"
    message.add_property("n", str(n))
    if c["kind"] == "fifo":
        message.message_group = f"g{n % c.get('groups', 1)}"
    if c["kind"] == "delay":
        message.delivery_timestamp = int(time.time()) + c["delayMs"] // 1000  # this client takes seconds
    return message


def started(make):
    """Returns a consumer that has started. While another client of this process ends, 5.1.2 can find no event loop for
    its first stream. It waits 10 s for its settings then, and gives up; a second consumer starts.
    """
    client = make()
    try:
        client.startup()
    except Exception as error:
        if "initial settings" not in f"{error} {error.__context__}":
            raise
        client = make()
        client.startup()
    return client


def produce(c):
    checker = Checker(c) if c["kind"] == "transaction" else None
    producer = Producer(configuration(c), (c["topic"],), checker=checker, tls_enable=c["tls"])
    producer.startup()
    say(c["id"], "started")
    for n in range(c.get("first", 0), c.get("first", 0) + c["count"]):
        if STOPS[c["id"]].is_set():
            break
        try:
            began = time.time()
            if checker:
                transaction = producer.begin_transaction()
                receipt = producer.send(build(c, n), transaction)
                step = c["plan"][n % len(c["plan"])]
                if step == "commit":
                    transaction.commit()
                elif step == "rollback":
                    transaction.rollback()
            else:
                receipt = producer.send(build(c, n))
            say(
                c["id"],
                "sent",
                n=n,
                messageId=receipt.message_id,
                ms=(time.time() - began) * 1000,
                recallHandle=receipt.recall_handle,
                at=time.time() * 1000,
            )
        except Exception as error:
            failed(c, error, n=n)
        time.sleep(c.get("pauseMs", 0) / 1000)
    STOPS[c["id"]].wait(c.get("settleMs", 0) / 1000)
    return producer


def expression(c):
    return FilterExpression(c.get("expression", "*"), FilterType.SQL if c.get("sql") else FilterType.TAG)


def push(c):
    good, tries = set(), {}
    enough = threading.Event()

    class Listener(MessageListener):
        def consume(self, message):
            n = number(message.body)
            with WRITING:  # its own count: this client tries again by itself in order, with the same attempt
                tries[n] = tries.get(n, 0) + 1
            ok = tries[n] > c.get("fail", 0)
            say(c["id"], "message", ok=ok, **shown(message))
            time.sleep(c.get("workMs", 0) / 1000)
            if ok:
                good.add(n)
                if len(good) >= c["count"]:
                    enough.set()
            return ConsumeResult.SUCCESS if ok else ConsumeResult.FAILURE

    filters = {c["topic"]: expression(c)}
    consumer = started(lambda: PushConsumer(configuration(c), c["group"], Listener(), filters, tls_enable=c["tls"]))
    say(c["id"], "started")
    deadline = time.time() + c["timeoutMs"] / 1000
    stop = STOPS[c["id"]]
    while time.time() < deadline and not enough.is_set() and not stop.wait(0.05):
        pass
    stop.wait(c.get("settleMs", 0) / 1000)
    return consumer


def simple(c):
    consumer = started(
        lambda: SimpleConsumer(
            configuration(c),
            c["group"],
            {c["topic"]: expression(c)},
            await_duration=c.get("awaitMs", 5000) // 1000,
            tls_enable=c["tls"],
        )
    )
    say(c["id"], "started")
    good, done = set(), 0
    deadline = time.time() + c["timeoutMs"] / 1000
    while time.time() < deadline and done < c["count"] and not STOPS[c["id"]].is_set():
        try:
            messages = consumer.receive(c.get("batch", 16), c.get("invisibleMs", 15000) // 1000)
        except Exception as error:
            failed(c, error)
            time.sleep(0.2)
            continue
        for message in messages:
            ack = message.delivery_attempt > c.get("fail", 0)
            say(c["id"], "message", ok=ack, **shown(message))
            try:
                if not ack and c.get("changeMs"):
                    consumer.change_invisible_duration(message, c["changeMs"] // 1000)
                elif ack:
                    consumer.ack(message)
                    good.add(number(message.body))
            except Exception as error:
                failed(c, error, n=number(message.body))
        done = len(good)
    STOPS[c["id"]].wait(c.get("settleMs", 0) / 1000)
    return consumer


def recall(c):
    producer = Producer(configuration(c), (c["topic"],), tls_enable=c["tls"])
    producer.startup()
    receipt = producer.recall_message(c["topic"], c["handle"])
    say(c["id"], "recalled", messageId=str(getattr(receipt, "message_id", receipt)))
    return producer


def idle(c):
    clients = []
    for _ in range(c["count"]):
        clients.append(Producer(configuration(c), (c["topic"],), tls_enable=c["tls"]))
        clients[-1].startup()
    say(c["id"], "started", count=len(clients))
    STOPS[c["id"]].wait(c["timeoutMs"] / 1000)
    for client in clients[1:]:
        client.shutdown()
    return clients[0]


COMMANDS = {"produce": produce, "push": push, "simple": simple, "recall": recall, "idle": idle}


def run(c):
    client = None
    try:
        client = COMMANDS[c["do"]](c)
    except Exception as error:
        traceback.print_exc()
        failed(c, error)
    say(c["id"], "done")
    if client is not None:
        client.shutdown()


def main():
    say("", "ready")
    for text in sys.stdin:
        c = json.loads(text)
        if c["do"] == "stop":
            STOPS[c["of"]].set()
            continue
        STOPS[c["id"]] = threading.Event()
        threading.Thread(target=run, args=(c,), daemon=True).start()
    os._exit(0)


main()
