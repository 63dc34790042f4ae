package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// keyFile is a credential file that a bridge watches.
type keyFile struct {
	t    *testing.T
	path string
}

func newKeyFile(t *testing.T, content doc) *keyFile {
	t.Helper()
	k := &keyFile{t, filepath.Join(t.TempDir(), "credential.json")}
	k.put(content)
	return k
}

func (k *keyFile) uri() string { return "file://" + filepath.ToSlash(k.path) }

// put replaces the file by a rename, as a careful operator does.
func (k *keyFile) put(content doc) {
	k.t.Helper()
	text, err := json.Marshal(content)
	if err == nil {
		err = os.WriteFile(k.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(k.path+".new", k.path)
	}
	if err != nil {
		k.t.Fatalf("write credential: %v", err)
	}
}

// login is the credential of the user that the bridge is at a broker with passwords.
func login(password string) doc { return doc{"username": "bridge", "password": password} }

// users are those of such a broker: the bridge and the test itself.
func users(password string) map[string]string {
	return map[string]string{"bridge": password, "checker": "checker"}
}

// pair is the credential of a client certificate.
func pair(certs *bridgetest.Certs, p bridgetest.KeyPair) doc {
	return doc{"ca": string(certs.CAPEM), "cert": string(p.CertPEM), "key": string(p.KeyPEM)}
}

// rotation is a bridge from a broker with passwords to one with client certificates,
// both credentials in files.
type rotation struct {
	source, dest *bridgetest.Mosquitto
	certs        *bridgetest.Certs
	password     *keyFile
	certificate  *keyFile
	cfg          *config
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	certs := bridgetest.NewCerts(t)
	r := &rotation{
		certs:       certs,
		source:      bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Users: users("S3cr3t-0")}),
		dest:        bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{TLS: certs, RequireClientCert: true}),
		password:    newKeyFile(t, login("S3cr3t-0")),
		certificate: newKeyFile(t, pair(certs, certs.Client)),
	}
	r.cfg = between(t, r.source.URL(), r.dest.URL())
	r.cfg.source["allow_plaintext_credentials"] = true
	r.cfg.sourceSession["credentials_uri"] = r.password.uri()
	r.cfg.destSession["credentials_uri"] = r.certificate.uri()
	return r
}

func (r *rotation) publish(t *testing.T, n int, rate float64) *bridgetest.Publisher {
	t.Helper()
	return bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: r.source.Addr(), Username: "checker", Password: "checker", Topic: "in/x", N: n, QoS: 1, Rate: rate, PayloadSize: 100,
	})
}

func (r *rotation) collect(t *testing.T) *bridgetest.Collector {
	t.Helper()
	return bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: r.dest.Addr(), Filter: "out/#", TLS: r.certs.ClientTLS(r.certs.Client)})
}

func rotations(session string) (name, label string) {
	return "credential_rotations", fmt.Sprintf("session_id=%q", session)
}

// Password and client certificate change under load: nothing is lost, and each change
// costs one reconnect that keeps the session.
//
// Covers: S1-518, S1-519, S1-520
func TestCredentialsRotateUnderLoad(t *testing.T) {
	t.Parallel()
	rounds, n := pick(3, 10), pick(8_000, 40_000)
	r := newRotation(t)
	col := r.collect(t)
	b := r.cfg.start(t)
	b.waitReady("")
	pub := r.publish(t, n, 1000)
	for i := 1; i <= rounds; i++ {
		mustCount(t, col, n*i/(rounds+1), b, time.Minute)
		next := fmt.Sprintf("S3cr3t-%d", i)
		r.source.SetUsers(users(next)) // the old one is thrown out
		r.password.put(login(next))
		r.certificate.put(pair(r.certs, r.certs.Issue(bridgetest.CertConfig{Name: fmt.Sprintf("client-%d", i)})))
		for _, session := range []string{"source", "destination"} {
			name, label := rotations(session)
			b.expectCounter(float64(i), name, label)
		}
	}
	report := finish(t, pub, col, n, b, time.Minute)
	t.Logf("%d rotations of each: %v", rounds, report)
	nothingLost(t, report)
	for _, session := range []string{"source", "destination"} {
		if got := b.counter("mqtt_reconnects", fmt.Sprintf("session_id=%q", session)); got != float64(rounds) {
			t.Errorf("%s: %v reconnects for %d rotations", session, got, rounds)
		}
	}
	if lost := b.counter("mqtt_session_resume_lost"); lost > 0 {
		t.Errorf("%v sessions lost", lost)
	}
	b.waitReady("")
	b.conserved()
	b.stop()
	if strings.Contains(b.Stderr(), "S3cr3t") || strings.Contains(b.Stderr(), "PRIVATE KEY") {
		t.Error("a secret is in the log")
	}
}

