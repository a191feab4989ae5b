package orders

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"barnabas.example/testbroker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// A broker that wants TLS and a login, at which alice has rights and bob has none.
func TestSecurity(t *testing.T) {
	secured, err := testbroker.Start("--security", "SASL_SSL", "--acls", "--client-auth", "requested",
		"--user", "alice=alice-secret", "--user", "bob=bob-secret")
	if err != nil {
		t.Fatal(err)
	}
	defer secured.Stop()
	var status struct {
		CA string `json:"ca"`
	}
	if err := secured.Ask("GET", "/security", nil, &status); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(status.CA)) {
		t.Fatal("the authority is no certificate")
	}
	acl := fields{"principal": "User:alice", "operation": "ALL", "topic": "orders"}
	for path, body := range map[string]any{
		"/topics":        fields{"name": "orders"},
		"/security/acls": fields{"acls": []fields{acl}},
	} {
		if err := secured.Ask("POST", path, body, nil); err != nil {
			t.Fatal(err)
		}
	}
	// What is produced as a user, and read back; own is the client's certificate.
	exchange := func(mechanism sasl.Mechanism, own ...tls.Certificate) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		client, err := kgo.NewClient(
			kgo.SeedBrokers(strings.Split(secured.BootstrapServers, ",")...),
			kgo.DialTLSConfig(&tls.Config{RootCAs: roots, Certificates: own}),
			kgo.SASL(mechanism),
			kgo.ConsumeTopics("orders"),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.RetryTimeout(2*time.Second),
			kgo.RecordRetries(1),
		)
		if err != nil {
			return err
		}
		defer client.Close()
		if err := client.Ping(ctx); err != nil {
			return err
		}
		record := kgo.Record{Topic: "orders", Value: []byte("12")}
		if err := client.ProduceSync(ctx, &record).FirstErr(); err != nil {
			return err
		}
		return client.PollFetches(ctx).Err()
	}
	alice := plain.Auth{User: "alice", Pass: "alice-secret"}
	of256 := scram.Auth{User: "alice", Pass: "alice-secret"}
	for name, mechanism := range map[string]sasl.Mechanism{
		"PLAIN":         alice.AsMechanism(),
		"SCRAM-SHA-256": of256.AsSha256Mechanism(),
		"SCRAM-SHA-512": of256.AsSha512Mechanism(),
	} {
		if err := exchange(mechanism); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	wrong := scram.Auth{User: "alice", Pass: "wrong"}
	if err := exchange(wrong.AsSha256Mechanism()); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Fatalf("a wrong password: %v", err)
	}
	bob := plain.Auth{User: "bob", Pass: "bob-secret"}
	if err := exchange(bob.AsMechanism()); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("a user without rights: %v", err)
	}
	for query, isAccepted := range map[string]bool{"": true, "?foreign=true": false, "?expired=true": false} {
		var pair struct {
			Certificate string `json:"certificate"`
			Key         string `json:"key"`
		}
		if err := secured.Ask("GET", "/security/certificates/alice"+query, nil, &pair); err != nil {
			t.Fatal(err)
		}
		own, err := tls.X509KeyPair([]byte(pair.Certificate), []byte(pair.Key))
		if err != nil {
			t.Fatal(err)
		}
		if err := exchange(alice.AsMechanism(), own); (err == nil) != isAccepted {
			t.Fatalf("with the certificate %q: %v", query, err)
		}
	}
}
