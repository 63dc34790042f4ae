package gobridge

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted stands wherever a [Secret] would be printed.
const Redacted = "[redacted]"

// Secret is a value that never prints itself: fmt, slog, JSON and YAML show
// [Redacted] (an unset secret shows nothing). Only Reveal returns the value. The
// value sits behind a pointer, so that printing a struct that holds a Secret in
// an unexported field shows an address at most.
type Secret struct{ value *string }

// NewSecret returns a secret with that value; the empty string is an unset
// secret.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{&value}
}

// Reveal returns the value itself, for the packet or header that needs it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsSet reports whether there is a value.
func (s Secret) IsSet() bool { return s.value != nil }

// Equal reports whether both secrets hold the same value.
func (s Secret) Equal(o Secret) bool { return s.Reveal() == o.Reveal() }

// String returns Redacted, or nothing for an unset secret.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return Redacted
}

// Format implements fmt.Formatter, so that no verb reaches the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: it takes the value.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}
