// Drives the official Go client of RocketMQ 5: commands as JSON lines on standard input, events as JSON lines on
// standard output.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	mq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// command has the fields of all commands; each uses those that it knows.
type command struct {
	ID          string   `json:"id"`
	Do          string   `json:"do"`
	Of          string   `json:"of"`
	Endpoints   string   `json:"endpoints"`
	TLS         bool     `json:"tls"`
	AccessKey   string   `json:"accessKey"`
	SecretKey   string   `json:"secretKey"`
	Topic       string   `json:"topic"`
	Group       string   `json:"group"`
	Kind        string   `json:"kind"`
	First       int      `json:"first"`
	Count       int      `json:"count"`
	Size        int      `json:"size"`
	Tags        []string `json:"tags"`
	Groups      int      `json:"groups"`
	DelayMs     int      `json:"delayMs"`
	PauseMs     int      `json:"pauseMs"`
	WorkMs      int      `json:"workMs"`
	Plan        []string `json:"plan"`
	SettleMs    int      `json:"settleMs"`
	TimeoutMs   int      `json:"timeoutMs"`
	Expression  string   `json:"expression"`
	SQL         bool     `json:"sql"`
	Fail        int      `json:"fail"`
	ChangeMs    int      `json:"changeMs"`
	AwaitMs     int      `json:"awaitMs"`
	InvisibleMs int      `json:"invisibleMs"`
	Batch       int      `json:"batch"`
	Handle      string   `json:"handle"`
}

type values map[string]any

var (
	writing sync.Mutex
	stops   sync.Map
)

func say(c *command, event string, v values) {
	if v == nil {
		v = values{}
	}
	v["id"], v["event"] = c.ID, event
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	writing.Lock()
	defer writing.Unlock()
	fmt.Println(string(line))
}

