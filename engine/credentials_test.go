package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/gobridge/gobridge"
)

// vault is a credential source that notes what becomes of it.
type vault struct {
	gobridge.Credentials
	uri    string
	closed int
}

func (v *vault) Close() error {
	v.closed++
	return nil
}

func TestASessionGetsTheCredentialsThatItsURINames(t *testing.T) {
	v := &vault{}
	kind := &gobridge.CredentialKind{Scheme: "vault", Open: func(_ context.Context, uri string, _ gobridge.Env) (gobridge.Credentials, error) {
		v.uri = uri
		return v, nil
	}}
	e := &Engine{kinds: &gobridge.Kinds{Credentials: []*gobridge.CredentialKind{kind}}}
	open := func(uri string) (*slot, error) {
		s := &slot{use: &gobridge.SessionUse{Session: &gobridge.SessionSpec{ID: "a", CredentialsURI: uri}}}
		return s, e.openCredentials(s)
	}
	if s, err := open(""); err != nil || s.env.Credentials != nil {
		t.Errorf("without a URI: %v, %v", s.env.Credentials, err)
	}
	if s, err := open("vault://edge"); err != nil || s.env.Credentials != v || v.uri != "vault://edge" {
		t.Errorf("got %v of %q, %v", s.env.Credentials, v.uri, err)
	}
	kind.Open = func(context.Context, string, gobridge.Env) (gobridge.Credentials, error) {
		return nil, gobridge.ErrNotFound
	}
	if _, err := open("vault://edge"); !errors.Is(err, gobridge.ErrNotFound) {
		t.Errorf("a source that cannot be opened: %v", err)
	}
	if err := e.closeHandles(); err != nil || v.closed != 1 {
		t.Errorf("closed %d times, %v", v.closed, err)
	}
}
