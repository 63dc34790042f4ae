package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/gobridge/gobridge"
)

const envScheme = "env"

var (
	envPrefix    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	errEnvPrefix = errors.New("write env://PREFIX with letters, digits and _; it stands for PREFIX_USERNAME, PREFIX_PASSWORD, PREFIX_CA, PREFIX_CERT and PREFIX_KEY")
)

// EnvKind is env://PREFIX.
func EnvKind() *gobridge.CredentialKind {
	return &gobridge.CredentialKind{
		Scheme: envScheme,
		Check: func(uri string) error {
			_, err := prefixOf(uri)
			return err
		},
		Open: openEnv,
	}
}

func prefixOf(uri string) (string, error) {
	prefix, ok := strings.CutPrefix(uri, envScheme+"://")
	if !ok || !envPrefix.MatchString(prefix) {
		return "", errEnvPrefix
	}
	return prefix, nil
}

// environment is a credential that cannot change.
type environment struct {
	cred gobridge.Credential
	err  error
}

func openEnv(_ context.Context, uri string, _ gobridge.Env) (gobridge.Credentials, error) {
	prefix, err := prefixOf(uri)
	if err != nil {
		return nil, err
	}
	value := func(name string) string { return os.Getenv(prefix + "_" + name) }
	e := &environment{cred: gobridge.Credential{
		Username: value("USERNAME"), Password: gobridge.NewSecret(value("PASSWORD")),
		CA: value("CA"), Cert: value("CERT"), Key: gobridge.NewSecret(value("KEY")),
	}}
	if e.cred.IsZero() {
		e.err = fmt.Errorf("credential %s: none of %s_USERNAME, _PASSWORD, _CA, _CERT and _KEY is set", uri, prefix)
	}
	return e, nil
}

func (e *environment) Current() (gobridge.Credential, error) { return e.cred, e.err }
func (e *environment) Changed() <-chan struct{}              { return nil }
func (e *environment) Close() error                          { return nil }
