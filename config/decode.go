package config

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/gobridge/gobridge"
)

// maxAliased bounds the values that are read through aliases: a page of YAML can
// otherwise stand for billions.
const maxAliased = 100_000

// decoder reads YAML nodes into tagged structs and goes on after a fault.
type decoder struct {
	report
	env func(string) (string, bool)
	// places holds where each path of the file stands.
	places map[string]position
	// options holds the blocks that wait until their kind is known, by path.
	options map[string]*yaml.Node
	// later names what versions to come have at a path (written without indices).
	later map[string]string
	// everywhere maps each known key to the blocks that have it.
	everywhere map[string][]string
	subs       []substitution

	open    map[*yaml.Node]bool
	within  int
	aliased int
}

// fault reports an error about the value at path.
func (d *decoder) fault(n *yaml.Node, path, what, hint string) {
	d.faulty[path] = true
	d.add(position{n.Line, n.Column}, gobridge.Problem{Path: path, What: what, Hint: hint})
}

// value reads n into v. f holds the tags of the field that v is or, for items of
// a list, belongs to.
func (d *decoder) value(n *yaml.Node, v reflect.Value, f field, path string) {
	if n.Kind == yaml.AliasNode {
		if n.Alias == nil || d.open[n.Alias] {
			d.fault(n, path, "alias of a block that contains it", "")
			return
		}
		d.within++
		defer func() { d.within-- }()
		n = n.Alias
	}
	if d.within > 0 {
		d.aliased++
		if d.aliased > maxAliased {
			if d.aliased == maxAliased+1 {
				d.fault(n, path, "aliases stand for too many values", "write the values out")
			}
			return
		}
	}
	if n.Anchor != "" {
		d.open[n] = true
		defer delete(d.open, n)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.fault(n, path, "explicit YAML tag", "remove the tag; text that begins with ! needs quotes")
		return
	}

	k := kindOf(v.Type())
	if isNull(n) {
		if !k.block() {
			d.fault(n, path, "empty value where "+k.expected()+" belongs", `write the value, "" for an empty string, or remove the key`)
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		// What could not be read stays unset, so that nothing is made of its zero.
		p := reflect.New(v.Type().Elem())
		defer func() {
			if !d.faulty[path] {
				v.Set(p)
			}
		}()
		d.into(n, p.Elem(), k, f, path)
		return
	}
	d.into(n, v, k, f, path)
}

// into reads n, which is no alias and not empty, into v, which is no pointer.
func (d *decoder) into(n *yaml.Node, v reflect.Value, k kind, f field, path string) {
	switch k {
	case kindBlock:
		d.mapping(n, v, path)
	case kindList:
		d.sequence(n, v, f, path)
	case kindOptions:
		d.options[path] = n
	default:
		d.scalar(n, v, k, f, path)
	}
}

// indices are the list positions in a path.
var indices = regexp.MustCompile(`\[\d+\]`)

// mapping reads a block into a struct.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, path, "expected "+kindBlock.expected()+", found "+d.found(n), "")
		return
	}
	fields := fieldsOf(v.Type())
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0 {
			d.fault(key, join(path, "?"), "a key must be a plain word", "")
			continue
		}
		if key.ShortTag() == "!!merge" {
			d.fault(key, join(path, "<<"), "merge keys are not supported", "write the keys out, or alias a whole block: policy: *common")
			continue
		}
		name := key.Value
		here := join(path, shorten(name))
		if line := lines[name]; line > 0 {
			d.fault(key, here, "duplicate key", fmt.Sprintf("it stands on line %d already", line))
			continue
		}
		lines[name] = key.Line
		at := slices.IndexFunc(fields, func(f field) bool { return f.key == name })
		if thing := d.later[indices.ReplaceAllString(here, "[]")]; thing != "" && (at < 0 || len(val.Content) > 0) {
			what, hint, _ := gobridge.NotAvailable(thing)
			d.fault(key, here, what, cmp.Or(hint, "remove it"))
			continue
		}
		if at < 0 {
			d.unknown(key, v.Type(), fields, path)
			continue
		}
		f := fields[at]
		d.places[here] = position{key.Line, key.Column}
		if val.Kind == yaml.ScalarNode && val.Line > 0 {
			d.places[here] = position{val.Line, val.Column}
		}
		d.value(val, v.FieldByIndex(f.index), f, here)
	}
}

