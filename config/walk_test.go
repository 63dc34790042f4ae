package config

import (
	"slices"
	"testing"

	"github.com/gobridge/gobridge/kinds"
)

func TestEveryKeyIsDescribed(t *testing.T) {
	t.Parallel()
	for _, b := range walk(kinds.All()) {
		seen := map[string]bool{}
		for _, f := range b.fields {
			at := join(b.path, f.key)
			if f.doc == "" {
				t.Errorf("%s has no doc tag", at)
			}
			if seen[f.key] {
				t.Errorf("%s stands twice", at)
			}
			seen[f.key] = true
			if f.enum != nil && f.def != "" && !f.derived && !slices.Contains(f.enum, f.def) {
				t.Errorf("%s: default %s is none of %v", at, f.def, f.enum)
			}
			if f.required && f.def != "" {
				t.Errorf("%s is required and has a default", at)
			}
		}
	}
}