// A key that does not belong to its certificate changes nothing but what is told.
//
// Covers: S1-519, S1-520
func TestBrokenPairKeepsTheOldOne(t *testing.T) {
	t.Parallel()
	const n = 200
	r := newRotation(t)
	col := r.collect(t)
	b := r.cfg.start(t)
	b.waitReady("")
	broken := pair(r.certs, r.certs.Client)
	broken["key"] = string(r.certs.Issue(bridgetest.CertConfig{Name: "another"}).KeyPEM)
	r.certificate.put(broken)
	b.eventually(patience, "the fault is told", func() bool {
		return strings.HasPrefix(b.sessionHealth("destination").LastError, "new credential is broken: ")
	})
	exactlyOnce(t, finish(t, r.publish(t, n, 0), col, n, b, patience))
	if got := b.counter("mqtt_reconnects"); got != 0 {
		t.Errorf("%v reconnects", got)
	}
	r.certificate.put(pair(r.certs, r.certs.Issue(bridgetest.CertConfig{Name: "good"})))
	name, label := rotations("destination")
	b.expectCounter(1, name, label)
	b.waitReady("")
	if e := b.sessionHealth("destination").LastError; e != "" {
		t.Errorf("last error %q after a good one", e)
	}
	b.stop()
}

// Covers: S1-521
func TestRotationDuringAnOutageRecoversByItself(t *testing.T) {
	t.Parallel()
	const n = 200
	r := newRotation(t)
	col := r.collect(t)
	b := r.cfg.start(t)
	b.waitReady("")
	r.source.Stop()
	r.dest.Stop()
	b.waitNotReady("source", patience)
	r.source.SetUsers(users("S3cr3t-1"))
	r.password.put(login("S3cr3t-1"))
	r.certificate.put(pair(r.certs, r.certs.Issue(bridgetest.CertConfig{Name: "next"})))
	r.source.Start()
	r.dest.Start()
	b.waitReady("")
	for _, session := range []string{"source", "destination"} {
		name, label := rotations(session)
		b.expectCounter(1, name, label)
	}
	exactlyOnce(t, finish(t, r.publish(t, n, 0), col, n, b, patience))
	b.stop()
}

// Refused credentials are tried again slowly, and at once when they change.
func TestRefusedCredentialIsFixedWithoutARestart(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	r.cfg.source["reconnect_max_delay"] = "2m"
	r.password.put(login("S3cr3t-wrong"))
	b := r.cfg.start(t)
	b.eventually(patience, "the refusal is told", func() bool {
		return strings.Contains(strings.Join(b.sessionHealth("source").Reasons, "\n"), "broker refuses the connection")
	})
	fixed := time.Now()
	r.password.put(login("S3cr3t-0"))
	b.waitReady("")
	took := time.Since(fixed)
	t.Logf("ready %v after the change", took.Round(time.Millisecond))
	if took > 2*time.Second {
		t.Errorf("ready after %v, want 2s", took)
	}
	if got := b.counter("mqtt_connect_failures", `session_id="source"`); got != 1 {
		t.Errorf("%v failed connects, want 1: the wait is the longest one at once", got)
	}
	b.stop()
}
