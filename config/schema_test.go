package config_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/kinds"
)

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := json.Marshal(config.Schema(kinds.All()))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance turns YAML into what the schema checks.
func instance(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := yaml.Load(data, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaAcceptsEverySoundConfig(t *testing.T) {
	setenv(t)
	s := compileSchema(t)
	for name, data := range sound(t) {
		t.Run(name, func(t *testing.T) {
			if err := s.Validate(instance(t, data)); err != nil {
				t.Error(err)
			}
			file, diags := config.Load(name, data, kinds.All())
			if file == nil {
				t.Fatal(diags)
			}
			shown, err := file.Show()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(instance(t, shown)); err != nil {
				t.Errorf("as shown: %v", err)
			}
		})
	}
}

func TestSchemaRefusesWhatTheDecoderRefuses(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	const rest = `
sessions: [ { id: edge, transport: mqtt, options: { session: { broker_url: "tcp://127.0.0.1:1883" } } } ]
routes: [ { id: up, receiver: { session_id: edge, topics: [ { topic: a } ] }, bindings: [ { sender: { session_id: edge }, address: b } ] } ]
`
	if err := s.Validate(instance(t, []byte("bridge: { id: x }"+rest))); err != nil {
		t.Fatalf("the sound part: %v", err)
	}
	for _, bad := range []string{
		"bridge: { id: x, nmae: y }" + rest,
		"bridge: { id: 7 }" + rest,
		"bridge: {}" + rest,
		"bridge: { id: x, shutdown_timeout: 30 }" + rest,
		"bridge: { id: x, shutdown_timeout: 1d }" + rest,
		"bridge: { id: x, deployment_mode: alone }" + rest,
		"bridge: { id: x }\nhttp: { admin_keys: [ { name: x } ] }" + rest,
		"bridge: { id: x }\nhtpp: {}" + rest,
		"bridge: { id: x }\nstores: { dlq: { options: { max: 1 } } }" + rest,
		strings.Replace("bridge: { id: x }"+rest, "broker_url:", "broker_ulr:", 1),
		strings.Replace("bridge: { id: x }"+rest, "broker_url:", "keep_alive: soon, broker_url:", 1),
		strings.Replace("bridge: { id: x }"+rest, "topic: a", "topic: a, qos: 3", 1),
	} {
		if s.Validate(instance(t, []byte(bad))) == nil {
			t.Errorf("the schema accepts\n%s", bad)
		}
		if file, _ := config.Load("x", []byte(bad), kinds.All()); file != nil {
			t.Errorf("the decoder accepts\n%s", bad)
		}
	}
}

func TestReferenceIsUpToDate(t *testing.T) {
	t.Parallel()
	got := config.Reference(kinds.All())
	name := filepath.Join("..", "docs", "config.md")
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/config.md is stale, run go generate ./config (-have +made):\n%s", diff)
	}
}
