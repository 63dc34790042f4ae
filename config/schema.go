package config

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/gobridge/gobridge"
)

const (
	variablePattern = `\$\{`
	durationPattern = `^([0-9]*\.?[0-9]+(ns|us|µs|ms|s|m|h))+$`
)

// Schema returns the JSON Schema of the config file (draft 2020-12), for editors
// and for checks in pipelines. It knows every key, type, default and closed set of
// values; what depends on several keys is checked by [Load] alone.
func Schema(kinds *gobridge.Kinds) *jsonschema.Schema {
	s := schemaOf(kinds, reflect.TypeFor[File](), "")
	s.Version = jsonschema.Version
	s.Title = "GoBridge config"
	return s
}

func schemaOf(kinds *gobridge.Kinds, t reflect.Type, path string) *jsonschema.Schema {
	s := &jsonschema.Schema{Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema}
	types(s, "object", "null")
	for _, f := range fieldsOf(t) {
		at := join(path, f.key)
		var p *jsonschema.Schema
		switch kindOf(f.typ) {
		case kindBlock:
			p = schemaOf(kinds, deref(f.typ), at)
		case kindList:
			p = &jsonschema.Schema{}
			types(p, "array", "null")
			if item := f.typ.Elem(); kindOf(item) == kindBlock {
				p.Items = schemaOf(kinds, deref(item), at+"[]")
			} else {
				p.Items = scalarSchema(field{typ: item, enum: f.enum})
			}
		case kindOptions:
			p = optionsSchema(kinds, optionsAt(kinds, t, path), at)
		default:
			p = scalarSchema(f)
		}
		describe(p, f)
		s.Properties.Set(f.key, p)
		if f.required {
			s.Required = append(s.Required, f.key)
		}
	}
	return s
}

// optionsSchema accepts the options of any of the kinds: which one applies may
// stand in another block (the session of a receiver).
func optionsSchema(kinds *gobridge.Kinds, options []optionsOf, path string) *jsonschema.Schema {
	if len(options) == 1 {
		return schemaOf(kinds, options[0].typ, path)
	}
	s := &jsonschema.Schema{}
	if len(options) == 0 {
		s.AdditionalProperties = jsonschema.FalseSchema
		types(s, "object", "null")
	}
	for _, o := range options {
		s.AnyOf = append(s.AnyOf, schemaOf(kinds, o.typ, path))
	}
	return s
}

func scalarSchema(f field) *jsonschema.Schema {
	variable := &jsonschema.Schema{Type: "string", Pattern: variablePattern}
	k := kindOf(f.typ)
	if len(f.enum) > 0 {
		values := &jsonschema.Schema{}
		for _, e := range f.enum {
			if k == kindString || k == kindText {
				values.Enum = append(values.Enum, e)
			}
			if v := literal(e); v != any(e) {
				values.Enum = append(values.Enum, v)
			}
		}
		if f.def == "" && k == kindString {
			values.Enum = append(values.Enum, "")
		}
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{values, variable}}
	}
	s := &jsonschema.Schema{}
	switch k {
	case kindInteger, kindNumber, kindSeconds:
		s.Minimum, s.Maximum = json.Number(cmp.Or(f.min, "0")), json.Number(f.max)
	}
	switch k {
	case kindBool:
		types(s, "boolean", "string")
		s.Pattern = variablePattern
	case kindInteger:
		types(s, "integer", "string")
		s.Pattern = variablePattern
	case kindNumber:
		types(s, "number", "string")
		s.Pattern = variablePattern
	case kindDuration:
		s.Type, s.Pattern = "string", durationPattern+"|"+variablePattern
	case kindSeconds:
		types(s, "integer", "string")
		s.Pattern = durationPattern + "|" + variablePattern
	default:
		s.Type = "string"
	}
	return s
}

// describe adds what the field says about itself.
func describe(s *jsonschema.Schema, f field) {
	s.Description = f.doc
	switch {
	case f.def == "":
	case f.derived:
		s.Description += "; default: " + f.def
	case kindOf(f.typ) == kindDuration, kindOf(f.typ) == kindString:
		s.Default = f.def
	default:
		s.Default = literal(f.def)
	}
}

// literal is the value that a word stands for in YAML.
func literal(word string) any {
	if word == "true" || word == "false" {
		return word == "true"
	}
	if i, err := strconv.ParseInt(word, 10, 64); err == nil {
		return i
	}
	if x, err := strconv.ParseFloat(word, 64); err == nil && strings.Trim(word, "0123456789.") == "" {
		return x
	}
	return word
}

// types sets more than one type; a pattern or a minimum then applies to the type
// that it fits.
func types(s *jsonschema.Schema, names ...string) {
	s.Extras = map[string]any{"type": names}
}
