package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/gobridge/gobridge"
)

// Show writes the effective config as YAML: every key with its value, defaults
// included. Secrets are masked. The result is a config file itself that means the
// same, but for the secrets.
func (f *File) Show() ([]byte, error) {
	doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{node(reflect.ValueOf(f).Elem())}}
	out, err := yaml.Dump(doc)
	if err != nil {
		return nil, fmt.Errorf("write config: %w", err)
	}
	return out, nil
}

// node returns the YAML of a value, nil for what is absent.
func node(v reflect.Value) *yaml.Node {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
		return node(v.Elem())
	}
	switch kindOf(v.Type()) {
	case kindBlock:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range fieldsOf(v.Type()) {
			if val := node(v.FieldByIndex(f.index)); val != nil {
				n.Content = append(n.Content, text("!!str", f.key), val)
			}
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case kindList:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, node(v.Index(i)))
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case kindSecret:
		return text("!!str", v.Interface().(gobridge.Secret).String())
	case kindText:
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			if b, err := m.MarshalText(); err == nil {
				return text("!!str", escape(string(b)))
			}
		}
		return text("!!str", escape(fmt.Sprint(v.Interface())))
	case kindBool:
		return text("!!bool", strconv.FormatBool(v.Bool()))
	case kindNumber:
		return text("!!float", strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case kindDuration:
		return text("!!str", durationText(time.Duration(v.Int())))
	case kindInteger, kindSeconds:
		if v.CanUint() {
			return text("!!int", strconv.FormatUint(v.Uint(), 10))
		}
		return text("!!int", strconv.FormatInt(v.Int(), 10))
	default:
		return text("!!str", escape(maskQuery(v.String())))
	}
}

// maskQuery hides the query of a URL: that of a WebSocket address often is a token.
func maskQuery(s string) string {
	address, query, found := strings.Cut(s, "?")
	if !found || query == "" || !strings.Contains(address, "://") {
		return s
	}
	return address + "?" + gobridge.Redacted
}

func text(tag, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if value == "" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// durationText writes a duration as people do: 15m, not 15m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