// unknown reports a key that the block does not have, with what was meant.
func (d *decoder) unknown(key *yaml.Node, t reflect.Type, fields []field, path string) {
	name := shorten(key.Value)
	at := position{key.Line, key.Column}
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	hint := ""
	if near := nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
		d.faulty[join(path, near)] = true
	} else if blocks := d.everywhere[name]; len(blocks) == 1 && inside(name, t) != "" {
		hint = "did you mean " + inside(name, t) + "?"
	} else if len(blocks) > 0 {
		hint = "it belongs in " + strings.Join(blocks, " or ")
	} else if len(known) > 0 {
		hint = "known keys: " + strings.Join(known, ", ")
	} else {
		hint = "the block has no keys"
	}
	d.add(at, gobridge.Problem{Path: path, What: fmt.Sprintf("unknown key %q", name), Hint: hint})
}

// inside looks for a key in the blocks of a struct, as a path below it.
func inside(key string, t reflect.Type) string {
	for _, f := range fieldsOf(t) {
		if f.typ.Kind() != reflect.Struct || kindOf(f.typ) != kindBlock {
			continue
		}
		for _, g := range fieldsOf(f.typ) {
			if g.key == key {
				return f.key + "." + key
			}
		}
		if below := inside(key, f.typ); below != "" {
			return f.key + "." + below
		}
	}
	return ""
}

// sequence reads a list into a slice.
func (d *decoder) sequence(n *yaml.Node, v reflect.Value, f field, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fault(n, path, "expected "+kindList.expected()+", found "+d.found(n), "put it in [ ]")
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		here := fmt.Sprintf("%s[%d]", path, i)
		d.places[here] = position{item.Line, item.Column}
		if isNull(item) {
			d.fault(item, here, "empty item", "remove it")
			continue
		}
		d.value(item, s.Index(i), f, here)
	}
	v.Set(s)
}

// scalar reads one value. Text that came from the environment is converted to
// the type of the field; a quoted number of the file itself is a string.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, k kind, f field, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fault(n, path, "expected "+k.expected()+", found "+d.found(n), "")
		return
	}
	text, tag, expanded := n.Value, n.ShortTag(), false
	if tag == "!!str" && strings.Contains(text, "${") {
		out, values, what, hint := expand(text, d.env)
		if what != "" {
			d.fault(n, path, what, hint)
			return
		}
		text, expanded = out, len(values) > 0
		if text != "" && expanded && f.enum == nil && (k == kindString || k == kindSecret || k == kindText) {
			d.subs = append(d.subs, substitution{text, n.Value, values})
		}
	}
	if tag == "!!str" && !expanded && !k.textual() {
		d.fault(n, path, "expected "+k.expected()+", found a string", unquote(text, k))
		return
	}
	if expanded && text == "" && (k == kindSecret || f.key == "username") {
		d.fault(n, path, "the text of "+shorten(n.Value)+" is empty: a missing credential never means an anonymous login", "set the variable, or remove the key")
		return
	}
	prefilled := !v.IsZero()
	expected, hint := set(v, k, text, tag, f)
	if expected == "" && v.IsZero() && !prefilled && zeroMeansDefault(k, f) {
		expected, hint = "more than 0", "remove the key for the default, "+f.def
	}
	if expected == "" {
		return
	}
	found := d.found(n)
	if len(f.enum) > 0 && (k == kindString || k == kindText || k == kindInteger) {
		expected, hint = "one of "+strings.Join(f.enum, ", "), ""
		if near := nearest(text, f.enum); near != "" && !expanded && strings.Trim(text, "0123456789.") != "" {
			hint = "did you mean " + near + "?"
			found = strconv.Quote(text) // a slip of that word; anything else may be a misplaced secret
		}
	}
	switch {
	case expanded:
		found = "the text of " + shorten(n.Value)
	case k == kindSecret:
		found = "no text"
	case k == kindDuration && isDuration(text):
		found = text
	}
	d.fault(n, path, "expected "+expected+", found "+found, hint)
}

