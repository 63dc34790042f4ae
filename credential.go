package gobridge

import "context"

// Credential is what proves to a broker who the bridge is. Each part is optional.
type Credential struct {
	Username string
	Password Secret
	// CA, Cert and Key are PEM text. CA replaces the authorities of the system.
	CA, Cert string
	Key      Secret
}

// Equal reports whether both say the same.
func (c Credential) Equal(o Credential) bool {
	return c.Username == o.Username && c.CA == o.CA && c.Cert == o.Cert && c.Password.Equal(o.Password) && c.Key.Equal(o.Key)
}

// IsZero reports whether no part is set.
func (c Credential) IsZero() bool { return c.Equal(Credential{}) }

// Credentials is a source of one credential that may change while the bridge runs.
// Safe for concurrent use.
type Credentials interface {
	// Current returns the latest credential that could be read. The error says why what
	// is there now cannot be used: with a zero Credential there never was one that
	// could, else the credential is the last good one. It holds no secret. A missing or
	// empty credential is an error, never a zero Credential without one.
	Current() (Credential, error)
	// Changed returns a channel that is closed when Current may answer something else
	// than at the time of this call. Nil: it never will.
	Changed() <-chan struct{}
	// Close ends the watching and waits for it. Current goes on to answer with the last
	// one.
	Close() error
}

// CredentialKind is one scheme of credentials_uri.
type CredentialKind struct {
	// Scheme is the part before "://".
	Scheme string
	// Check reports what is wrong with a URI by its form alone.
	Check func(uri string) error
	// Open reads the credential and begins to watch it. A credential that is missing
	// now is no error of Open: Current says so until it is there.
	Open func(ctx context.Context, uri string, env Env) (Credentials, error)
}
