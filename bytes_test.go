package gobridge

import "testing"

func TestBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text  string
		want  Bytes
		shown string
	}{
		{"1GiB", 1 << 30, "1GiB"},
		{"64 KiB", 64 << 10, "64KiB"},
		{"500MB", 500e6, "500000000B"},
		{"10kB", 10_000, "10000B"},
		{"4096", 4096, "4KiB"},
		{"0", 0, "0B"},
		{"7B", 7, "7B"},
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(tt.text)); err != nil || got != tt.want || got.String() != tt.shown {
			t.Errorf("%q is %d (%s), %v; want %d (%s)", tt.text, got, got, err, tt.want, tt.shown)
		}
		text, _ := got.MarshalText()
		var again Bytes
		if err := again.UnmarshalText(text); err != nil || again != got {
			t.Errorf("%s came back as %d, %v", text, again, err)
		}
	}
	for _, text := range []string{"", "GiB", "1.5GiB", "1gib", "9999999TiB", "one"} {
		if err := new(Bytes).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
