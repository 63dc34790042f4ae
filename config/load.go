package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/gobridge/gobridge"
)

const (
	// maxBytes is the largest config file.
	maxBytes = 4 << 20
	// maxDepth is how deep blocks and lists may be nested.
	maxDepth = 64
)

// Load reads a config file and checks it. name stands in the diagnostics. The
// file is nil when one of them is an error; else its spec is complete, with every
// default filled in.
func Load(name string, data []byte, kinds *gobridge.Kinds) (*File, []Diagnostic) {
	d := &decoder{
		report:     report{file: name, faulty: map[string]bool{}},
		env:        os.LookupEnv,
		places:     map[string]position{},
		options:    map[string]*yaml.Node{},
		later:      later,
		everywhere: keyIndex(kinds),
		open:       map[*yaml.Node]bool{},
	}
	f := newFile()
	root := d.parse(data)
	if root == nil {
		return nil, d.list
	}
	if root.Kind != yaml.MappingNode {
		d.fault(root, "", "expected a block of keys, found "+d.found(root), "gobridge init writes a config to start from")
		return nil, d.list
	}
	d.value(root, reflect.ValueOf(f).Elem(), field{}, "")
	d.decodeOptions(&f.Spec, kinds)
	if d.aliased > maxAliased {
		return nil, d.sorted()
	}
	d.findRedacted(reflect.ValueOf(f).Elem(), f)

	problem := func(p gobridge.Problem) {
		if d.explained(p.Path) {
			return
		}
		p.What, p.Hint = hide(p.What, d.subs), hide(p.Hint, d.subs)
		d.add(d.place(p.Path), p)
	}
	f.check(problem)
	for _, p := range f.Spec.Check(kinds) {
		problem(p)
	}
	ds := d.sorted()
	if HasErrors(ds) {
		return nil, ds
	}
	return f, ds
}

// parse returns the root of the only document, or nil after reporting why there
// is none.
func (d *decoder) parse(data []byte) *yaml.Node {
	if len(data) > maxBytes {
		d.add(position{}, gobridge.Problem{What: fmt.Sprintf("larger than %d MiB", maxBytes>>20), Hint: "this is hardly a config"})
		return nil
	}
	if len(bytes.TrimSpace(data)) == 0 {
		d.add(position{}, gobridge.Problem{What: "the file is empty", Hint: "gobridge init writes a commented one"})
		return nil
	}
	var doc yaml.Node
	err := yaml.Load(data, &doc, yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		at, what := syntaxError(err)
		d.add(at, gobridge.Problem{What: what})
		return nil
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		d.add(position{}, gobridge.Problem{What: "the file is empty", Hint: "gobridge init writes a commented one"})
		return nil
	}
	return doc.Content[0]
}

// syntaxError describes an error of the YAML reader. Its texts are repeated only
// where they cannot hold a piece of the file: a password that begins with * or !
// is an alias or a tag to it.
func syntaxError(err error) (position, string) {
	le, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return position{}, "not valid YAML"
	}
	at := position{le.Mark.Line, le.Mark.Column}
	switch {
	case strings.Contains(le.Message, "anchor"):
		return at, "not valid YAML: unknown anchor (text that begins with * or & needs quotes)"
	case strings.Contains(le.Message, "tag"):
		return at, "not valid YAML: unknown tag (text that begins with ! needs quotes)"
	case strings.Contains(le.Message, "multiple"):
		return at, "more than one YAML document (write one document in each file)"
	case strings.Contains(le.Message, "no documents"):
		return at, "the file is empty (gobridge init writes a commented one)"
	}
	what := "not valid YAML: " + strings.TrimPrefix(le.Message, "yaml: ")
	if le.ContextMsg != "" {
		what += " " + le.ContextMsg
	}
	return at, what
}

