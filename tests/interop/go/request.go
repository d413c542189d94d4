package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func (o options) asker() (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(o.resolver()),
		producer.WithCredentials(o.credentials()),
		producer.WithGroupName(o.group),
		producer.WithInstanceName(fmt.Sprint(time.Now().UnixNano())),
	)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// request asks --count times and prints what is replied.
func request(o options) error {
	p, err := o.asker()
	if err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	// 2.1.2 tells the brokers that it knows who it is a second after its start, and then every 30 s: a reply that comes
	// before finds nobody. So it gets to know the broker first.
	if _, err = p.SendSync(context.Background(), primitive.NewMessage(o.topic+"_first", []byte("x"))); err != nil {
		return err
	}
	time.Sleep(1500 * time.Millisecond)
	for n := 0; n < o.count; n++ {
		reply, err := p.Request(context.Background(), 5*time.Second, o.message(n))
		for deadline := time.Now().Add(o.timeout); err != nil && time.Now().Before(deadline); {
			reply, err = p.Request(context.Background(), 5*time.Second, o.message(n))
		}
		if err != nil {
			return err
		}
		say("reply", map[string]any{"n": n, "body": string(reply.Body)})
	}
	// The broker waits for the acknowledgement of the last reply: 2.1.2 sends it after Request has returned.
	time.Sleep(time.Second)
	say("summary", map[string]any{})
	return nil
}

// answer replies to requests until --count were answered.
func answer(o options) error {
	p, err := o.asker()
	if err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithCredentials(o.credentials()),
		consumer.WithGroupName(o.group+"_c"),
		consumer.WithInstance(fmt.Sprint(time.Now().UnixNano())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return err
	}
	answered := make(chan struct{}, 1000)
	err = c.Subscribe(o.topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			text := []byte("re: " + string(m.Body))
			reply, err := consumer.CreateReplyMessage(m, text)
			if err == nil {
				reply.Body = text // CreateReplyMessage of 2.1.2 forgets it
				_, err = p.SendSync(context.Background(), reply)
			}
			if err != nil {
				say("failed", map[string]any{"text": err.Error()})
				continue
			}
			answered <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	defer func() { _ = c.Shutdown() }()
	say("started", map[string]any{})
	deadline := time.After(o.timeout)
	for n := 0; n < o.count; n++ {
		select {
		case <-answered:
		case <-deadline:
			return fmt.Errorf("%d of %d requests came", n, o.count)
		}
	}
	say("summary", map[string]any{})
	return nil
}
