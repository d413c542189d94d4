package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// pull reads every queue of --broker from its begin, --queues of them, until --count messages came or --timeout is over.
func pull(o options) error {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithCredentials(o.credentials()),
		consumer.WithGroupName(o.group),
		consumer.WithInstance(fmt.Sprint(time.Now().UnixNano())),
	)
	if err != nil {
		return err
	}
	if err = c.Subscribe(o.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: o.expression}); err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	defer func() { _ = c.Shutdown() }()
	next := make([]int64, o.queues)
	deadline := time.Now().Add(o.timeout)
	for got := 0; got < o.count; {
		for id := range next {
			queue := primitive.MessageQueue{Topic: o.topic, BrokerName: o.broker, QueueId: id}
			result, err := c.PullFrom(context.Background(), &queue, next[id], 10)
			if err != nil {
				return err
			}
			next[id] = result.NextBeginOffset
			for _, m := range result.GetMessageExts() {
				number, _ := strconv.Atoi(string(m.Body))
				say("message", map[string]any{"n": number, "queue": id, "offset": m.QueueOffset, "tags": m.GetTags()})
				got++
			}
			if err = c.UpdateOffset(&queue, next[id]); err != nil {
				return err
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d messages came", got, o.count)
		}
	}
	if err = c.PersistOffset(context.Background(), o.topic); err != nil {
		return err
	}
	say("summary", map[string]any{"next": next})
	if o.stay {
		select {}
	}
	return nil
}