// decodeOptions reads the options blocks into the options structs of their
// kinds. A block whose kind is unknown stays unread: Spec.Check reports the kind.
func (d *decoder) decodeOptions(s *gobridge.Spec, kinds *gobridge.Kinds) {
	for role, store := range map[string]*gobridge.StoreSpec{
		"outbox":                &s.Stores.Outbox,
		"dlq":                   &s.Stores.DLQ,
		"replay_ledger":         &s.Stores.ReplayLedger,
		"managed_subscriptions": &s.Stores.ManagedSubscriptions,
		"lease":                 &s.Stores.Lease,
	} {
		d.storeOptions(role, store, kinds)
	}

	transports := map[string]*gobridge.Transport{}
	for i := range s.Sessions {
		sess := &s.Sessions[i]
		t := kinds.Transport(sess.Transport)
		transports[sess.ID] = t
		if t != nil {
			sess.Options = d.readOptions(fmt.Sprintf("sessions[%d].options", i), t.SessionOptions)
		}
	}
	transport := func(sessionID, name string) *gobridge.Transport {
		if sessionID != "" {
			return transports[sessionID]
		}
		return kinds.Transport(name)
	}
	receiver := func(r *gobridge.ReceiverSpec, path string) {
		if t := transport(r.SessionID, r.Transport); t != nil {
			r.Options = d.readOptions(path+".options", t.ReceiverOptions)
		}
	}
	sender := func(snd *gobridge.SenderSpec, path string) {
		if t := transport(snd.SessionID, snd.Transport); t != nil {
			snd.Options = d.readOptions(path+".options", t.SenderOptions)
		}
	}
	for i := range s.Receivers {
		receiver(&s.Receivers[i], fmt.Sprintf("receivers[%d]", i))
	}
	for i := range s.Senders {
		sender(&s.Senders[i], fmt.Sprintf("senders[%d]", i))
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		if r.Receiver != nil {
			receiver(r.Receiver, fmt.Sprintf("routes[%d].receiver", i))
		}
		for j := range r.Bindings {
			if snd := r.Bindings[j].Sender; snd != nil {
				sender(snd, fmt.Sprintf("routes[%d].bindings[%d].sender", i, j))
			}
		}
	}
}

func (d *decoder) storeOptions(role string, s *gobridge.StoreSpec, kinds *gobridge.Kinds) {
	path := "stores." + role + ".options"
	if d.options[path] == nil {
		return // Spec.Check gives the kind's defaults
	}
	for _, k := range kinds.Stores(role) {
		if k.Name == cmp.Or(s.Type, kinds.DefaultStore(role)) {
			s.Options = d.readOptions(path, k.Options)
		}
	}
}

// readOptions returns the options struct of a kind, filled from the block at
// path; nil when the kind has no options.
func (d *decoder) readOptions(path string, options func() any) any {
	n := d.options[path]
	delete(d.options, path)
	if options == nil {
		if n != nil && len(n.Content) > 0 {
			d.fault(n, path, "there are no options here", "remove the block")
		}
		return nil
	}
	opts := options()
	if n != nil {
		d.value(n, reflect.ValueOf(opts).Elem(), field{}, path)
	}
	return opts
}

// place returns where a path stands in the file; what is missing stands where the
// block does in which it is missed.
func (d *decoder) place(path string) position {
	for path != "" {
		if p, ok := d.places[path]; ok {
			return p
		}
		path = parent(path)
	}
	return position{1, 1}
}

// findRedacted marks the file when a secret in it is one that was printed.
func (d *decoder) findRedacted(v reflect.Value, f *File) {
	switch v.Kind() {
	case reflect.String:
		f.Redacted = f.Redacted || strings.HasSuffix(v.String(), "?"+gobridge.Redacted)
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			d.findRedacted(v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			d.findRedacted(v.Index(i), f)
		}
	case reflect.Struct:
		if s, ok := v.Interface().(gobridge.Secret); ok {
			f.Redacted = f.Redacted || s.Reveal() == gobridge.Redacted
			return
		}
		for sf, fv := range v.Fields() {
			if sf.IsExported() {
				d.findRedacted(fv, f)
			}
		}
	}
}
