// Package orders shows what franz-go makes of a broker that misbehaves. One broker for the package, wiped before each test.
package orders

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"barnabas.example/testbroker"
	"github.com/twmb/franz-go/pkg/kgo"
)

var broker *testbroker.Broker

type fields = testbroker.Fields

func TestMain(m *testing.M) {
	var err error
	if broker, err = testbroker.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	broker.Stop()
	os.Exit(status)
}

func TestWhatIsProducedIsConsumed(t *testing.T) {
	ctx := wiped(t)
	produce(ctx, t, "12", "13")
	equal(t, consume(ctx, t, 2), "12", "13")
}

func TestTheProducerLooksForTheLeaderAgain(t *testing.T) {
	ctx := wiped(t)
	rule := addRule(t, fields{"api": "Produce", "topic": "orders", "times": 1, "error": "NOT_LEADER_OR_FOLLOWER"})
	produce(ctx, t, "12")
	hitOnce(t, rule)
	equal(t, consume(ctx, t, 1), "12")
}

// The broker has written the record, but the producer does not know, and sends it again: it is there once.
func TestAnAcknowledgementThatIsLostMakesNoDuplicate(t *testing.T) {
	ctx := wiped(t)
	rule := addRule(t, fields{"api": "Produce", "topic": "orders", "times": 1, "close": true, "served": true})
	produce(ctx, t, "12", "13")
	hitOnce(t, rule)
	var requests []fields
	ask(t, "GET", "/requests?api=Produce&topic=orders", nil, &requests)
	if len(requests) != 3 {
		t.Fatalf("%d requests to produce, not three", len(requests))
	}
	equal(t, consume(ctx, t, 2), "12", "13")
}

func TestTheConsumerConnectsAgain(t *testing.T) {
	ctx := wiped(t)
	produce(ctx, t, "12")
	rule := addRule(t, fields{"api": "Fetch", "topic": "orders", "nth": 1, "close": true})
	equal(t, consume(ctx, t, 1), "12")
	hitOnce(t, rule)
}

// wiped empties the broker and makes the topic.
func wiped(t *testing.T) context.Context {
	t.Helper()
	if err := broker.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := broker.CreateTopic("orders", 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func ask(t *testing.T, method, path string, body, answer any) {
	t.Helper()
	if err := broker.Ask(method, path, body, answer); err != nil {
		t.Fatal(err)
	}
}

func addRule(t *testing.T, body fields) testbroker.Rule {
	t.Helper()
	rule, err := broker.AddRule(body)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func hitOnce(t *testing.T, rule testbroker.Rule) {
	t.Helper()
	hits, err := broker.Hits(rule)
	if err != nil {
		t.Fatal(err)
	}
	if hits != 1 {
		t.Fatalf("the rule has acted on %d requests, not on one", hits)
	}
}

func equal(t *testing.T, values []string, expected ...string) {
	t.Helper()
	if !slices.Equal(values, expected) {
		t.Fatalf("%q, not %q", values, expected)
	}
}

func connect(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	// franz-go asks for metadata every 5 seconds at most, even when a leader is gone
	options = append(options, kgo.SeedBrokers(broker.BootstrapServers), kgo.MetadataMinAge(20*time.Millisecond))
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func produce(ctx context.Context, t *testing.T, values ...string) {
	t.Helper()
	client := connect(t, kgo.DefaultProduceTopic("orders"))
	for _, value := range values {
		if err := client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// consume returns the first values of the topic, read by a group.
func consume(ctx context.Context, t *testing.T, count int) (values []string) {
	t.Helper()
	client := connect(t, kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for len(values) < count {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			t.Fatal(err)
		}
		fetched.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values
}
