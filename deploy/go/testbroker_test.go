package testbroker

import (
	"strings"
	"testing"
)

func start(t *testing.T, arguments ...string) *Broker {
	t.Helper()
	broker, err := Start(arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Stop)
	return broker
}

func TestAResetBrokerHasNoTopicsAndNoRules(t *testing.T) {
	broker := start(t)
	if err := broker.CreateTopic("orders", 2); err != nil {
		t.Fatal(err)
	}
	rule, err := broker.AddRule(Fields{"api": "Produce", "close": true})
	if err != nil {
		t.Fatal(err)
	}
	if hits, err := broker.Hits(rule); hits != 0 || err != nil {
		t.Fatal(hits, err)
	}
	if err := broker.Reset(); err != nil {
		t.Fatal(err)
	}
	var topics map[string]any
	if err := broker.Ask("GET", "/topics", nil, &topics); err != nil || len(topics) != 0 {
		t.Fatal(topics, err)
	}
	if _, err := broker.Hits(rule); err == nil || !strings.Contains(err.Error(), "GET /rules") {
		t.Fatal(err)
	}
}

func TestWhatIsRefusedIsAnErrorWithTheReason(t *testing.T) {
	_, err := start(t).AddRule(Fields{"api": "Nonsense", "close": true})
	if err == nil || !strings.Contains(err.Error(), "Nonsense") {
		t.Fatal(err)
	}
}

func TestNodesOfACluster(t *testing.T) {
	servers := strings.Split(start(t, "--nodes", "3").BootstrapServers, ",")
	if len(servers) != 3 {
		t.Fatal(servers)
	}
}

func TestACommandThatIsMissingIsNamed(t *testing.T) {
	t.Setenv("BARNABAS", "/nowhere/barnabas")
	_, err := Start()
	if err == nil || !strings.Contains(err.Error(), "/nowhere/barnabas did not start (pip install barnabas)") {
		t.Fatal(err)
	}
}