func failed(c *command, err error, v values) {
	if v == nil {
		v = values{}
	}
	var status *mq.ErrRpcStatus
	if errors.As(err, &status) {
		v["code"] = status.Code
	}
	v["text"] = err.Error()
	say(c, "error", v)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func now() int64 { return time.Now().UnixMilli() }

func orElse(n, other int) int {
	if n == 0 {
		return other
	}
	return n
}

func number(body []byte) int {
	word, _, _ := bytes.Cut(body[:min(12, len(body))], []byte(" "))
	n, _ := strconv.Atoi(string(word))
	return n
}

// wait returns when the time is over, when the command is stopped or when it is enough.
func wait(c *command, d time.Duration, enough func() bool) {
	stop, _ := stops.Load(c.ID)
	end := time.After(d)
	for {
		if enough != nil && enough() {
			return
		}
		select {
		case <-stop.(chan struct{}):
			return
		case <-end:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *command) config() *mq.Config {
	return &mq.Config{
		Endpoint:      c.Endpoints,
		ConsumerGroup: c.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: c.AccessKey, AccessSecret: c.SecretKey},
	}
}

func (c *command) subscription() map[string]*mq.FilterExpression {
	kind := mq.TAG
	if c.SQL {
		kind = mq.SQL92
	}
	if c.Expression == "" {
		c.Expression = "*"
	}
	return map[string]*mq.FilterExpression{c.Topic: mq.NewFilterExpressionWithType(c.Expression, kind)}
}

func (c *command) message(n int) *mq.Message {
	body := fmt.Sprintf("%d ", n)
	if len(body) < c.Size {
		body += strings.Repeat("x", c.Size-len(body))
	}
	m := &mq.Message{Topic: c.Topic, Body: []byte(body)}
	m.SetKeys(fmt.Sprintf("k%d", n))
	m.AddProperty("n", strconv.Itoa(n))
	if len(c.Tags) > 0 {
		m.SetTag(c.Tags[n%len(c.Tags)])
	}
	if c.Kind == "fifo" {
		m.SetMessageGroup(fmt.Sprintf("g%d", n%orElse(c.Groups, 1)))
	}
	if c.Kind == "delay" {
		m.SetDelayTimestamp(time.Now().Add(ms(c.DelayMs)))
	}
	return m
}

func shown(m *mq.MessageView, ok bool) values {
	return values{
		"ok": ok, "n": number(m.GetBody()), "size": len(m.GetBody()), "tag": m.GetTag(), "keys": m.GetKeys(),
		"properties": m.GetProperties(), "attempt": m.GetDeliveryAttempt(), "group": m.GetMessageGroup(),
		"messageId": m.GetMessageId(), "at": now(),
	}
}

type stopper interface{ GracefulStop() error }

func produce(c *command) (stopper, error) {
	given := []mq.ProducerOption{mq.WithTopics(c.Topic)}
	if c.Kind == "transaction" {
		given = append(given, mq.WithTransactionChecker(&mq.TransactionChecker{
			Check: func(m *mq.MessageView) mq.TransactionResolution {
				n := number(m.GetBody())
				say(c, "check", values{"n": n})
				if strings.HasSuffix(c.Plan[n%len(c.Plan)], "commit") {
					return mq.COMMIT
				}
				return mq.ROLLBACK
			},
		}))
	}
	producer, err := mq.NewProducer(c.config(), given...)
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	say(c, "started", nil)
	for n := c.First; n < c.First+c.Count; n++ {
		began := time.Now()
		receipts, err := sendOne(c, producer, n)
		if err != nil {
			failed(c, err, values{"n": n})
		} else {
			say(c, "sent", values{
				"n": n, "messageId": receipts[0].MessageID, "ms": time.Since(began).Milliseconds(),
				"recallHandle": receipts[0].RecallHandle, "at": now(),
			})
		}
		time.Sleep(ms(c.PauseMs))
	}
	wait(c, ms(c.SettleMs), nil)
	return producer, nil
}

func sendOne(c *command, producer mq.Producer, n int) ([]*mq.SendReceipt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if c.Kind != "transaction" {
		return producer.Send(ctx, c.message(n))
	}
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(ctx, c.message(n), transaction)
	if err != nil {
		return nil, err
	}
	switch c.Plan[n%len(c.Plan)] {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return receipts, err
}

func push(c *command) (stopper, error) {
	var good sync.Map
	var counting sync.Mutex
	tries := map[int]int{}
	count := func() int {
		found := 0
		good.Range(func(any, any) bool { found++; return true })
		return found
	}
	consumer, err := mq.NewPushConsumer(c.config(),
		mq.WithPushAwaitDuration(ms(orElse(c.AwaitMs, 5000))),
		mq.WithPushSubscriptionExpressions(c.subscription()),
		mq.WithPushMessageListener(&mq.FuncMessageListener{
			Consume: func(m *mq.MessageView) mq.ConsumerResult {
				n := number(m.GetBody())
				counting.Lock()
				tries[n]++
				ok := tries[n] > c.Fail
				counting.Unlock()
				say(c, "message", shown(m, ok))
				time.Sleep(ms(c.WorkMs))
				if !ok {
					return mq.FAILURE
				}
				good.Store(n, true)
				return mq.SUCCESS
			},
		}),
		mq.WithPushConsumptionThreadCount(20),
		mq.WithPushMaxCacheMessageCount(1024))
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	say(c, "started", nil)
	wait(c, ms(c.TimeoutMs), func() bool { return count() >= c.Count })
	wait(c, ms(c.SettleMs), nil)
	return consumer, nil
}

func simple(c *command) (stopper, error) {
	consumer, err := mq.NewSimpleConsumer(c.config(),
		mq.WithSimpleAwaitDuration(ms(orElse(c.AwaitMs, 5000))),
		mq.WithSimpleSubscriptionExpressions(c.subscription()))
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	say(c, "started", nil)
	good := map[int]bool{}
	stop, _ := stops.Load(c.ID)
	for end := time.Now().Add(ms(c.TimeoutMs)); time.Now().Before(end) && len(good) < c.Count; {
		select {
		case <-stop.(chan struct{}):
			return consumer, nil
		default:
		}
		invisible := ms(orElse(c.InvisibleMs, 15000))
		messages, err := consumer.Receive(context.Background(), int32(orElse(c.Batch, 16)), invisible)
		var status *mq.ErrRpcStatus
		if errors.As(err, &status) && v2.Code(status.Code) == v2.Code_MESSAGE_NOT_FOUND {
			continue // this client reports an empty answer as an error
		}
		if err != nil {
			failed(c, err, nil)
			time.Sleep(200 * time.Millisecond)
			continue
		}
		for _, m := range messages {
			ok := int(m.GetDeliveryAttempt()) > c.Fail
			say(c, "message", shown(m, ok))
			var err error
			if !ok && c.ChangeMs > 0 {
				err = consumer.ChangeInvisibleDuration(m, ms(c.ChangeMs))
			} else if ok {
				if err = consumer.Ack(context.Background(), m); err == nil {
					good[number(m.GetBody())] = true
				}
			}
			if err != nil {
				failed(c, err, values{"n": number(m.GetBody())})
			}
		}
	}
	wait(c, ms(c.SettleMs), nil)
	return consumer, nil
}

func recall(c *command) (stopper, error) {
	producer, err := mq.NewProducer(c.config(), mq.WithTopics(c.Topic))
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	id, err := producer.Recall(context.Background(), c.Topic, c.Handle)
	if err != nil {
		return producer, err
	}
	say(c, "recalled", values{"messageId": id})
	return producer, nil
}

// idleClients are many producers that do nothing but what keeps them connected.
type idleClients []mq.Producer

func (all idleClients) GracefulStop() error {
	for _, one := range all {
		_ = one.GracefulStop()
	}
	return nil
}

func idle(c *command) (stopper, error) {
	var all idleClients
	for range c.Count {
		producer, err := mq.NewProducer(c.config(), mq.WithTopics(c.Topic))
		if err != nil {
			return all, err
		}
		if err := producer.Start(); err != nil {
			return all, fmt.Errorf("client %d: %w", len(all), err)
		}
		all = append(all, producer)
	}
	say(c, "started", values{"count": len(all)})
	wait(c, ms(c.TimeoutMs), nil)
	for i, one := range all {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if i%orElse(c.Batch, 1) == 0 {
			if _, err := one.Send(ctx, c.message(i)); err != nil {
				failed(c, err, values{"n": i})
			} else {
				say(c, "sent", values{"n": i})
			}
		}
		cancel()
	}
	return all, nil
}

func run(c *command) {
	commands := map[string]func(*command) (stopper, error){
		"produce": produce, "push": push, "simple": simple, "recall": recall, "idle": idle,
	}
	client, err := commands[c.Do](c)
	if err != nil {
		failed(c, err, nil)
	}
	say(c, "done", nil)
	if client != nil {
		_ = client.GracefulStop()
	}
}

func main() {
	say(&command{}, "ready", nil)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		c := &command{}
		if err := json.Unmarshal(in.Bytes(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if c.Do == "stop" {
			if stop, there := stops.LoadAndDelete(c.Of); there {
				close(stop.(chan struct{}))
				stops.Store(c.Of, stop)
			}
			continue
		}
		mq.EnableSsl = c.TLS // the same in all commands of a session
		stops.Store(c.ID, make(chan struct{}))
		go run(c)
	}
}
