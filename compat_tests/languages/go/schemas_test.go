package orders

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	firstSchema  = `{"type":"record","name":"Order","fields":[{"name":"amount","type":"int"}]}`
	secondSchema = `{"type":"record","name":"Order","fields":[{"name":"amount","type":"int"},{"name":"currency","type":"string","default":"EUR"}]}`
	wrongSchema  = `{"type":"record","name":"Order","fields":[{"name":"amount","type":"int"},{"name":"country","type":"string"}]}`
)

// The client of a schema registry that franz-go has, with the registry of the test broker.
func TestSchemas(t *testing.T) {
	ctx := wiped(t)
	var status struct {
		URL string `json:"schema_registry_url"`
	}
	ask(t, "GET", "/status", nil, &status)
	registry, err := sr.NewClient(sr.URLs(status.URL))
	if err != nil {
		t.Fatal(err)
	}
	first, err := registry.CreateSchema(ctx, "orders-value", sr.Schema{Schema: firstSchema})
	if err != nil {
		t.Fatal(err)
	}
	second, err := registry.CreateSchema(ctx, "orders-value", sr.Schema{Schema: secondSchema})
	if err != nil {
		t.Fatal(err)
	}
	if first.ID != 1 || second.ID != 2 || second.Version != 2 {
		t.Fatalf("%+v and %+v", first, second)
	}
	_, err = registry.CreateSchema(ctx, "orders-value", sr.Schema{Schema: wrongSchema})
	var refused *sr.ResponseError
	if !errors.As(err, &refused) || refused.StatusCode != 409 || refused.ErrorCode != 409 {
		t.Fatalf("an incompatible schema: %v", err)
	}
	checked, err := registry.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "orders-value", -1, sr.Schema{Schema: wrongSchema})
	if err != nil || checked.Is || len(checked.Messages) == 0 {
		t.Fatalf("%+v, %v", checked, err)
	}
	found, err := registry.LookupSchema(ctx, "orders-value", sr.Schema{Schema: firstSchema})
	if err != nil || found.Version != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	schema, err := registry.SchemaByID(ctx, second.ID)
	if err != nil || schema.Schema != secondSchema {
		t.Fatalf("%+v, %v", schema, err)
	}
	subjects, err := registry.Subjects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, subjects, "orders-value")
}