func isDuration(s string) bool {
	_, err := time.ParseDuration(s)
	return err == nil
}

// unquote is the hint for text where another type belongs.
func unquote(text string, k kind) string {
	if k == kindBool {
		return "write true or false"
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return "remove the quotes"
	}
	return ""
}

// set converts one scalar and stores it. It returns what was expected, and a
// hint, when the text does not fit.
func set(v reflect.Value, k kind, text, tag string, f field) (expected, hint string) {
	no := k.expected()
	enum := f.enum
	str := tag == "!!str"
	switch k {
	case kindString, kindSecret, kindText:
		// A word that YAML takes for a number or a boolean may still be one of the
		// values of a closed set (qos: 1 beside qos: preserve).
		if !str && !slices.Contains(enum, text) {
			return no, "put it in quotes"
		}
		if unset := text == "" && f.def == ""; enum != nil && !unset && !slices.Contains(enum, text) {
			return no, ""
		}
		if k == kindString {
			v.SetString(text)
		} else if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			return no, ""
		}
	case kindBool:
		switch text {
		case "true", "false":
			v.SetBool(text == "true")
		default:
			return no, ""
		}
	case kindInteger:
		if enum != nil && !slices.Contains(enum, text) {
			return no, ""
		}
		if !plainInteger(text) {
			return no, "write a plain decimal number"
		}
		if v.CanUint() {
			u, err := strconv.ParseUint(text, 10, v.Type().Bits())
			if err != nil {
				return span(v), ""
			}
			v.SetUint(u)
			return "", ""
		}
		i, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return span(v), ""
		}
		v.SetInt(i)
	case kindNumber:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || x-x != 0 || strings.ContainsAny(text, "xX_") {
			return no, ""
		}
		v.SetFloat(x)
	case kindSeconds:
		var secs gobridge.Seconds
		if err := secs.UnmarshalText([]byte(text)); err != nil {
			return no, ""
		}
		if secs < 0 {
			return no, "it must not be negative"
		}
		v.SetInt(int64(secs))
	case kindDuration:
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return no, "write the unit: " + strings.TrimSpace(text) + "s or " + strings.TrimSpace(text) + "ms"
		}
		t, err := time.ParseDuration(text)
		if err != nil {
			return no, "the units are ms, s, m and h"
		}
		if t < 0 {
			return no, "it must not be negative"
		}
		v.SetInt(int64(t))
	}
	return "", ""
}

// zeroMeansDefault reports whether a written 0 could not be told from a key that
// is absent; it is refused instead of being replaced by the default.
func zeroMeansDefault(k kind, f field) bool {
	switch k {
	case kindInteger, kindNumber, kindDuration, kindSeconds:
		return f.typ.Kind() != reflect.Pointer && f.def != "" && !f.derived && strings.Trim(f.def, "0.s") != ""
	}
	return false
}

// plainInteger accepts decimal digits with an optional minus: 0x10, 1_000 and 010
// mean different numbers to different readers of YAML.
func plainInteger(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || len(digits) > 1 && digits[0] == '0' {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// span describes the numbers that v can hold.
func span(v reflect.Value) string {
	bits := v.Type().Bits()
	if v.CanUint() {
		return fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<bits-1)
	}
	return fmt.Sprintf("a whole number of at most %d", int64(1)<<(bits-1)-1)
}

// found describes a node. Numbers and booleans are repeated, text never is: it
// may be a secret that stands in the wrong place.
func (d *decoder) found(n *yaml.Node) string {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		return "a block of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool":
		return shorten(n.Value)
	case "!!null":
		return "nothing"
	case "!!timestamp":
		return "a date"
	}
	return "a string"
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// shorten keeps messages on one line of sane length.
func shorten(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
