package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/gobridge/gobridge"
)

// block is a block of keys at a place of the file.
type block struct {
	// path is where it stands, lists as [] (routes[].policy); the options of a kind
	// carry its name: sessions[].options (mqtt).
	path   string
	fields []field
	// options lists, for the field options of this block, the struct of each kind.
	options []optionsOf
	// same is the path of an earlier block of the same type, "" for the first.
	same string
}

// optionsOf is the options struct of one kind.
type optionsOf struct {
	kind string
	typ  reflect.Type
}

// walk returns the blocks of a config file, depth first. Each type is described
// where it is met first; options are described wherever they differ.
func walk(kinds *gobridge.Kinds) []block {
	w := walker{kinds: kinds, seen: map[reflect.Type]string{}}
	w.visit(reflect.TypeFor[File](), "")
	return w.blocks
}

type walker struct {
	kinds  *gobridge.Kinds
	seen   map[reflect.Type]string
	blocks []block
}

func (w *walker) visit(t reflect.Type, path string) {
	b := block{path: path, fields: fieldsOf(t), options: optionsAt(w.kinds, t, path), same: w.seen[t]}
	if b.same == "" {
		w.seen[t] = path
	}
	w.blocks = append(w.blocks, b)
	if b.same != "" && len(b.options) == 0 {
		return
	}
	for _, f := range b.fields {
		at := join(path, f.key)
		switch kindOf(f.typ) {
		case kindBlock:
			w.visit(deref(f.typ), at)
		case kindList:
			if item := f.typ.Elem(); kindOf(item) == kindBlock {
				w.visit(deref(item), at+"[]")
			}
		case kindOptions:
			for _, o := range b.options {
				if b.same == "" || w.seen[o.typ] == "" {
					w.visit(o.typ, at+" ("+o.kind+")")
				}
			}
		}
	}
}

// optionsAt returns the options structs that the field options of a block of type
// t at path may hold. Kinds without a key are left out.
func optionsAt(kinds *gobridge.Kinds, t reflect.Type, path string) []optionsOf {
	var found []optionsOf
	add := func(kind string, options func() any) {
		if options == nil {
			return
		}
		if o := reflect.TypeOf(options()).Elem(); len(fieldsOf(o)) > 0 {
			found = append(found, optionsOf{kind, o})
		}
	}
	switch t {
	case reflect.TypeFor[gobridge.SessionSpec]():
		for _, k := range kinds.Transports {
			add(k.Name, k.SessionOptions)
		}
	case reflect.TypeFor[gobridge.ReceiverSpec]():
		for _, k := range kinds.Transports {
			add(k.Name, k.ReceiverOptions)
		}
	case reflect.TypeFor[gobridge.SenderSpec]():
		for _, k := range kinds.Transports {
			add(k.Name, k.SenderOptions)
		}
	}
	if role, ok := strings.CutPrefix(path, "stores."); ok {
		for _, k := range kinds.Stores(role) {
			add(k.Name, k.Options)
		}
	}
	return found
}

// keyIndex maps every key of the config to the blocks that have it.
func keyIndex(kinds *gobridge.Kinds) map[string][]string {
	index := map[string][]string{}
	for _, b := range walk(kinds) {
		if b.same != "" {
			continue
		}
		for _, f := range b.fields {
			at := b.path
			if at == "" {
				at = "the top level"
			}
			if !slices.Contains(index[f.key], at) {
				index[f.key] = append(index[f.key], at)
			}
		}
	}
	return index
}

func deref(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}
