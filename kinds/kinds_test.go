package kinds_test

import (
	"reflect"
	"testing"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/kinds"
)

func TestEveryKindHasAName(t *testing.T) {
	t.Parallel()
	all := kinds.All()
	seen := map[string]bool{}
	check := func(what, name string, options ...func() any) {
		if name == "" || seen[what+name] {
			t.Errorf("%s %q: no name, or a second one of it", what, name)
		}
		seen[what+name] = true
		for _, o := range options {
			if o == nil {
				continue
			}
			if first := reflect.ValueOf(o()); first.Kind() != reflect.Pointer || first.Elem().Kind() != reflect.Struct {
				t.Errorf("%s %s: options are %s, want a pointer to a struct", what, name, first.Type())
			}
			if a, b := o(), o(); reflect.TypeOf(a).Elem().Size() > 0 && a == b {
				t.Errorf("%s %s: two sessions would share their options", what, name)
			}
		}
	}
	for _, k := range all.Transports {
		check("transport", k.Name, k.SessionOptions, k.ReceiverOptions, k.SenderOptions)
	}
	for _, k := range all.DLQs {
		check("dead-letter queue", k.Name, k.Options)
	}
	for _, k := range all.Ledgers {
		check("ledger", k.Name, k.Options)
	}
	for _, k := range all.Leases {
		check("lease store", k.Name, k.Options)
	}
	if !seen["dead-letter queue"+gobridge.StoreMemory] || !seen["ledger"+gobridge.StoreMemory] {
		t.Error("the stores that an unset type stands for are missing")
	}
}
