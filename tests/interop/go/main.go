// Drives the official Go client for the tests: one command, its answers as JSON lines on standard output.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// Options of all commands; each uses those that it knows.
type options struct {
	namesrv, topic, group, mode, expression, sql, start, plan, broker string
	accessKey, secretKey, securityToken                               string
	count, fail, delayLevel, size, queues                             int
	orderly, broadcast, stay                                          bool
	timeout, settle                                                   time.Duration
}

var printing sync.Mutex

// say prints one event; several goroutines may.
func say(event string, values map[string]any) {
	values["event"] = event
	line, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func (o options) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{o.namesrv})
}

// credentials are empty without --access-key: then requests are not signed.
func (o options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.accessKey, SecretKey: o.secretKey, SecurityToken: o.securityToken}
}

func main() {
	rlog.SetLogLevel("error")
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "a command is missing: produce, consume, pull, transactions, request, reply")
		os.Exit(2)
	}
	var o options
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.namesrv, "namesrv", "127.0.0.1:9876", "NameServer, host:port")
	flags.StringVar(&o.topic, "topic", "", "topic")
	flags.StringVar(&o.group, "group", "go_group", "producer's or consumer's group")
	flags.StringVar(&o.mode, "mode", "sync", "sync, async, oneway, batch or sharded")
	flags.StringVar(&o.expression, "expression", "*", "tags that are wanted")
	flags.StringVar(&o.sql, "sql", "", "SQL92 filter instead of tags")
	flags.StringVar(&o.broker, "broker", "", "name of the broker whose queues are pulled")
	flags.StringVar(&o.start, "start", "first", "where a new group begins: first or last")
	flags.StringVar(&o.plan, "plan", "commit", "what becomes of the transactions, in turn")
	flags.StringVar(&o.accessKey, "access-key", "", "name of the user; empty: requests are not signed")
	flags.StringVar(&o.secretKey, "secret-key", "", "key of the user")
	flags.StringVar(&o.securityToken, "security-token", "", "token of the user, part of what is signed")
	flags.IntVar(&o.count, "count", 1, "messages")
	flags.IntVar(&o.fail, "fail", 0, "how often each message fails first")
	flags.IntVar(&o.delayLevel, "delay-level", 0, "delay level of what is sent")
	flags.IntVar(&o.size, "size", 0, "bytes of each body, at least")
	flags.IntVar(&o.queues, "queues", 4, "queues that are pulled")
	flags.BoolVar(&o.orderly, "orderly", false, "consume in order")
	flags.BoolVar(&o.stay, "stay", false, "pull: stay connected until killed")
	flags.BoolVar(&o.broadcast, "broadcast", false, "every member gets everything")
	flags.DurationVar(&o.timeout, "timeout", 60*time.Second, "when to give up")
	flags.DurationVar(&o.settle, "settle", time.Second, "how long to wait for more than was expected")
	if err := flags.Parse(os.Args[2:]); err != nil {
		os.Exit(2)
	}
	commands := map[string]func(options) error{
		"produce": produce, "consume": consume, "pull": pull, "transactions": transactions, "request": request, "reply": answer,
	}
	run, known := commands[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown command:", os.Args[1])
		os.Exit(2)
	}
	if err := run(o); err != nil {
		say("error", map[string]any{"text": err.Error()})
		os.Exit(1)
	}
}
