package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const shards = 4

// message n: its body is the number, filled up, its key "k<n>", its tag a or b in turn.
func (o options) message(n int) *primitive.Message {
	body := fmt.Sprintf("%d", n)
	if len(body) < o.size {
		body += " " + strings.Repeat(".", o.size-len(body)-1)
	}
	m := primitive.NewMessage(o.topic, []byte(body))
	m.WithKeys([]string{fmt.Sprintf("k%d", n)})
	m.WithTag([]string{"a", "b"}[n%2])
	m.WithProperty("n", fmt.Sprint(n))
	if o.delayLevel > 0 {
		m.WithDelayTimeLevel(o.delayLevel)
	}
	if o.mode == "sharded" {
		m.WithShardingKey(fmt.Sprint(n % shards))
	}
	return m
}

func produce(o options) error {
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(o.resolver()),
		producer.WithCredentials(o.credentials()),
		producer.WithGroupName(o.group),
		producer.WithInstanceName(fmt.Sprint(time.Now().UnixNano())),
		producer.WithQueueSelector(selector(o)),
	)
	if err != nil {
		return err
	}
	if err = p.Start(); err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	statuses := map[string]int{}
	var guard sync.Mutex
	tell := func(n int, result *primitive.SendResult, err error) {
		guard.Lock()
		defer guard.Unlock()
		if err != nil {
			statuses["error"]++
			say("failed", map[string]any{"n": n, "text": err.Error()})
			return
		}
		statuses[fmt.Sprint(result.Status)]++
		say("sent", map[string]any{
			"n": n, "status": int(result.Status), "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
			"queue": result.MessageQueue.QueueId, "broker": result.MessageQueue.BrokerName, "offset": result.QueueOffset,
		})
	}
	switch o.mode {
	case "async":
		var open sync.WaitGroup
		for n := 0; n < o.count; n++ {
			open.Add(1)
			number := n
			err := p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				defer open.Done()
				tell(number, result, err)
			}, o.message(n))
			if err != nil {
				return err
			}
		}
		open.Wait()
	case "oneway":
		for n := 0; n < o.count; n++ {
			if err := p.SendOneWay(ctx, o.message(n)); err != nil {
				return err
			}
		}
		time.Sleep(o.settle)
	case "batch":
		var all []*primitive.Message
		for n := 0; n < o.count; n++ {
			all = append(all, o.message(n))
		}
		result, err := p.SendSync(ctx, all...)
		tell(0, result, err)
	default:
		for n := 0; n < o.count; n++ {
			result, err := p.SendSync(ctx, o.message(n))
			tell(n, result, err)
		}
	}
	say("summary", map[string]any{"statuses": statuses})
	return nil
}

func selector(o options) producer.QueueSelector {
	if o.mode == "sharded" {
		return producer.NewHashQueueSelector()
	}
	return producer.NewRoundRobinQueueSelector()
}
