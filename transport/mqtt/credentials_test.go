package mqtt

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// rotating is a source of credentials whose credential the test sets.
type rotating struct {
	mu      sync.Mutex
	cred    gobridge.Credential
	err     error
	changed chan struct{}
}

func newRotating(cred gobridge.Credential, err error) *rotating {
	return &rotating{cred: cred, err: err, changed: make(chan struct{})}
}

func (r *rotating) Current() (gobridge.Credential, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cred, r.err
}

func (r *rotating) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *rotating) Close() error { return nil }

func (r *rotating) set(cred gobridge.Credential, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.cred = cred
	}
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func password(p string) gobridge.Credential {
	return gobridge.Credential{Username: "edge", Password: gobridge.NewSecret(p)}
}

// doorkeeper is a broker that accepts some passwords and keeps sessions.
type doorkeeper struct {
	*bridgetest.FakeBroker
	mu      sync.Mutex
	accepts []string
	tried   []string
}

func newDoorkeeper(t *testing.T, accepts ...string) *doorkeeper {
	t.Helper()
	d := &doorkeeper{FakeBroker: bridgetest.NewFakeBroker(t), accepts: accepts}
	d.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, c *packets.Connect, ca *packets.Connack) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tried = append(d.tried, string(c.Password))
		if !slices.Contains(d.accepts, string(c.Password)) {
			ca.ReasonCode, ca.SessionPresent = 0x86, false
		}
	}})
	t.Cleanup(d.CutAll)
	return d
}

func (d *doorkeeper) accept(passwords ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepts = passwords
}

func (d *doorkeeper) wantTried(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(want, d.tried); diff != "" {
		t.Errorf("passwords tried (-want +got):\n%s", diff)
	}
}

// rotated starts a session on the broker with that source.
func (d *doorkeeper) session(t *testing.T, source *rotating) *running {
	t.Helper()
	use := testUse(d.URL(), gobridge.ModePersistent, topics(1, "a/#"), func(s *SessionSettings, _ *SenderSettings) {
		s.AllowPlaintextCredentials = true
	})
	use.Session.CredentialsURI = "file:///x"
	r := startWith(t, use, gobridge.Env{Credentials: source})
	r.receive(t)
	return r
}

// Covers: S1-518
func TestChangedPasswordTakesOneReconnectThatKeepsTheSession(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one", "two")
	source := newRotating(password("one"), nil)
	r := d.session(t, source)
	r.awaitReady(t)
	source.set(password("one"), nil) // the file was written, and says the same
	source.set(password("two"), nil)
	eventually(t, "the new one is in use", func() bool { return r.value(metric.CredentialRotations) == 1 })
	r.awaitReady(t)
	d.wantTried(t, "one", "two")
	r.wantValue(t, 1, metric.MQTTReconnects)
	r.wantValue(t, 0, metric.MQTTSessionResumeLost)
	if h := r.Health(); !h.SessionPresent || h.LastError != "" {
		t.Errorf("health: %+v", h)
	}
}

// Covers: S1-519
func TestBrokenCredentialLeavesTheOldInPlace(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one", "two")
	source := newRotating(password("one"), nil)
	r := d.session(t, source)
	r.awaitReady(t)
	source.set(gobridge.Credential{}, errors.New("half written"))
	eventually(t, "the fault is told", func() bool { return r.Health().LastError == "new credential is broken: half written" })
	r.awaitReady(t)
	d.wantTried(t, "one")
	source.set(password("one"), nil)
	eventually(t, "the fault is gone", func() bool { return r.Health().LastError == "" })
	d.wantTried(t, "one")
	r.wantValue(t, 0, metric.CredentialRotations)
}

// A credential that cannot be read yet is no anonymous login.
func TestWithoutACredentialNobodyConnects(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one", "")
	source := newRotating(gobridge.Credential{}, errors.New("no such file"))
	r := d.session(t, source)
	eventually(t, "the reason is told", func() bool {
		h := r.Health()
		return strings.Contains(strings.Join(h.Reasons, "\n"), "no credential to connect with: no such file")
	})
	d.wantTried(t)
	source.set(password("one"), nil)
	r.awaitReady(t)
	d.wantTried(t, "one")
	r.wantValue(t, 0, metric.CredentialRotations)
}

func TestRefusedCredentialWaitsForItsChange(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "right")
	source := newRotating(password("wrong"), nil)
	r := d.session(t, source) // reconnect_max_delay is 2 minutes
	eventually(t, "the refusal is told", func() bool { return strings.Contains(r.Health().LastError, "0x86") })
	began := time.Now()
	source.set(password("right"), nil)
	r.awaitReady(t)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("connected %v after the change", took)
	}
	d.wantTried(t, "wrong", "right")
}

// D10: a broker that does not know the new credential yet still lets the bridge in.
//
// Covers: S1-519
func TestRefusedNewCredentialIsTriedInTurnWithThePreviousOne(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one")
	source := newRotating(password("one"), nil)
	r := d.session(t, source)
	r.awaitReady(t)
	source.set(password("two"), nil)
	eventually(t, "the previous one is in use again", func() bool {
		h := r.Health()
		return h.ServiceLevel == gobridge.LevelFull && strings.Contains(h.LastError, "new credential is refused")
	})
	r.wantValue(t, 0, metric.CredentialRotations)
	d.wantTried(t, "one", "two", "one")

	d.accept("two") // the broker follows, and ends the old login
	d.CutAll()
	eventually(t, "the new one is in use", func() bool { return r.value(metric.CredentialRotations) == 1 })
	r.awaitReady(t)
	d.wantTried(t, "one", "two", "one", "two")
	if h := r.Health(); h.LastError != "" {
		t.Errorf("health: %+v", h)
	}
}

