package mqtt

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestFifoBehavesLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fifo[int]
		var model []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 2000).Draw(t, "n") {
					q.push(next)
					model = append(model, next)
					next++
				}
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				if got := q.pop(); got != model[0] {
					t.Fatalf("pop %d, want %d", got, model[0])
				}
				model = model[1:]
			},
			"drop": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				q.drop(n)
				model = model[n:]
			},
			"filter": func(*rapid.T) {
				keep := func(v int) bool { return v%3 != 0 }
				q.filter(keep)
				model = slices.DeleteFunc(slices.Clone(model), func(v int) bool { return !keep(v) })
			},
			"": func(t *rapid.T) {
				if q.len() != len(model) {
					t.Fatalf("length %d, want %d", q.len(), len(model))
				}
				for i, want := range model {
					if got := *q.at(i); got != want {
						t.Fatalf("item %d is %d, want %d", i, got, want)
					}
				}
			},
		})
	})
}
