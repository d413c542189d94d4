package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var states = map[string]primitive.LocalTransactionState{
	"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState, "unknown": primitive.UnknowState,
}

// plan holds "commit", "rollback" or "unknown-commit" and the like: what the work says, then what the check says.
type plan struct {
	words []string
}

func (p *plan) wordsOf(key string) []string {
	var n int
	if _, err := fmt.Sscanf(key, "k%d", &n); err != nil {
		return []string{"unknown"}
	}
	return strings.Split(p.words[n%len(p.words)], "-")
}

func (p *plan) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return states[p.wordsOf(m.GetKeys())[0]]
}

func (p *plan) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	say("check", map[string]any{"keys": m.GetKeys()})
	words := p.wordsOf(m.GetKeys())
	return states[words[len(words)-1]]
}

// transactions sends --count half messages and stays for --settle, so that the broker can ask about them.
func transactions(o options) error {
	listener := &plan{words: strings.Split(o.plan, ",")}
	p, err := rocketmq.NewTransactionProducer(
		listener,
		producer.WithNsResolver(o.resolver()),
		producer.WithCredentials(o.credentials()),
		producer.WithGroupName(o.group),
		producer.WithInstanceName(fmt.Sprint(time.Now().UnixNano())),
	)
	if err != nil {
		return err
	}
	if err = p.Start(); err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	for n := 0; n < o.count; n++ {
		result, err := p.SendMessageInTransaction(context.Background(), o.message(n))
		if err != nil {
			return err
		}
		say("sent", map[string]any{"n": n, "status": int(result.Status), "state": int(result.State)})
	}
	time.Sleep(o.settle)
	say("summary", map[string]any{})
	return nil
}
