package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
)

// login is what one attempt to connect proves its identity with: the options of the
// session and, where they say nothing, the credential of credentials_uri.
type login struct {
	cred     gobridge.Credential // of credentials_uri
	username string
	password gobridge.Secret
	tls      *tls.Config // nil without a secure broker
}

// keyring chooses the login of each attempt (D10): the latest that can be used; after
// the broker refused it, in turn with the one that it accepted before. Safe for
// concurrent use.
type keyring struct {
	set    *SessionSettings
	secure bool // a broker is reached by TLS
	source gobridge.Credentials
	log    *slog.Logger

	mu       sync.Mutex
	current  *login // nil: there never was one that could be used
	previous *login // accepted before current was; nil: none
	accepted *login // the last one that the broker accepted
	rejected bool   // the broker refused current
	fallback bool   // the next attempt is with previous
	rotating bool   // current replaced another and was not accepted yet
	fault    error  // why the newest credential is not in use
	stale    chan struct{}
}

// newKeyring reads the TLS files that the options name and the credential. Only a fault
// of the options is an error: a credential may get better.
func newKeyring(set *SessionSettings, brokers []*url.URL, source gobridge.Credentials, log *slog.Logger) (*keyring, error) {
	k := &keyring{
		set: set, source: source, log: log, stale: make(chan struct{}, 1),
		secure: slices.ContainsFunc(brokers, func(u *url.URL) bool { return schemes[u.Scheme].secure }),
	}
	l, err := k.login(gobridge.Credential{})
	if err != nil {
		return nil, err
	}
	if source == nil {
		k.current = l
		return k, nil
	}
	k.renew()
	return k, nil
}

// login merges the options and a credential. What the options say wins, field by
// field; certificate and key are one field.
func (k *keyring) login(cred gobridge.Credential) (*login, error) {
	l := &login{cred: cred, username: k.set.Username, password: k.set.Password}
	if l.username == "" {
		l.username = cred.Username
	}
	if !l.password.IsSet() {
		l.password = cred.Password
	}
	if !k.secure {
		return l, nil
	}
	var err error
	l.tls, err = buildTLS(&k.set.TLS, cred)
	return l, err
}

// refusedHint says what to do about a broker that refuses l with reason, empty where
// the reason is none of the login. Brokers answer a wrong password with 0x86 or 0x87.
func (l *login) refusedHint(reason byte) string {
	if reasons[reason].code != gobridge.CodeNotAuthorized || reason == packets.ConnackBadAuthenticationMethod {
		return ""
	}
	switch {
	case l.username != "" || l.password.IsSet():
		return "check username and password, then the broker's access rules for this client"
	case l.tls != nil && len(l.tls.Certificates) > 0:
		return "the login is by client certificate alone: check the broker's access rules for it, or set username and password, or credentials_uri"
	}
	return "the login is anonymous, which the broker may not permit: set username and password, or credentials_uri"
}

// validNow reports why the client certificate cannot be used at the moment.
func (l *login) validNow() error {
	if l.tls == nil || len(l.tls.Certificates) == 0 {
		return nil
	}
	leaf, now := l.tls.Certificates[0].Leaf, time.Now()
	switch {
	case leaf == nil:
		return nil
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the client certificate has expired on %s", leaf.NotAfter.UTC().Format(time.DateTime))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the client certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.DateTime))
	}
	return nil
}

// renew reads the credential anew and reports whether there is another login than
// before. A credential that cannot be used leaves the one before in place. One that
// is out of its time is used where there is no other: the clock may be wrong.
func (k *keyring) renew() bool {
	cred, err := k.source.Current()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.broken(err)
		return false
	}
	if k.current != nil && k.current.cred.Equal(cred) {
		if !k.rejected {
			k.fault = nil
		}
		return false
	}
	l, err := k.login(cred)
	if err == nil && k.current != nil {
		err = l.validNow()
	}
	if err != nil {
		k.broken(err)
		return false
	}
	if k.accepted != nil && k.accepted.cred.Equal(cred) { // back to what was there before
		l = k.accepted
	}
	k.rotating = k.current != nil && l != k.accepted
	k.current, k.previous = l, nil
	if l != k.accepted {
		k.previous = k.accepted
	}
	k.rejected, k.fallback, k.fault = false, false, nil
	return true
}

