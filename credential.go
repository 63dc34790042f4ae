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

// Credentials is a source of one credential that may change while the bridge runs.
// Safe for concurrent use.
type Credentials interface {
	// Current returns the latest credential that could be read. A missing or empty one
	// is an error, never an empty Credential.
	Current() (Credential, error)
	// Changed returns a channel that is closed when Current may answer something else
	// than at the time of this call.
	Changed() <-chan struct{}
	// Close ends the watching. Current goes on to answer with the last one.
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
