package mqtt

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
)

// authority is a certificate authority made for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = writePEM(t, name+".pem", "CERTIFICATE", der)
	return a
}

// issue returns the files of a certificate for the name and of its key.
func (a *authority) issue(name string) (certFile, keyFile string) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return writePEM(a.t, name+".cert.pem", "CERTIFICATE", der), writePEM(a.t, name+".key.pem", "PRIVATE KEY", keyDER)
}

// serverConfig is the configuration of a server with a certificate for the name.
func (a *authority) serverConfig(name string) *tls.Config {
	a.t.Helper()
	pair, err := loadPair(a.issue(name))
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, name, typ string, der []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: typ, Bytes: der}); err != nil {
		t.Fatal(err)
	}
	return writeFile(t, name, b.Bytes())
}

func writeFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBuildTLSNamesOptionAndFileOfEveryFault(t *testing.T) {
	a := newAuthority(t, "ca")
	cert, key := a.issue("client")
	_, otherKey := a.issue("other")
	garbage := writeFile(t, "garbage.pem", []byte("not PEM"))
	missing := filepath.Join(t.TempDir(), "missing.pem")
	for _, tt := range []struct {
		name string
		s    TLSSettings
		want []string
	}{
		{"missing authority", TLSSettings{CACertFile: missing}, []string{"tls.ca_cert_file: ", missing}},
		{"authority not PEM", TLSSettings{CACertFile: garbage}, []string{"tls.ca_cert_file: ", garbage, "no certificate"}},
		{"missing certificate and key", TLSSettings{CertFile: missing, KeyFile: missing + "2"}, []string{"tls.cert_file: ", missing, "tls.key_file: ", missing + "2"}},
		{"certificate not PEM", TLSSettings{CertFile: garbage, KeyFile: key}, []string{"tls.cert_file " + garbage, "tls.key_file " + key}},
		{"key of another certificate", TLSSettings{CertFile: cert, KeyFile: otherKey}, []string{"tls.cert_file " + cert, "tls.key_file " + otherKey, "match"}},
		{"certificate alone", TLSSettings{CertFile: cert}, []string{"tls.cert_file", "tls.key_file"}},
		{"key alone", TLSSettings{KeyFile: key}, []string{"tls.cert_file", "tls.key_file"}},
		{"version", TLSSettings{MinVersion: "1.1"}, []string{"tls.min_version", "1.1", "1.2 or 1.3"}},
		{"all at once", TLSSettings{MinVersion: "x", CACertFile: missing, CertFile: cert}, []string{"tls.min_version", "tls.ca_cert_file", "tls.key_file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := buildTLS(&tt.s, gobridge.Credential{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to name %q", err, want)
				}
			}
		})
	}
}

func TestBuildTLSTakesEverySetting(t *testing.T) {
	a := newAuthority(t, "ca")
	cert, key := a.issue("client")
	cfg, err := buildTLS(&TLSSettings{
		CACertFile: a.file, CertFile: cert, KeyFile: key, ServerName: "broker", ALPN: []string{"mqtt"},
		MinVersion: "1.3", InsecureSkipVerify: true,
	}, gobridge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.RootCAs == nil || len(cfg.Certificates) != 1 || cfg.ServerName != "broker" || len(cfg.NextProtos) != 1 ||
		cfg.MinVersion != tls.VersionTLS13 || !cfg.InsecureSkipVerify {
		t.Errorf("got %+v", cfg)
	}
	cfg, err = buildTLS(&TLSSettings{MinVersion: "1.2"}, gobridge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.RootCAs != nil || len(cfg.Certificates) != 0 || cfg.MinVersion != tls.VersionTLS12 || cfg.InsecureSkipVerify {
		t.Errorf("defaults: got %+v", cfg)
	}
}