// broken takes note of a credential that cannot be used. Called with mu held.
func (k *keyring) broken(err error) {
	known := k.fault != nil && k.fault.Error() == err.Error()
	k.fault = err
	if !known {
		k.log.Error("credential cannot be used", "err", err, "keeps_the_last_one", k.current != nil)
	}
}

// next is the login of the next attempt. The error says why there is none: an attempt
// without is never made.
func (k *keyring) next() (*login, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.current == nil:
		hint := "it is read again as soon as it changes"
		if k.source.Changed() == nil {
			hint = "it is read at start only: set it and restart"
		}
		return nil, &gobridge.Error{
			Code: gobridge.CodeNotAuthorized, Class: gobridge.ClassPermanent, Outage: true,
			Op: "no credential to connect with", Err: k.fault, Hint: hint,
		}
	case k.fallback:
		return k.previous, nil
	}
	return k.current, nil
}

// refused takes note of a failed attempt and reports whether to try the previous login
// at once: the failure may lie in the new one.
func (k *keyring) refused(l *login, fault *gobridge.Error) (again bool) {
	_, verify := errors.AsType[*tls.CertificateVerificationError](fault)
	if l == nil || fault.Code != gobridge.CodeNotAuthorized && !verify {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.previous != nil && l == k.previous:
		k.fallback = false
	case k.previous != nil && l == k.current:
		if !k.rejected {
			k.log.Error("broker refuses the new credential: trying the previous one in turn", "err", fault)
		}
		k.rejected, k.fallback = true, true
		k.fault = fmt.Errorf("new credential is refused, the previous one is tried in turn: %w", fault)
		return true
	}
	return false
}

// use takes note of a login that the broker accepted. rotated: it is a new one. stale:
// it was replaced while it was on its way.
func (k *keyring) use(l *login) (rotated, stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.accepted, k.fallback = l, false
	if l != k.current {
		k.previous = l
		return false, !k.rejected
	}
	rotated = k.rotating
	if k.rejected {
		k.fault = nil
	}
	k.previous, k.rotating, k.rejected = nil, false, false
	return rotated, false
}

// latest is the login that a connection should have.
func (k *keyring) latest() *login {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// complaint says what is wrong with the newest credential, empty for nothing.
func (k *keyring) complaint() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.fault == nil:
		return ""
	case k.rejected, k.current == nil:
		return k.fault.Error()
	}
	return "new credential is broken: " + k.fault.Error()
}

// watchCredentials brings the session to each new credential until ctx ends.
func (s *session) watchCredentials(ctx context.Context) {
	if s.keyring.source == nil {
		return
	}
	for {
		changed := s.keyring.source.Changed()
		if s.keyring.renew() {
			s.log.Info("credential has changed")
			s.relogin(ctx)
		}
		select {
		case <-changed:
		case <-s.keyring.stale:
			s.relogin(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// relogin makes the session connect with the latest login: once, and not at all where
// a reconnect for another reason has done it.
func (s *session) relogin(ctx context.Context) {
	if s.linked() == nil { // whoever waits for a connection may hold the gate
		s.backoff.wake()
		return
	}
	if s.gate.acquire(ctx) != nil {
		return
	}
	defer s.gate.release()
	switch c := s.linked(); {
	case c == nil:
		s.backoff.wake()
	case c.login != s.keyring.latest():
		s.recycle("the credential has changed")
	}
}

// linked is the current connection, nil while there is none.
func (s *session) linked() *linkConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// loggedIn takes note of an accepted login.
func (s *session) loggedIn(l *login) {
	rotated, stale := s.keyring.use(l)
	if rotated {
		s.count.rotations.Inc()
		s.log.Info("new credential is in use")
	}
	if stale {
		select {
		case s.keyring.stale <- struct{}{}:
		default: // it is told already
		}
	}
}
