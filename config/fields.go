package config

import (
	"encoding"
	"reflect"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
)

// field is one key of a block, as the tags of its struct field describe it.
type field struct {
	key      string
	index    []int
	typ      reflect.Type
	doc      string
	def      string
	enum     []string
	required bool
	// derived marks a default that is described, not written (the host name).
	derived bool
	// min and max bound a number; empty is 0 and no bound.
	min, max string
}

// fieldsOf lists the keys of a struct in the order of its fields; inline structs
// contribute theirs.
func fieldsOf(t reflect.Type) []field {
	var fs []field
	for sf := range t.Fields() {
		name, opts, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if !sf.IsExported() || name == "-" {
			continue
		}
		if opts == "inline" {
			for _, f := range fieldsOf(sf.Type) {
				f.index = append([]int{sf.Index[0]}, f.index...)
				fs = append(fs, f)
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(sf.Name)
		}
		f := field{
			key: name, index: sf.Index, typ: sf.Type,
			doc: sf.Tag.Get("doc"), def: sf.Tag.Get("default"), required: sf.Tag.Get("required") == "true",
			derived: sf.Tag.Get("derived") == "true",
			min:     sf.Tag.Get("min"), max: sf.Tag.Get("max"),
		}
		if e := sf.Tag.Get("enum"); e != "" {
			f.enum = strings.Split(e, ",")
		}
		fs = append(fs, f)
	}
	return fs
}

// kind is how a Go type is written in the file.
type kind uint8

const (
	kindBlock kind = iota
	kindList
	kindOptions
	kindString
	kindSecret
	kindBool
	kindInteger
	kindNumber
	kindDuration
	kindSeconds
	kindText
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	secondsType  = reflect.TypeFor[gobridge.Seconds]()
	secretType   = reflect.TypeFor[gobridge.Secret]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// kindOf classifies a field's type; pointers count as what they point to.
func kindOf(t reflect.Type) kind {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case durationType:
		return kindDuration
	case secondsType:
		return kindSeconds
	case secretType:
		return kindSecret
	}
	if reflect.PointerTo(t).Implements(textType) {
		return kindText
	}
	switch t.Kind() {
	case reflect.Struct:
		return kindBlock
	case reflect.Slice:
		return kindList
	case reflect.Interface:
		return kindOptions
	case reflect.String:
		return kindString
	case reflect.Bool:
		return kindBool
	case reflect.Float32, reflect.Float64:
		return kindNumber
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return kindInteger
	}
	panic("config: no way to write a " + t.String())
}

// String names the kind for messages and for the reference.
func (k kind) String() string {
	return [...]string{
		"block", "list", "block", "string", "string", "true or false", "whole number", "number",
		"duration", "seconds or duration", "text",
	}[k]
}

// expected is the kind with what to write.
func (k kind) expected() string {
	return [...]string{
		"a block of keys", "a list", "a block of keys", "a string", "a string", "true or false", "a whole number", "a number",
		"a duration with a unit, such as 30s", "whole seconds or a duration with a unit, such as 30s", "a string",
	}[k]
}

// block reports whether an empty value may stand for the defaults.
func (k kind) block() bool { return k <= kindOptions }

// textual reports whether the kind is written as text.
func (k kind) textual() bool {
	switch k {
	case kindString, kindSecret, kindText, kindDuration, kindSeconds:
		return true
	}
	return false
}
