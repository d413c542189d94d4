package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume ends once --count different messages were consumed and --settle is over, or after --timeout.
func consume(o options) error {
	where := consumer.ConsumeFromFirstOffset
	if o.start == "last" {
		where = consumer.ConsumeFromLastOffset
	}
	model := consumer.Clustering
	if o.broadcast {
		model = consumer.BroadCasting
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithCredentials(o.credentials()),
		consumer.WithGroupName(o.group),
		consumer.WithInstance(fmt.Sprint(time.Now().UnixNano())),
		consumer.WithConsumeFromWhere(where),
		consumer.WithConsumerOrder(o.orderly),
		consumer.WithConsumerModel(model),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	var guard sync.Mutex
	tries := map[string]int{}
	done := map[string]bool{}
	full := make(chan struct{})
	wanted := consumer.MessageSelector{Type: consumer.TAG, Expression: o.expression}
	if o.sql != "" {
		wanted = consumer.MessageSelector{Type: consumer.SQL92, Expression: o.sql}
	}
	err = c.Subscribe(o.topic, wanted, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		guard.Lock()
		defer guard.Unlock()
		for _, m := range messages {
			n := strings.SplitN(string(m.Body), " ", 2)[0]
			number, _ := strconv.Atoi(n)
			tries[n]++
			say("message", map[string]any{
				"n": number, "size": len(m.Body), "topic": m.Topic, "keys": m.GetKeys(), "tags": m.GetTags(),
				"queue": m.Queue.QueueId, "offset": m.QueueOffset, "reconsume": m.ReconsumeTimes, "msgId": m.MsgId,
				"waited": time.Now().UnixMilli() - m.BornTimestamp, "property": m.GetProperty("n"),
			})
			if tries[n] <= o.fail {
				if o.orderly {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
			done[n] = true
			if len(done) == o.count {
				select {
				case <-full:
				default:
					close(full)
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	say("started", map[string]any{})
	select {
	case <-full:
		time.Sleep(o.settle)
	case <-time.After(o.timeout):
	}
	if err = c.Shutdown(); err != nil {
		return err
	}
	guard.Lock()
	defer guard.Unlock()
	say("summary", map[string]any{"unique": len(done)})
	return nil
}