// Both refused is a permanent cause: the broker is left alone until something changes.
func TestBothCredentialsRefusedIsPermanent(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one")
	source := newRotating(password("one"), nil)
	r := d.session(t, source)
	r.awaitReady(t)
	d.accept("three")
	source.set(password("two"), nil)
	eventually(t, "both are refused", func() bool { return r.value(metric.MQTTConnectFailures, "NOT_AUTHORIZED") == 2 })
	time.Sleep(300 * time.Millisecond) // many times reconnect_delay
	d.wantTried(t, "one", "two", "one")
	if h := r.Health(); !strings.Contains(strings.Join(h.Reasons, "\n"), "broker refuses the connection") {
		t.Errorf("health: %+v", h)
	}
	source.set(password("three"), nil)
	r.awaitReady(t)
	d.wantTried(t, "one", "two", "one", "three")
	r.wantValue(t, 1, metric.CredentialRotations)
}

// Covers: S1-521
func TestCredentialThatChangesDuringAnOutageIsUsedAtTheNextConnect(t *testing.T) {
	t.Parallel()
	d := newDoorkeeper(t, "one")
	proxy := bridgetest.NewProxy(t, d.Addr())
	source := newRotating(password("one"), nil)
	use := testUse(proxy.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
		s.AllowPlaintextCredentials = true
		s.ReconnectDelay, s.ReconnectMaxDelay = time.Minute, time.Minute
	})
	r := startWith(t, use, gobridge.Env{Credentials: source})
	r.awaitReady(t)
	d.accept("two")
	proxy.Refuse(true)
	proxy.Cut()
	eventually(t, "the connection is lost", func() bool { return !r.Health().Connected })
	proxy.Refuse(false)
	source.set(password("two"), nil) // wakes the wait of a minute
	r.awaitReady(t)
	d.wantTried(t, "one", "two")
	r.wantValue(t, 1, metric.CredentialRotations)
}

// certPEM is a client certificate of its own authority, valid until then, with its key.
func certPEM(t *testing.T, until time.Time) (cert, key string) {
	t.Helper()
	k := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client"},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", der), keyPEM(t, k)
}

func keyPEM(t *testing.T, k *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("PRIVATE KEY", der)
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// What can be checked without the broker leaves the credential before in place.
func TestKeyringKeepsTheLastLoginThatCanBeUsed(t *testing.T) {
	t.Parallel()
	cert, key := certPEM(t, time.Now().Add(time.Hour))
	expired, expiredKey := certPEM(t, time.Now().Add(-time.Hour))
	early, earlyKey := certPEM(t, time.Now().Add(10*time.Hour))
	secret := gobridge.NewSecret
	set := &SessionSettings{BrokerURL: "tls://broker:8883"}
	brokers, err := set.Brokers()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cred gobridge.Credential
		want string
	}{
		"other key":     {gobridge.Credential{Cert: cert, Key: secret(expiredKey)}, "does not match"},
		"no key":        {gobridge.Credential{Cert: cert}, "one of them is missing"},
		"no PEM":        {gobridge.Credential{Cert: "x", Key: secret("hunter2")}, "cert and key of the credential"},
		"bad authority": {gobridge.Credential{CA: "x"}, "ca of the credential"},
		"expired":       {gobridge.Credential{Cert: expired, Key: secret(expiredKey)}, "has expired"},
		"not valid yet": {gobridge.Credential{Cert: early, Key: secret(earlyKey)}, "not valid before"},
	} {
		t.Run(name, func(t *testing.T) {
			source := newRotating(gobridge.Credential{Cert: cert, Key: secret(key)}, nil)
			k, err := newKeyring(set, brokers, source, testLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			before := k.latest()
			source.set(c.cred, nil)
			if k.renew() || k.latest() != before {
				t.Error("the broken one is used")
			}
			if got := k.complaint(); !strings.Contains(got, "new credential is broken: ") || !strings.Contains(got, c.want) || strings.Contains(got, "hunter2") {
				t.Errorf("complaint %q, want %q", got, c.want)
			}
		})
	}
	// The clock may be wrong: where there is no other, the broker is to judge.
	k, err := newKeyring(set, brokers, newRotating(gobridge.Credential{Cert: expired, Key: secret(expiredKey)}, nil), testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := k.next(); err != nil || len(l.tls.Certificates) != 1 {
		t.Errorf("an expired first certificate: %v, %v", l, err)
	}
}

func TestOptionsWinOverTheCredentialFieldByField(t *testing.T) {
	t.Parallel()
	set := &SessionSettings{BrokerURL: "tcp://broker:1883", Username: "inline"}
	k, err := newKeyring(set, nil, newRotating(password("from the file"), nil), testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := k.next()
	if err != nil || l.username != "inline" || l.password.Reveal() != "from the file" || l.tls != nil {
		t.Errorf("got %+v, %v", l, err)
	}
	set.Username, set.Password = "", gobridge.NewSecret("inline")
	if k, err = newKeyring(set, nil, newRotating(password("from the file"), nil), testLogger(t)); err != nil {
		t.Fatal(err)
	}
	if l, err = k.next(); err != nil || l.username != "edge" || l.password.Reveal() != "inline" {
		t.Errorf("got %+v, %v", l, err)
	}
}
